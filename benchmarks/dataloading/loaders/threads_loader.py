"""Threads of the trainer's own process: nothing is copied from one process to another.

Each thread takes the next row group, decodes it (pyarrow releases the lock meanwhile) and does the
work; few pieces are made ahead. An engineer can write this by hand, without a framework.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.dataloading.work.ahead import in_threads
from benchmarks.dataloading.work.arrow_work import Arrays
from benchmarks.dataloading.work.batching import cut, to_tensors
from benchmarks.dataloading.work.row_groups import Footers, Unit, list_units, make_piece, read_spam
from benchmarks.dataloading.workloads import Workload
from pipeline_runtime.batches import Batch

_NUM_THREADS = 2


class ThreadsLoader:
    """Epochs by threads."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._footers = Footers()
        self._units = list_units(workload, self._footers)
        self._spam = read_spam(workload)

    def batches(self) -> Iterator[Batch]:
        """Yield the next epoch's batches."""
        pieces = map(to_tensors, in_threads(self._make, self._units, _NUM_THREADS))
        return cut(pieces, self._workload.batch_size)

    def _make(self, unit: Unit) -> Arrays:
        return make_piece(unit, self._workload, self._spam, self._footers)

    def profile(self) -> dict[str, float]:
        """Return nothing: this loader counts no seconds."""
        return {}
