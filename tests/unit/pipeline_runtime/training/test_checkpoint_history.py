"""The metrics history of checkpoints: whole for each, in few files, and without repeated values."""

import io
import math
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from saved_checkpoints import make_header, make_store

from pipeline_runtime.errors import StoreError
from pipeline_runtime.monitor import Evaluated, HistoryPoint, Monitor
from pipeline_runtime.run.training.past import find_evaluations
from pipeline_runtime.training.checkpoints.checkpoint import CheckpointStore
from pipeline_runtime.training.checkpoints.history import CheckpointHistory, read_checkpoint_history
from pipeline_runtime.training.recorder import ROW_SCHEMA, Past, Recorder

STATE = {"user": {}, "rng": []}


def build_rows(*steps: int, name: str = "loss") -> pa.Table:
    rows = [
        {"seconds": step, "epoch": 0, "step": step, "name": name, "value": 1.0} for step in steps
    ]
    return pa.Table.from_pylist(rows, schema=ROW_SCHEMA)


def count_up(rows_per_step: int = 1) -> Iterator[pa.Table]:
    step = 0
    while True:
        step += 1
        yield build_rows(*[step] * rows_per_step)


def save(store: CheckpointStore, history: CheckpointHistory, step: int) -> None:
    uri = store.save(STATE, {**make_header(step), "history": history.write(step)})
    store.remove_old(uri)
    history.remove_unused()


def read_steps(store: CheckpointStore, index: int = 0) -> list[int]:
    tables, missing = read_checkpoint_history(store, store.headers()[index], ROW_SCHEMA)
    assert missing == ()
    steps: list[int] = pa.concat_tables(tables)["step"].to_pylist()
    return steps


def list_files(folder: Path) -> set[str]:
    return {path.name for path in (folder / "history").iterdir()}


@pytest.mark.parametrize("num_steps", [1, 2, 7, 8, 33])
def test_each_checkpoint_has_the_history_up_to_it(num_steps: int, tmp_path: Path) -> None:
    store, rows = make_store(tmp_path), count_up()
    history = CheckpointHistory(store, (), lambda: next(rows))
    for step in range(1, num_steps + 1):
        save(store, history, step)

        kept = store.headers()
        for index, header in enumerate(kept):
            assert read_steps(store, index) == list(range(1, header.step + 1))
            assert len(header.history or ()) <= 1 + math.log2(header.step)
        # One of the files may be left over: they are removed with the merge that replaces them.
        used = {part.name for header in kept for part in header.history or ()}
        assert len(list_files(tmp_path) - used) <= 1 + math.log2(step)


def test_a_resumed_history_continues_that_of_its_checkpoint(tmp_path: Path) -> None:
    store, rows = make_store(tmp_path, keep=9), count_up()
    first = CheckpointHistory(store, (), lambda: next(rows))
    for step in (1, 2, 3):
        save(store, first, step)
    resumed = store.headers()[1]
    rows = iter([build_rows(3), build_rows(4, 5)])
    again = CheckpointHistory(store, resumed.history or (), lambda: next(rows))
    for step in (3, 5):
        save(store, again, step)

    assert read_steps(store) == [1, 2, 3, 4, 5]
    assert [read_steps(store, index)[-1] for index in range(5)] == [5, 3, 3, 2, 1]


def test_rows_of_a_refused_write_come_with_the_next(tmp_path: Path) -> None:
    store, rows = make_store(tmp_path), count_up()
    history = CheckpointHistory(store, (), lambda: next(rows))
    (tmp_path / "history").write_text("where the folder should be")
    with pytest.raises(StoreError):
        history.write(1)
    (tmp_path / "history").unlink()
    save(store, history, 2)

    assert read_steps(store) == [1, 2]


def write_other_table() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"mine": [1, 2, 3]}), sink)
    return sink.getvalue()


@pytest.mark.parametrize(
    "content",
    [None, b"", b"no Parquet", write_other_table()],
    ids=["missing", "empty", "damaged", "of another table"],
)
def test_a_lost_part_is_reported(content: bytes | None, tmp_path: Path) -> None:
    store = make_store(tmp_path)
    tables = iter([build_rows(1, 1, 1), build_rows(2)])
    history = CheckpointHistory(store, (), lambda: next(tables))
    save(store, history, 1)
    save(store, history, 2)
    [header, _] = store.headers()
    assert header.history is not None
    lost = tmp_path / "history" / header.history[0].name
    lost.unlink() if content is None else lost.write_bytes(content)

    found, missing = read_checkpoint_history(store, header, ROW_SCHEMA)

    assert pa.concat_tables(found)["step"].to_pylist() == [2]
    assert [uri.rsplit("/", 1)[1] for uri in missing] == [header.history[0].name]


def build_point(step: int, **metrics: float) -> HistoryPoint:
    return HistoryPoint(seconds=1.0, epoch=0, step=step, metrics=metrics)


def test_a_resumed_attempt_repeats_no_value_of_its_checkpoint() -> None:
    recorder = Recorder(
        Past(
            seconds=60.0,
            known={(4, "eval_auc")},
            evaluations=(Evaluated(epoch=0, step=4, metrics={"eval_auc": 0.5}),),
        )
    )
    stored = recorder.add([], [build_point(4, eval_auc=0.5, eval_loss=2.0), build_point(5, loss=1)])

    assert [(point.seconds, point.step, point.metrics) for point in stored][:2] == [
        (61.0, 4, {"eval_loss": 2.0}),
        (61.0, 5, {"loss": 1}),
    ]
    assert recorder.take()["name"].to_pylist() == ["eval_loss", "loss"]
    assert recorder.take().num_rows == 0
    monitor = Monitor(recorder)
    for metrics in ({"eval_auc": 0.5}, {"eval_loss": 2.0}):
        monitor.evaluated(Evaluated(epoch=0, step=4, metrics=metrics))
    assert [each.metrics for each in monitor.read().evaluations] == [
        {"eval_auc": 0.5},
        {"eval_loss": 2.0},
    ]


def test_rows_of_earlier_releases_get_into_the_next_checkpoint() -> None:
    recorder = Recorder(Past(rows=build_rows(1, 2), are_saved=False))
    recorder.add([], [build_point(3, loss=1)])

    assert recorder.take()["step"].to_pylist() == [1, 2, 3]


def test_evaluations_are_found_in_a_history() -> None:
    rows = pa.concat_tables(
        [build_rows(3), build_rows(3, 6, name="eval_auc"), build_rows(6, name="eval_loss")]
    )
    assert find_evaluations(rows) == (
        Evaluated(epoch=0, step=3, metrics={"eval_auc": 1.0}),
        Evaluated(epoch=0, step=6, metrics={"eval_auc": 1.0, "eval_loss": 1.0}),
    )
