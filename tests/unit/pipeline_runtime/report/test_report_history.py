"""The metrics history: whole when closed, readable after a kill, continued after a resume."""

import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipeline_runtime.errors import LastmileError
from pipeline_runtime.report import HistoryWriter, read_history
from pipeline_runtime.report.files import metrics_history as history_module
from pipeline_runtime.report.files.metrics_history import FLUSH_ROWS, FLUSH_SECONDS, HISTORY_SCHEMA
from pipeline_runtime.training.recorder import ROW_SCHEMA

ROOT = Path(__file__).parents[4]


def write_steps(writer: HistoryWriter, steps: range, seconds_per_step: float = 0.001) -> None:
    for count, step in enumerate(steps, start=1):
        writer.append(count * seconds_per_step, 0, step, {"loss": 1 / step, "auc": 0.5})


def read_steps(directory: Path) -> list[int]:
    table = read_history(directory)
    loss = table.filter(pc.equal(table["name"].cast(pa.string()), "loss"))
    steps: list[int] = loss["step"].to_pylist()
    return steps


def get_journal(directory: Path) -> Path:
    return directory / ".metrics.parquet.journal"


def test_a_closed_history_is_one_parquet_file(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "metrics.parquet") as writer:
        writer.append(0.5, 0, 1, {"loss": 0.7, "eval_auc": 0.61})
        writer.append(1.5, 1, 2, {"loss": math.nan})
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.parquet"]
    table = pq.read_table(tmp_path / "metrics.parquet")
    assert table.schema.equals(HISTORY_SCHEMA)
    assert table.slice(0, 2).to_pylist() == [
        {"seconds": 0.5, "epoch": 0, "step": 1, "name": "loss", "value": 0.7},
        {"seconds": 0.5, "epoch": 0, "step": 1, "name": "eval_auc", "value": 0.61},
    ]
    assert math.isnan(table["value"][2].as_py())


@pytest.mark.parametrize("exists", [True, False], ids=["closed at once", "never opened"])
def test_no_entries_make_an_empty_table(exists: bool, tmp_path: Path) -> None:
    if exists:
        HistoryWriter(tmp_path / "metrics.parquet").close()
        assert pq.read_table(tmp_path / "metrics.parquet").num_rows == 0
    assert read_history(tmp_path).schema.equals(HISTORY_SCHEMA)
    assert read_history(tmp_path).num_rows == 0


def test_memory_is_bounded_by_flushing(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "metrics.parquet") as writer:
        write_steps(writer, range(1, FLUSH_ROWS // 2))
        assert read_steps(tmp_path) == []  # one entry short of a flush
        write_steps(writer, range(FLUSH_ROWS // 2, FLUSH_ROWS // 2 + 1))
        assert len(read_steps(tmp_path)) == FLUSH_ROWS // 2


def test_slow_runs_are_flushed_by_the_clock(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "metrics.parquet") as writer:
        writer.append(FLUSH_SECONDS - 0.1, 0, 1, {"loss": 1})
        assert read_steps(tmp_path) == []
        writer.append(FLUSH_SECONDS, 0, 2, {"loss": 1})
        assert read_steps(tmp_path) == [1, 2]


def test_long_histories_keep_their_order_over_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "ROW_GROUP_ROWS", 1000)
    with HistoryWriter(tmp_path / "metrics.parquet") as writer:
        write_steps(writer, range(1, 9001))
    assert pq.ParquetFile(tmp_path / "metrics.parquet").num_row_groups > 1
    assert read_steps(tmp_path) == list(range(1, 9001))


def test_closing_twice_is_fine_and_appending_then_is_not(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path / "metrics.parquet")
    writer.close()
    writer.close()
    with pytest.raises(LastmileError, match=r"metrics\.parquet"):
        writer.append(1, 0, 1, {"loss": 1})


def test_a_killed_run_keeps_what_was_flushed(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, signal, sys\n"
        "from pipeline_runtime.report.files.metrics_history import HistoryWriter\n"
        "writer = HistoryWriter(pathlib.Path(sys.argv[1]))\n"
        "for step in range(1, 11): writer.append(step, 0, step, {'loss': 1.0})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "metrics.parquet")]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    assert subprocess.run(command, check=False, env=env).returncode == -signal.SIGKILL
    assert read_steps(tmp_path) == list(range(1, 11))  # flushed at second 5 and second 10


def test_a_journal_torn_anywhere_is_read_up_to_its_last_whole_entry(tmp_path: Path) -> None:
    ends = []
    with HistoryWriter(tmp_path / "metrics.parquet") as writer:
        for step in (1, 2, 3):
            writer.append(step, 0, step, {"loss": 1})
            writer.flush()
            ends.append(get_journal(tmp_path).stat().st_size)
        whole = get_journal(tmp_path).read_bytes()
    (tmp_path / "metrics.parquet").unlink()
    near_ends = {end + offset for end in ends for offset in (-1, 0, 1)}
    for size in sorted({*range(0, len(whole), 29), *near_ends, len(whole)}):
        get_journal(tmp_path).write_bytes(whole[:size])
        num_whole = sum(size >= end for end in ends)
        assert read_steps(tmp_path) == [1, 2, 3][:num_whole], size


def test_a_kill_between_rename_and_cleanup_doubles_nothing(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path / "metrics.parquet")
    write_steps(writer, range(1, 5))
    writer.flush()
    journal = get_journal(tmp_path).read_bytes()
    writer.close()
    get_journal(tmp_path).write_bytes(journal)
    assert read_steps(tmp_path) == [1, 2, 3, 4]


def test_a_fresh_run_replaces_an_old_history(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "metrics.parquet") as writer:
        write_steps(writer, range(1, 5))
    with HistoryWriter(tmp_path / "metrics.parquet") as writer:
        write_steps(writer, range(7, 9))
    assert read_steps(tmp_path) == [7, 8]


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "closed"])
def test_kept_rows_replace_an_earlier_history(is_killed: bool, tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "metrics.parquet") as first:
        write_steps(first, range(1, 11), seconds_per_step=1)
        first.flush()
        journal = get_journal(tmp_path).read_bytes()
    kept = read_history(tmp_path).slice(0, 12).cast(ROW_SCHEMA)  # two rows per step
    if is_killed:
        (tmp_path / "metrics.parquet").unlink()
        get_journal(tmp_path).write_bytes(journal)
    with HistoryWriter(tmp_path / "metrics.parquet", kept=kept) as second:
        write_steps(second, range(7, 13), seconds_per_step=1)
        second.flush()
        assert read_steps(tmp_path) == list(range(1, 13))
    assert read_steps(tmp_path) == list(range(1, 13))
    assert read_history(tmp_path).slice(0, 12).cast(ROW_SCHEMA).equals(kept)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"no parquet at all", "Parquet", id="another format"),
        pytest.param(None, "seconds, epoch", id="another table"),
    ],
)
def test_a_foreign_file_is_refused(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.parquet"
    if content is None:
        pq.write_table(pa.table({"x": [1]}), path)
    else:
        path.write_bytes(content)
    with pytest.raises(LastmileError, match=message):
        read_history(tmp_path)


def test_a_pipe_in_the_place_of_the_history_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.parquet")
    with pytest.raises(LastmileError, match=r"metrics\.parquet"):
        read_history(tmp_path)
