"""A process that runs one program again and again, and measures it.

`python -m benchmarks.scoring.child PROGRAM` answers the requests of `__main__`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch

from benchmarks.dataloading.peers import start_ray
from benchmarks.harness.machine import tree_cpu_seconds
from benchmarks.harness.serving import serve
from benchmarks.scoring.language import LANGUAGE_PROGRAMS
from benchmarks.scoring.programs import ON_RAY, PROGRAMS, WITH_PROCESSES
from benchmarks.scoring.tables import CPU, KEY, MICROS, ROWS, Scored
from pipeline_runtime.hashing import combine, hash_values, mix64

_STATUS: Final = Path("/proc/self/status")
_IO: Final = Path("/proc/self/io")
_CLEAR_REFS: Final = Path("/proc/self/clear_refs")
_RESET_PEAK: Final = "5"  # see proc(5)
_MODULUS: Final = 1 << 64
# Scores are compared after rounding: batches of other sizes round the last bits otherwise.
_SCALE: Final = 1e4


def measure(name: str, scored: Scored) -> dict[str, Any]:
    """Run a program over all rows; return its metrics, and sums over keys and scores.

    The program's notes are sums over all rows: of seconds or bytes, by the metric of a row.
    """
    program = {**PROGRAMS, **LANGUAGE_PROGRAMS}[name]
    _CLEAR_REFS.write_text(_RESET_PEAK)
    sums = dict.fromkeys((ROWS, *scored.scores), 0)
    notes: dict[str, float] = {}
    clock = _tree_clock if name in WITH_PROCESSES else time.process_time
    cpu, num_bytes, started = clock(), _read_field(_IO, "rchar"), time.perf_counter()
    for table in program(scored, notes):
        add_sums(sums, table, scored)
    seconds = time.perf_counter() - started
    notes = {MICROS: seconds, CPU: clock() - cpu} | notes
    values = {
        metric: value / sums[ROWS] * (1e6 if "icros" in metric else 1)
        for metric, value in notes.items()
    }
    values["peakBytes"] = 1024 * _read_field(_STATUS, "VmHWM")
    if name not in WITH_PROCESSES:
        values["readBytesPerRow"] = (_read_field(_IO, "rchar") - num_bytes) / sums[ROWS]
    return {"values": values, "sums": sums}


def add_sums(sums: dict[str, int], table: pa.Table, scored: Scored) -> None:
    """Add a table's rows: a sum of hash(key, score) for each output, modulo 2⁶⁴."""
    sums[ROWS] += table.num_rows
    key_N = mix64(table[KEY].to_numpy().astype(np.int64).view(np.uint64))
    for name in scored.scores:
        hash_N = combine(key_N, _hash_outputs(table[name]))
        sums[name] = (sums[name] + int(hash_N.sum(dtype=np.uint64))) % _MODULUS


def _hash_outputs(column: pa.ChunkedArray) -> np.ndarray:
    if not pa.types.is_floating(column.type):
        return hash_values(column.cast(pa.string()))
    rounded_N = np.rint(column.to_numpy().astype(np.float64) * _SCALE).astype(np.int64)
    return mix64(rounded_N.view(np.uint64))


def _tree_clock() -> float:
    return tree_cpu_seconds(os.getpid()) or 0.0


def _read_field(path: Path, name: str) -> int:
    """Return a number in a file of /proc."""
    lines = dict(line.split(":", 1) for line in path.read_text().splitlines())
    return int(lines[name].split()[0])


def _open_service() -> tuple[None, Callable[[Any], Any]]:
    torch.set_num_threads(1)
    name = sys.argv[1]
    if name in ON_RAY:
        start_ray()
    return None, lambda request: measure(name, Scored(**request))


if __name__ == "__main__":
    serve(_open_service)
