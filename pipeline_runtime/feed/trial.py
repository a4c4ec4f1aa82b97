"""Which of two ways to make a stream's pieces costs less, told by the pieces themselves.

Both give the same rows, and which is cheaper depends on the table, the steps and the machine. A
reader tries both on its first groups, goes on with the cheaper one, and tries the other now and
then, since tables change on their way and machines do other things.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from pipeline_runtime.feed.pieces import Header, Piece

# Of each way so many late pieces count, by the cheapest: what else runs only makes them dearer.
_NUM_LATE: Final = 4
# Every so many groups the dearer way is tried; it may cost twice as much, so 3 % at most.
_TRY_EVERY: Final = 32


class Trial:
    """What the pieces of two ways cost; a way is True or False."""

    def __init__(self) -> None:
        self._costs = {way: deque[float](maxlen=_NUM_LATE) for way in (True, False)}
        self._num_chosen = 0

    def choose(self) -> bool:
        """The way of the next group."""
        self._num_chosen += 1
        is_known = all(len(costs) == _NUM_LATE for costs in self._costs.values())
        if not is_known:
            return self._num_chosen % 2 == 1
        cheaper = min(self._costs[True]) <= min(self._costs[False])
        return cheaper != (self._num_chosen % _TRY_EVERY == 0)

    def watch(self, pieces: Iterator[Piece], way: bool) -> Iterator[Piece]:
        """The pieces of a group, whose costs are added."""
        for piece in pieces:
            if piece.header.counts[0].rows:
                self._costs[way].append(_cost_of(piece.header))
            yield piece


def _cost_of(header: Header) -> float:
    """Seconds a row that was read, of reading and of all steps."""
    read, *steps = header.counts
    return (header.read_seconds + sum(step.seconds for step in steps)) / read.rows
