"""Choose the cheaper of two ways to make a stream's pieces by measuring both.

Both give the same rows. Their costs depend on the table, the steps and the machine. A reader tries
both on its first groups and continues with the cheaper one. It tries the other one from time to
time, since tables and the load of machines change.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from pipeline_runtime.feed.pieces import Piece

# Of each way so many late groups count, by the cheapest: what else runs only makes them dearer.
_NUM_LATE: Final = 4
# Every so many groups the dearer way is tried; it may cost twice as much, so 3 % at most.
_TRY_EVERY: Final = 32


class Trial:
    """Costs of groups made in two ways, in CPU seconds; a way is True or False."""

    def __init__(self) -> None:
        # Replaced, not changed: one thread may choose while another adds.
        self._costs: dict[bool, tuple[float, ...]] = {True: (), False: ()}
        self._num_chosen = 0

    def choose(self) -> bool:
        """The way of the next group."""
        self._num_chosen += 1
        if any(len(costs) < _NUM_LATE for costs in self._costs.values()):
            return self._num_chosen % 2 == 1
        cheaper = min(self._costs[True]) <= min(self._costs[False])
        return cheaper != (self._num_chosen % _TRY_EVERY == 0)

    def watch(self, pieces: Iterator[Piece], way: bool) -> Iterator[Piece]:
        """All pieces of a group, whose cost is added with the last of them."""
        spent, num_rows = 0.0, 0
        started = time.thread_time()
        for piece in pieces:
            header = piece.header
            spent += time.thread_time() - started + header.apart_seconds
            num_rows += header.counts[0].rows
            if header.is_last and num_rows:
                self.add(way, spent / num_rows)
            yield piece
            started = time.thread_time()

    def add(self, way: bool, cost: float) -> None:
        """Count a group of a way; its cost a row."""
        self._costs[way] = (*self._costs[way], cost)[-_NUM_LATE:]
