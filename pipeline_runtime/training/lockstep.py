"""The waits of all ranks as one: of each step the longest of any.

Ranks move in step, so a stall of one looks busy on the others, and the largest of their own shares
tells too little. The sum over steps of the longest wait tells what the run lost. It rides on the
all-reduce by which ranks agree on each step anyway (`context`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline_runtime.feed.base import Waited

# Of `Waited`, what keeps a rank from its next step.
STAGES = ("production", "transfer", "batching", "collate")


@dataclass(slots=True)
class Lockstep:
    """Adds up the longest waits.

    Attributes:
        waited: this rank's own; only read.
        longest: seconds by stage since the attempt began, the same on every rank.
    """

    waited: Waited
    longest: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    _before: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._before = self._read()

    def take_own(self) -> list[float]:
        """Seconds of this rank since the last call, by stage."""
        before, self._before = self._before, self._read()
        return [now - then for now, then in zip(self._before, before, strict=True)]

    def add(self, longest: Sequence[float]) -> None:
        """Add a step's: of every stage the most of what the ranks took."""
        for stage, seconds in zip(STAGES, longest, strict=True):
            self.longest[stage] += seconds

    def _read(self) -> tuple[float, ...]:
        return tuple(getattr(self.waited, stage) for stage in STAGES)
