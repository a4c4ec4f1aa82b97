"""A rank's evaluated rows: paired with their identities, bounded, written once complete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline_runtime import evaluated_rows
from pipeline_runtime.errors import TrainingError
from pipeline_runtime.evaluated_rows import EvaluationRows, decode_rows
from pipeline_runtime.report.files.evaluation_rows import EVALUATION_FILE, load_rows
from pipeline_runtime.run.training.evaluation_file import collect_rows, locate_parts
from pipeline_runtime.sources import Location, open_location
from pipeline_runtime.training import evaluation_records
from pipeline_runtime.training.evaluation_records import RowRecorder


@pytest.fixture
def run(tmp_path: Path) -> Location:
    return open_location(str(tmp_path / "run"))


def expect(recorder: RowRecorder, hashes: list[int]) -> None:
    rows = np.array(hashes, dtype=np.uint64)
    recorder.expect(rows, rows // np.uint64(10))


def record(recorder: RowRecorder, values: list[float], **others: torch.Tensor) -> None:
    plain = torch.tensor(values)
    tensors = [others.get(name, plain) for name in ("label", "prediction", "loss", "weight")]
    recorder.record(*tensors)


def write(recorder: RowRecorder, folder: Location, rank: int = 0) -> EvaluationRows:
    recorder.write(folder)
    path = Path(folder.path) / f"{rank:05d}.parquet"
    return decode_rows(path.read_bytes(), str(path))


def test_results_belong_to_batches_in_order(run: Location) -> None:
    recorder = RowRecorder(0)
    recorder.begin(epoch=1, step=7)
    expect(recorder, [30, 10])
    expect(recorder, [20])  # taken ahead
    record(recorder, [0.5, 0.25])
    record(recorder, [1.0], prediction=torch.tensor([[0.75]], dtype=torch.bfloat16))
    rows = write(recorder, run)
    assert rows.column("row").tolist() == [10, 20, 30]
    assert rows.column("group").tolist() == [1, 2, 3]
    assert rows.column("prediction").tolist() == [0.25, 0.75, 0.5]
    assert (rows.epoch, rows.step, rows.num_rows) == (1, 7, 3)


def test_padding_is_not_recorded(run: Location) -> None:
    recorder = RowRecorder(0)
    recorder.expect_none()
    expect(recorder, [4])
    record(recorder, [9.0])
    record(recorder, [1.0])
    assert write(recorder, run).column("label").tolist() == [1.0]


def test_only_last_evaluation_is_kept(run: Location) -> None:
    recorder = RowRecorder(0)
    for step, hashes in enumerate([[1, 2], [3]]):
        recorder.begin(epoch=0, step=step)
        expect(recorder, hashes)
        record(recorder, [float(h) for h in hashes])
    rows = write(recorder, run)
    assert (rows.column("row").tolist(), rows.step) == ([3], 1)


def test_rows_are_bounded_while_they_come(run: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (evaluated_rows, evaluation_records):
        monkeypatch.setattr(module, "MAX_ROWS", 3)
    monkeypatch.setattr(evaluation_records, "_ROWS_PER_COPY", 4)
    recorder, hashes = RowRecorder(0), list(range(40, 0, -1))
    for first in range(0, 40, 4):
        expect(recorder, hashes[first : first + 4])
        record(recorder, [0.0] * 4)
    rows = write(recorder, run)
    assert (rows.column("row").tolist(), rows.num_rows) == ([1, 2, 3], 40)


def test_a_program_that_does_not_record_writes_nothing(run: Location) -> None:
    recorder = RowRecorder(0)
    for batch in range(200):
        expect(recorder, [batch])
    recorder.write(run)
    assert not Path(run.path).exists()
    with pytest.raises(TrainingError, match="record_evaluation"):
        record(recorder, [1.0])


WRONG: dict[str, tuple[list[int], dict[str, Any]]] = {
    "another batch": ([1, 2, 3], {}),
    "one loss for the batch": ([1, 2], {"loss": torch.tensor(1.0)}),
}


@pytest.mark.parametrize(("hashes", "others"), WRONG.values(), ids=WRONG.keys())
def test_another_number_of_values_is_refused(hashes: list[int], others: dict[str, Any]) -> None:
    recorder = RowRecorder(0)
    expect(recorder, hashes)
    with pytest.raises(TrainingError, match="one value for each"):
        record(recorder, [0.5, 0.5], **others)


def write_rank(run: Location, rank: int, hashes: list[int], step: int = 1) -> None:
    recorder = RowRecorder(rank)
    recorder.begin(epoch=0, step=step)
    expect(recorder, hashes)
    record(recorder, [0.0] * len(hashes))
    recorder.write(locate_parts(run))


def test_rows_of_all_ranks_become_one_file(run: Location, tmp_path: Path) -> None:
    write_rank(run, 0, [5, 1])
    write_rank(run, 1, [3])
    write_rank(run, 2, [9], step=0)  # left by an earlier attempt on more ranks
    assert collect_rows(run, tmp_path / "here") == ()
    rows = load_rows(tmp_path / "here")
    assert rows is not None
    assert rows.column("row").tolist() == [1, 3, 5]
    assert load_rows(Path(run.path)) == rows
    assert [path.name for path in Path(run.path).iterdir()] == [EVALUATION_FILE]


def test_an_attempt_without_evaluation_keeps_earlier_rows(run: Location, tmp_path: Path) -> None:
    write_rank(run, 0, [5])
    collect_rows(run, tmp_path / "first")
    assert collect_rows(run, tmp_path / "second") == ()
    assert load_rows(tmp_path / "second") == load_rows(tmp_path / "first")


def test_an_evaluation_that_is_repeated_counts_once(run: Location, tmp_path: Path) -> None:
    for _ in range(2):  # attempts that evaluate at one step
        write_rank(run, 0, [5, 1])
        collect_rows(run, tmp_path)
    rows = load_rows(tmp_path)
    assert rows is not None
    assert (rows.column("row").tolist(), rows.num_rows) == ([1, 5], 2)


def test_a_run_without_evaluation_has_no_file(run: Location, tmp_path: Path) -> None:
    assert collect_rows(run, tmp_path) == ()
    assert list(tmp_path.iterdir()) == []


def test_damaged_rows_are_a_warning(run: Location, tmp_path: Path) -> None:
    write_rank(run, 0, [5])
    (Path(locate_parts(run).path) / "00000.parquet").write_bytes(b"half")
    [warning] = collect_rows(run, tmp_path / "here")
    assert "00000.parquet" in warning
