"""Threads of the trainer's own process: nothing is copied from one process to another.

Each thread takes the next row group, decodes it (pyarrow releases the lock meanwhile) and does the
work; few pieces are made ahead. An engineer can write this by hand, without a framework.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import torch

from benchmarks.dataloading.work.arrow_work import Arrays, make_piece, to_numpy
from benchmarks.dataloading.work.batching import cut, to_tensors
from benchmarks.dataloading.work.row_groups import (
    Columns,
    Footers,
    Unit,
    list_units,
    read_spam,
    read_unit,
)
from benchmarks.dataloading.workloads import ROW_ID_COLUMNS, Workload
from pipeline_runtime.batches import ROW_WEIGHT, Batch

_NUM_THREADS = 2
Made = TypeVar("Made")


class ThreadsLoader:
    """Epochs by threads."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._footers = Footers()
        self._units = list_units(workload, self._footers)
        self._spam = read_spam(workload)

    def batches(self) -> Iterator[Batch]:
        """Yield the next epoch's batches."""
        return cut(map(to_tensors, self._ahead(self._make)), self._workload.batch_size)

    def _make(self, unit: Unit) -> Arrays:
        return make_piece(unit, self._workload, self._spam, self._footers)

    def _ahead(self, make: Callable[[Unit], Made]) -> Iterator[Made]:
        """Yield what `make` returns for each unit, in order; at most two per thread at a time."""
        coming = iter(self._units)
        waiting: deque[Future[Made]] = deque()
        pool = ThreadPoolExecutor(_NUM_THREADS, "ahead")
        try:
            for unit in islice(coming, 2 * _NUM_THREADS):
                waiting.append(pool.submit(make, unit))
            while waiting:
                made = waiting.popleft().result()
                for unit in islice(coming, 1):
                    waiting.append(pool.submit(make, unit))
                yield made
        finally:
            pool.shutdown(cancel_futures=True)


class FloorLoader(ThreadsLoader):
    """Epochs of decoding alone: pyarrow reads row groups, and nothing else is done.

    No loader that leaves the same columns to pyarrow can be faster. Batches are the identities of
    the rows, views of the decoded columns, which prove that every row was read. The floor is also
    the calibration of a round.
    """

    def batches(self) -> Iterator[Batch]:
        """Yield the identities of the rows, row group by row group."""
        return map(_identities, self._ahead(self._read))

    def _read(self, unit: Unit) -> Columns:
        return read_unit(unit, self._workload, self._footers)


def _identities(columns: Columns) -> Batch:
    batch = {}
    for name in ROW_ID_COLUMNS:
        values, places = to_numpy(columns.arrays[name]), columns.places(name, None)
        batch[name] = torch.from_numpy(values if places is None else values[places])
    return batch | {ROW_WEIGHT: torch.ones(columns.num_rows)}
