"""Threads of the trainer's own process: nothing is copied from one process to another.

Each thread takes the next row group, decodes it (pyarrow releases the lock meanwhile) and does the
work; few chunks are made ahead. An engineer can write this by hand, without a framework.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from benchmarks.dataloading.loaders.row_groups import RowGroups, cut
from benchmarks.dataloading.workloads import Workload
from pipeline_runtime.arrays.conversion import Arrays
from pipeline_runtime.batches import Batch

_NUM_THREADS = 2


class ThreadsLoader:
    """Epochs by threads."""

    def __init__(self, workload: Workload) -> None:
        self._batch_size = workload.batch_size
        self._groups = RowGroups(workload)

    def batches(self) -> Iterator[Batch]:
        """Yield the next epoch's batches."""
        return cut(self._make_ahead(), self._batch_size)

    def _make_ahead(self) -> Iterator[Arrays]:
        """Yield the row groups in order; at most two per thread are made ahead."""
        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            coming = (pool.submit(self._groups.make, i) for i in range(len(self._groups)))
            waiting = deque(islice(coming, 2 * _NUM_THREADS))
            while waiting:
                made = waiting.popleft().result()
                waiting.extend(islice(coming, 1))
                yield made
