"""What the readers that serve a rank did with their time: what an autoscaler judges them by.

A piece comes with its maker's busy seconds and the gap before it. Whether in that gap there was
nothing to do, or nothing more that the trainer would take, the rank tells by whether it waited.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection
from dataclasses import dataclass, field

from pipeline_runtime.feed.base import Waited, WorkerUsage
from pipeline_runtime.feed.pieces import Header


@dataclass(slots=True)
class UsageMeter:
    """Adds the pieces of a rank to its `WorkerUsage`."""

    usage: WorkerUsage
    waited: Waited
    _waited_before: dict[str, float] = field(init=False, default_factory=dict)

    def deliver(self, reader: str, header: Header, num_units: int) -> None:
        """Add a piece that a reader made; `num_units` are whole with it."""
        usage, waited = self.usage, self.waited.production
        if header.counts:
            usage.read += header.counts[0].seconds
            usage.compute += sum(count.seconds for count in header.counts[1:])
        usage.compute += header.batching_seconds
        idle = min(header.gap_seconds, waited - self._waited_before.get(reader, 0.0))
        self._waited_before[reader] = waited
        usage.idle += idle
        usage.blocked_output += header.gap_seconds - idle
        usage.units += num_units


# Times the seconds a row of the reader in the middle from which on one is slow.
_SLOW = 2.0
# How much of a reader's pace a new piece replaces.
_PACE_SMOOTHING = 0.3


@dataclass(slots=True)
class Paces:
    """Seconds that each reader takes for a row that it reads."""

    _seconds_per_row: dict[str, float] = field(init=False, default_factory=dict)

    def note(self, reader: str, header: Header) -> None:
        """Count a piece that a reader made."""
        rows = header.counts[0].rows if header.counts else 0
        if not rows:
            return
        seconds = sum(count.seconds for count in header.counts) + header.batching_seconds
        pace = self._seconds_per_row.get(reader, seconds / rows)
        self._seconds_per_row[reader] = pace + _PACE_SMOOTHING * (seconds / rows - pace)

    def slow(self) -> Collection[str]:
        """Readers that are much slower than the one in the middle."""
        if len(self._seconds_per_row) < 2:
            return ()
        usual = statistics.median_low(self._seconds_per_row.values())
        return {name for name, pace in self._seconds_per_row.items() if pace > _SLOW * usual}
