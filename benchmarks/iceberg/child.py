"""One program in a process of its own: it runs epochs and reports their time, memory and sums.

`python -m benchmarks.iceberg.child MODULE:FUNCTION` answers the requests of `programs`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from inspect import signature
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

# Where the Makefile installs the packages of peers.txt, which are not in the lock.
_PEERS: Final = Path("build/iceberg-peers").absolute()
_IDENTITY: Final = ("request_id", "position")  # of `identities_of`
_STATUS: Final = Path("/proc/self/status")
_CLEAR_REFS: Final = Path("/proc/self/clear_refs")
_RESET_PEAK: Final = "5"  # see proc(5)


def measure(program: Callable[[], Iterable[Any]], lake: Lake, *, proves: bool) -> dict[str, Any]:
    """Run one epoch.

    Args:
        proves: sum up a hash of every value, so that the time means nothing.
    """
    _ = lake.residues  # planning the peer's buckets is not timed
    pool = pa.default_memory_pool()
    resident, arrow = _read_status("VmRSS"), pool.bytes_allocated()
    _CLEAR_REFS.write_text(_RESET_PEAK)
    sums: Sums = {}
    started = time.perf_counter()
    for rows in program():
        batch = rows if isinstance(rows, dict) else to_batch(rows, None if proves else _IDENTITY)
        sums = add_sums(sums, proof_of(batch) if proves else identities_of(batch))
    seconds = time.perf_counter() - started
    values = {
        "rowsPerSecond": lake.rows / seconds,
        "peakBytes": max(1, _read_status("VmHWM") - resident),
        "arrowPeakBytes": max(1, (pool.max_memory() or 0) - arrow),
    }
    return {"values": values, "sums": sums}


def _read_status(name: str) -> int:
    """Return a size of this process, in bytes."""
    lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return 1024 * int(lines[name].split()[0])


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
    own = {name: np.require(array, requirements=("C", "W")) for name, array in batch.items()}
    return {name: torch.from_numpy(array) for name, array in own.items()}


def _open_service() -> tuple[None, Callable[[Any], Any]]:
    torch.set_num_threads(num_cores())
    sys.path.append(str(_PEERS))
    module, _, name = sys.argv[1].partition(":")
    function = getattr(import_module(f"benchmarks.iceberg.{module}"), name)
    takes_proves = "proves" in signature(function).parameters

    def answer(request: Any) -> Any:
        lake, proves = Lake(Path(request["folder"]), request["rows"]), request["proves"]
        program = (
            partial(function, lake, proves=proves) if takes_proves else partial(function, lake)
        )
        return measure(program, lake, proves=proves)

    return None, answer


if __name__ == "__main__":
    serve(_open_service)
