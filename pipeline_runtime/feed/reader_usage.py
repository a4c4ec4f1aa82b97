"""Measures the time of a rank's readers by what they did; the autoscaler decides by it.

A chunk has the busy seconds of its reader and the gap before them. If the rank waited for chunks
during that gap, the reader was idle; otherwise its output was blocked, since enough chunks were
ahead of the trainer.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from pipeline_runtime.feed.base import Waited, WorkerUsage
from pipeline_runtime.feed.chunk import Header
from pipeline_runtime.feed.leases import SLOW

# A reader is slower for so long after its first chunk, while it opens files and fills caches.
WARMING_SECONDS = 20.0


@dataclass(slots=True)
class UsageMeter:
    """Adds the chunks of one pass of a rank to its `WorkerUsage`, which outlives the pass."""

    usage: WorkerUsage
    waited: Waited
    clock: Callable[[], float] = time.monotonic
    _waited_before: dict[str, float] = field(init=False, default_factory=dict)

    def answer(self, workers: Sequence[str]) -> None:
        """Record the readers that answer now, each by its data worker."""
        working = [worker for worker in workers if worker in self.usage.delivered]
        self.usage.ready = len(workers)
        self.usage.workers, self.usage.workers_readers = len(set(working)), len(working)

    def deliver(self, reader: str, worker: str, header: Header, num_units: int) -> None:
        """Add a chunk that a reader made, with which `num_units` row groups are complete."""
        usage, waited = self.usage, self.waited.production
        usage.delivered.add(worker)
        read = header.counts[0].seconds if header.counts else 0.0
        compute = sum(count.seconds for count in header.counts[1:]) + header.batching_seconds
        usage.read += read
        usage.compute += compute
        usage.inference += header.waiting_seconds
        usage.rows += header.num_rows
        now = self.clock()
        if now - usage.began.setdefault(reader, now) < WARMING_SECONDS:
            usage.warming_read += read
            usage.warming_compute += compute
            usage.warming_inference += header.waiting_seconds
            usage.warming_rows += header.num_rows
        idle = min(header.gap_seconds, waited - self._waited_before.get(reader, 0.0))
        self._waited_before[reader] = waited
        usage.idle += idle
        usage.blocked_output += header.gap_seconds - idle
        usage.units += num_units


# Weight of a new chunk in the moving average of a reader's pace.
_PACE_SMOOTHING = 0.3


@dataclass(slots=True)
class Paces:
    """Seconds per row of each reader, without its first chunk.

    For the first chunk a reader also loads kernels and opens files.
    """

    _seconds_per_row: dict[str, float | None] = field(init=False, default_factory=dict)
    _seconds_per_chunk: dict[str, float] = field(init=False, default_factory=dict)
    _read_seconds: float = field(init=False, default=0.0)
    _seconds: float = field(init=False, default=0.0)

    def note(self, reader: str, header: Header) -> None:
        """Count a chunk that a reader made."""
        if reader not in self._seconds_per_row:
            self._seconds_per_row[reader] = None
            return
        seconds = sum(count.seconds for count in header.counts) + header.batching_seconds
        seconds += header.waiting_seconds
        of_chunk = self._seconds_per_chunk.setdefault(reader, seconds)
        self._seconds_per_chunk[reader] += _PACE_SMOOTHING * (seconds - of_chunk)
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
        """Share of the readers' time that reading takes; 1 before it is known.

        It is above 1 if several row groups are read ahead at the same time, since each of them then
        takes longer than it would alone.
        """
        return self._read_seconds / self._seconds if self._seconds else 1.0

    def seconds_per_chunk(self, reader: str) -> float:
        """Return the recent seconds per chunk of a reader; infinite before they are known."""
        return self._seconds_per_chunk.get(reader, math.inf)

    def slow(self) -> Collection[str]:
        """Return the readers that are much slower than the median reader."""
        paces = {n: pace for n, pace in self._seconds_per_row.items() if pace is not None}
        if len(paces) < 2:
            return ()
        usual = statistics.median_low(paces.values())
        return {name for name, pace in paces.items() if pace > SLOW * usual}
