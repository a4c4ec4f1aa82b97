"""Loops in other processes: killed in the middle of an epoch, or given a loader that has begun."""

import json
import multiprocessing
import os
import signal
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_runtime import Pipeline
from pipeline_runtime.files import write_atomically
from pipeline_runtime.loader import Loader

NUM_ROWS = 1000


def open_loader(folder: Path) -> Loader:
    pipeline = Pipeline.read_parquet(f"{folder}/t.parquet").filter("x % 7 < 5")
    return pipeline.with_options(rows_per_block=90).loader(32, ["x"], shuffle=True, seed=3)


def run_until_killed(folder: Path, stop: int, batches_between_saves: int) -> None:
    """Take batches and save the state now and then, until SIGKILL comes at the batch `stop`."""
    loader = open_loader(folder)
    rows: list[list[int]] = []
    for _ in range(2):
        for batch in loader:
            if len(rows) == stop:
                os.kill(os.getpid(), signal.SIGKILL)
            rows.append(batch["x"].tolist())
            if len(rows) % batches_between_saves == 0:
                saved = {"rows": rows, "state": loader.state_dict()}
                write_atomically(folder / "saved.json", json.dumps(saved).encode())


@pytest.mark.parametrize(("stop", "batches_between_saves"), [(1, 1), (10, 1), (30, 7)])
def test_a_killed_loop_resumes_with_exactly_the_remaining_batches(
    tmp_path: Path, stop: int, batches_between_saves: int
) -> None:
    pq.write_table(pa.table({"x": range(NUM_ROWS)}), tmp_path / "t.parquet", row_group_size=70)
    whole = open_loader(tmp_path)
    expected = [batch["x"].tolist() for _ in range(2) for batch in whole]
    process = multiprocessing.get_context("spawn").Process(
        target=run_until_killed, args=(tmp_path, stop, batches_between_saves)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    saved: dict[str, Any] = json.loads((tmp_path / "saved.json").read_text())
    assert len(saved["rows"]) == stop - stop % batches_between_saves
    loader = open_loader(tmp_path)
    loader.load_state_dict(saved["state"])
    rows = list(saved["rows"])
    while loader.epoch < 2:
        rows += [batch["x"].tolist() for batch in loader]
    assert rows == expected


def take_remaining(loader: Loader, folder: Path) -> None:
    """Write the batches of a loop; for a process that begins by `spawn`."""
    rows = [batch["x"].tolist() for batch in loader]
    (folder / "rows.json").write_text(json.dumps(rows))


def test_a_process_by_spawn_gets_the_remaining_batches(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(NUM_ROWS)}), tmp_path / "t.parquet", row_group_size=70)
    expected = [batch["x"].tolist() for batch in open_loader(tmp_path)]
    loader = open_loader(tmp_path)
    list(islice(loader, 4))
    process = multiprocessing.get_context("spawn").Process(
        target=take_remaining, args=(loader, tmp_path)
    )
    process.start()
    process.join()
    assert process.exitcode == 0
    assert json.loads((tmp_path / "rows.json").read_text()) == expected[4:]
