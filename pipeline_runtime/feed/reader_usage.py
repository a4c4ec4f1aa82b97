"""Time use of the readers that serve a rank, by which the autoscaler judges them.

A piece comes with its maker's busy seconds and the gap before it. Whether in that gap there was
nothing to do, or nothing more that the trainer would take, the rank tells by whether it waited.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from pipeline_runtime.feed.base import Waited, WorkerUsage
from pipeline_runtime.feed.leases import SLOW
from pipeline_runtime.feed.pieces import Header

# After its first piece a reader is not yet what it will be: it opens files, fills caches.
WARMING_SECONDS = 20.0


@dataclass(slots=True)
class UsageMeter:
    """Adds the pieces of one pass of a rank to its `WorkerUsage`, which outlives the pass."""

    usage: WorkerUsage
    waited: Waited
    clock: Callable[[], float] = time.monotonic
    _waited_before: dict[str, float] = field(init=False, default_factory=dict)

    def answer(self, workers: Sequence[str]) -> None:
        """Note the readers that answer now, each by the data worker that it is on."""
        working = [worker for worker in workers if worker in self.usage.delivered]
        self.usage.ready = len(workers)
        self.usage.workers, self.usage.workers_readers = len(set(working)), len(working)

    def deliver(self, reader: str, worker: str, header: Header, num_units: int) -> None:
        """Add a piece that a reader made; `num_units` are whole with it."""
        usage, waited = self.usage, self.waited.production
        usage.delivered.add(worker)
        read = header.counts[0].seconds if header.counts else 0.0
        compute = sum(count.seconds for count in header.counts[1:]) + header.batching_seconds
        usage.read += read
        usage.compute += compute
        usage.rows += header.num_rows
        now = self.clock()
        if now - usage.began.setdefault(reader, now) < WARMING_SECONDS:
            usage.warming_read += read
            usage.warming_compute += compute
            usage.warming_rows += header.num_rows
        idle = min(header.gap_seconds, waited - self._waited_before.get(reader, 0.0))
        self._waited_before[reader] = waited
        usage.idle += idle
        usage.blocked_output += header.gap_seconds - idle
        usage.units += num_units


# How much of a reader's pace a new piece replaces.
_PACE_SMOOTHING = 0.3


@dataclass(slots=True)
class Paces:
    """Seconds that each reader takes for a row that it reads; without its first piece.

    For that one it loads kernels and opens its first files.
    """

    _seconds_per_row: dict[str, float | None] = field(init=False, default_factory=dict)
    _seconds_per_piece: dict[str, float] = field(init=False, default_factory=dict)
    _read_seconds: float = field(init=False, default=0.0)
    _seconds: float = field(init=False, default=0.0)

    def note(self, reader: str, header: Header) -> None:
        """Count a piece that a reader made."""
        if reader not in self._seconds_per_row:
            self._seconds_per_row[reader] = None
            return
        seconds = sum(count.seconds for count in header.counts) + header.batching_seconds
        of_piece = self._seconds_per_piece.setdefault(reader, seconds)
        self._seconds_per_piece[reader] += _PACE_SMOOTHING * (seconds - of_piece)
        rows = header.counts[0].rows if header.counts else 0
        if not rows:
            return
        self._read_seconds += header.read_seconds
        self._seconds += seconds
        pace = self._seconds_per_row[reader]
        before = seconds / rows if pace is None else pace
        self._seconds_per_row[reader] = before + _PACE_SMOOTHING * (seconds / rows - before)

    @property
    def read_share(self) -> float:
        """Share of the readers' time spent on reading; 1 while nothing is known.

        Above 1 where rows are read ahead side by side: a part that is read over takes longer then
        than it takes in its turn.
        """
        return self._read_seconds / self._seconds if self._seconds else 1.0

    def seconds_per_piece(self, reader: str) -> float:
        """Return a reader's recent seconds per chunk; infinite before any is known."""
        return self._seconds_per_piece.get(reader, math.inf)

    def slow(self) -> Collection[str]:
        """Readers that are much slower than the one in the middle."""
        paces = {n: pace for n, pace in self._seconds_per_row.items() if pace is not None}
        if len(paces) < 2:
            return ()
        usual = statistics.median_low(paces.values())
        return {name for name, pace in paces.items() if pace > SLOW * usual}
