"""One program in a process of its own: it runs epochs and reports their time, memory and sums.

`python -m benchmarks.iceberg.child PROGRAM` answers the requests of `programs`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from benchmarks.dataloading.measuring.checksums import Sums, add_sums, identities_of, proof_of
from benchmarks.harness.machine import num_cores
from benchmarks.harness.serving import serve
from benchmarks.iceberg.lakes import Lake
from pipeline_runtime.batches import OFFSETS_SUFFIX, VALUES_SUFFIX, Batch

Rows = pa.Table | pa.RecordBatch | Batch
Run = Callable[[Lake], Iterable[Rows]]

# Where the Makefile installs the packages of peers.txt, which are not in the lock.
_PEERS: Final = Path("build/iceberg-peers").absolute()
_IDENTITY: Final = ("request_id", "position")  # of `identities_of`
_STATUS: Final = Path("/proc/self/status")
_IO: Final = Path("/proc/self/io")
_CLEAR_REFS: Final = Path("/proc/self/clear_refs")
_RESET_PEAK: Final = "5"  # see proc(5)


def measure(run: Run, lake: Lake, *, proves: bool = False) -> dict[str, Any]:
    """Run one epoch.

    Args:
        proves: sum up a hash of every value, so that the time means nothing.
    """
    _ = lake.residues  # planning the peers' buckets is not timed
    pool = pa.default_memory_pool()
    resident, arrow, read = _field(_STATUS, "VmRSS"), pool.bytes_allocated(), _field(_IO, "rchar")
    _CLEAR_REFS.write_text(_RESET_PEAK)
    sums: Sums = {}
    started = time.perf_counter()
    for rows in run(lake):
        batch = rows if isinstance(rows, dict) else to_batch(rows, None if proves else _IDENTITY)
        sums = add_sums(sums, proof_of(batch) if proves else identities_of(batch))
    seconds = time.perf_counter() - started
    values = {
        "rowsPerSecond": lake.rows / seconds,
        "peakBytes": max(1, 1024 * (_field(_STATUS, "VmHWM") - resident)),
        "arrowPeakBytes": max(1, (pool.max_memory() or 0) - arrow),
        "readBytes": max(1, _field(_IO, "rchar") - read),
    }
    return {"values": values, "sums": sums}


def _field(path: Path, name: str) -> int:
    """Return a number of a file of /proc, such as the kibibytes of `VmRSS`."""
    lines = dict(line.split(":", 1) for line in path.read_text().splitlines())
    return int(lines[name].split()[0])


def to_batch(rows: pa.Table | pa.RecordBatch, names: tuple[str, ...] | None = None) -> Batch:
    """Return Arrow's columns as the loader's tensors; a null list is an empty one.

    Args:
        names: columns to convert; all if absent.
    """
    batch: dict[str, npt.NDArray[Any]] = {}
    table = pa.table(rows) if isinstance(rows, pa.RecordBatch) else rows
    for name in names or table.column_names:
        column = table[name].combine_chunks()
        if pa.types.is_nested(column.type):
            lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
            batch[name + OFFSETS_SUFFIX] = np.concatenate([[0], np.cumsum(lengths)])
            batch[name + VALUES_SUFFIX] = pc.list_flatten(column).to_numpy()
        else:
            if pa.types.is_timestamp(column.type):
                column = column.cast(pa.int64())
            batch[name] = column.to_numpy(zero_copy_only=False)
    return {name: torch.from_numpy(np.require(a, requirements="CW")) for name, a in batch.items()}


def _main() -> None:
    program = json.loads(sys.argv[1])
    with ExitStack() as stack:

        def open_service() -> tuple[Any, Callable[[Any], Any]]:
            torch.set_num_threads(num_cores())
            sys.path.append(str(_PEERS))
            if program["needs_ray"]:
                from pipeline_runtime.run.ray_connection import connected

                # Ray's join holds logical CPUs for its own actors, and would wait for them for
                # ever.
                stack.enter_context(connected("local", num_cores(), verbose=False))
            return None, answer

        def answer(request: Any) -> Any:
            proves = request["proves"]
            opens = program["proves"] if proves and program["proves"] else program["opens"]
            module, _, name = opens.partition(":")
            run = getattr(import_module(f"benchmarks.iceberg.{module}"), name)
            lake = Lake(Path(request["folder"]), request["rows"])
            return measure(run, lake, proves=proves)

        serve(open_service)


if __name__ == "__main__":
    _main()
