"""A process that runs one program again and again, and measures it.

`python -m benchmarks.scoring.child PROGRAM` answers the requests of `__main__`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch

from benchmarks.dataloading.peers import start_ray
from benchmarks.harness.machine import tree_cpu_seconds
from benchmarks.harness.serving import serve
from benchmarks.scoring.programs import PROGRAMS, STEP_SECONDS
from benchmarks.scoring.tables import KEY, Scored
from pipeline_runtime.hashing import combine, mix64

ROWS: Final = "rows"
_STATUS: Final = Path("/proc/self/status")
_CLEAR_REFS: Final = Path("/proc/self/clear_refs")
_RESET_PEAK: Final = "5"  # see proc(5)
_MODULUS: Final = 1 << 64
# Scores are compared after rounding: batches of other sizes round the last bits otherwise.
_SCALE: Final = 1e4


def measure(program: Callable[..., Iterator[pa.Table]], scored: Scored) -> dict[str, Any]:
    """Run a program over all rows; return its metrics, and sums over keys and scores."""
    _CLEAR_REFS.write_text(_RESET_PEAK)
    sums = dict.fromkeys((ROWS, *scored.scores), 0)
    notes: dict[str, float] = {}
    cpu = tree_cpu_seconds(os.getpid()) or 0.0
    started = time.perf_counter()
    for table in program(scored, notes):
        add_sums(sums, table, scored)
    seconds = time.perf_counter() - started
    used = (tree_cpu_seconds(os.getpid()) or 0.0) - cpu
    micros = 1e6 / sums[ROWS]
    values = {
        "microsPerRow": seconds * micros,
        "cpuMicrosPerRow": used * micros,
        "peakBytes": _read_status("VmHWM"),
    }
    if STEP_SECONDS in notes:
        values["stepMicrosPerRow"] = notes[STEP_SECONDS] * micros
    return {"values": values, "sums": sums}


def add_sums(sums: dict[str, int], table: pa.Table, scored: Scored) -> None:
    """Add a table's rows: a sum of hash(key, score) for each model, modulo 2⁶⁴."""
    sums[ROWS] += table.num_rows
    key_N = mix64(table[KEY].to_numpy().astype(np.int64).view(np.uint64))
    for name in scored.scores:
        score_N = np.rint(table[name].to_numpy().astype(np.float64) * _SCALE).astype(np.int64)
        hash_N = combine(key_N, mix64(score_N.view(np.uint64)))
        sums[name] = (sums[name] + int(hash_N.sum(dtype=np.uint64))) % _MODULUS


def _read_status(name: str) -> int:
    """Return a size of this process, in bytes."""
    lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return 1024 * int(lines[name].split()[0])


def _open_service() -> tuple[None, Callable[[Any], Any]]:
    torch.set_num_threads(1)
    name = sys.argv[1]
    if name.startswith("Ray"):
        start_ray()
    return None, lambda request: measure(PROGRAMS[name], Scored(**request))


if __name__ == "__main__":
    serve(_open_service)
