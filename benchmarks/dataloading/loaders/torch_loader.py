"""A torch DataLoader over row groups, as a good engineer writes it; the unit it sends is tuned.

    batches      workers read row groups, do the work and send batches of exact size
    row groups   workers send whole row groups, each packed in one buffer, and the trainer slices
                 them: fewer messages between processes

Each row group is one unit of work, given to the workers in turn. Remaining rows wait for the next
row group, so only the last batch of each worker (or of the trainer) may be smaller. Workers are
forked, as torch does by default on Linux, and stay for the next epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.dataloading.jobs import ROW_GROUPS, Tuning
from benchmarks.dataloading.work.arrow_work import Arrays, make_piece
from benchmarks.dataloading.work.batching import cut, pack, to_tensors, unpack
from benchmarks.dataloading.work.row_groups import Footers, list_units, read_spam
from benchmarks.dataloading.workloads import Workload
from pipeline_runtime.batches import Batch


class Source(Protocol):
    """Source of a worker's rows."""

    def pieces(self) -> Iterator[Arrays]:
        """Yield this worker's part of an epoch, with the work done."""
        ...


class RowGroups:
    """Row groups, divided among the workers in turn."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._footers = Footers()
        self._units = list_units(workload, self._footers)
        self._spam = read_spam(workload)

    def pieces(self) -> Iterator[Arrays]:
        """See Source."""
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for unit in self._units[first::step]:
            # Without workers pyarrow's own threads are the only parallel ones.
            yield make_piece(
                unit, self._workload, self._spam, self._footers, threads=worker is None
            )


class Shipped(IterableDataset[Any]):
    """The batches that a worker makes of its source and sends to the trainer."""

    def __init__(self, source: Source, unit: str, batch_size: int) -> None:
        self._source = source
        self._unit = unit
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[Any]:
        if self._unit == ROW_GROUPS:
            return map(pack, self._source.pieces())
        return cut(map(to_tensors, self._source.pieces()), self._batch_size)


class TorchLoader:
    """Epochs by a DataLoader. Subclasses read by another source, or use another DataLoader."""

    source: ClassVar[Any] = RowGroups
    dataloader: ClassVar[Any] = DataLoader

    def __init__(self, workload: Workload, tuning: Tuning) -> None:
        self._unit = tuning.unit
        self._batch_size = workload.batch_size
        shipped = Shipped(self.source(workload), tuning.unit, workload.batch_size)
        self._loader = self.dataloader(shipped, **_arguments(tuning))

    def batches(self) -> Iterator[Batch]:
        """Yield the next epoch's batches."""
        if self._unit == ROW_GROUPS:
            pieces = (unpack(layout, buffer) for layout, buffer in self._loader)
            yield from cut(pieces, self._batch_size)
        else:
            yield from self._loader


def _arguments(tuning: Tuning) -> dict[str, Any]:
    plain: dict[str, Any] = {"batch_size": None, "collate_fn": _as_it_is}
    if not tuning.workers:
        return plain
    return plain | {
        "num_workers": tuning.workers,
        "prefetch_factor": tuning.prefetch,
        "persistent_workers": True,
        "multiprocessing_context": "fork",
    }


def _as_it_is(value: Any) -> Any:
    return value
