"""What the readers that serve a rank did with their time: what an autoscaler judges them by.

A piece comes with its maker's busy seconds and the gap before it. Whether in that gap there was
nothing to do, or nothing more that the trainer would take, the rank tells by whether it waited.
"""

from __future__ import annotations

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
        idle = min(header.gap_seconds, waited - self._waited_before.get(reader, 0.0))
        self._waited_before[reader] = waited
        usage.idle += idle
        usage.blocked_output += header.gap_seconds - idle
        usage.units += num_units
