"""A torch DataLoader over row groups, as a good engineer writes it.

Each row group is one unit of work, given to the workers in turn. A worker sends it packed in one
buffer, so that few messages pass between processes, and the trainer's process cuts batches of it.
Workers are forked, as torch does by default on Linux, and stay for the next epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.dataloading.loaders.row_groups import RowGroups, cut
from benchmarks.dataloading.workloads import Workload
from benchmarks.harness.machine import num_cores
from pipeline_runtime.arrays.packing import pack_arrays, unpack_arrays
from pipeline_runtime.batches import Batch

# The best of 26 settings on ten million rows and two cores, of 0 to 4 workers, 2 to 8 units ahead,
# and batches or row groups as units: three workers for heavy work (82c07bd), and none without work
# (e1ae195), where the threads of pyarrow decode a row group.
_WORKERS_PER_CORE: Final = 1.5
_UNITS_AHEAD: Final = 8


class Shipped(IterableDataset[Any]):
    """The row groups that a worker makes and sends."""

    def __init__(self, workload: Workload) -> None:
        self._groups = RowGroups(workload)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if worker is None:
            yield from (self._groups.make(i, threads=True) for i in range(len(self._groups)))
            return
        for index in range(worker.id, len(self._groups), worker.num_workers):
            slots, buffer = pack_arrays(self._groups.make(index))
            yield slots, torch.from_numpy(buffer)


class TorchLoader:
    """Epochs by a DataLoader."""

    def __init__(self, workload: Workload) -> None:
        self._batch_size = workload.batch_size
        options: dict[str, Any] = {"batch_size": None, "collate_fn": _return_as_is}
        self._has_workers = workload.level != "none"
        if self._has_workers:
            options |= {
                "num_workers": round(_WORKERS_PER_CORE * num_cores()),
                "prefetch_factor": _UNITS_AHEAD,
                "persistent_workers": True,
                "multiprocessing_context": "fork",
            }
        self._loader = DataLoader(Shipped(workload), **options)

    def batches(self) -> Iterator[Batch]:
        """Yield the next epoch's batches."""
        chunks: Iterator[Any] = iter(self._loader)
        if self._has_workers:
            chunks = (unpack_arrays(slots, buffer.numpy()) for slots, buffer in chunks)
        return cut(chunks, self._batch_size)


def _return_as_is(value: Any) -> Any:
    return value
