"""Adds up the waits of all ranks: at each step the longest wait of any rank.

Ranks step together, so while one rank stalls, the others look busy, and the largest share of any
single rank is too small. The sum of the longest waits is the time that the run lost. The waits are
part of the all-reduce by which ranks agree on each step anyway (`context`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline_runtime.feed.base import Waited

# The fields of `Waited` that keep a rank from its next step.
STAGES = ("production", "transfer", "batching", "collate")


@dataclass(slots=True)
class Lockstep:
    """The sums of the longest waits.

    Attributes:
        waited: the waits of this rank; only read.
        longest: seconds by stage since the attempt began, equal on all ranks.
    """

    waited: Waited
    longest: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    _before: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._before = self._read()

    def take_own(self) -> list[float]:
        """Return the seconds that this rank waited since the last call, by stage."""
        before, self._before = self._before, self._read()
        return [now - then for now, then in zip(self._before, before, strict=True)]

    def add(self, longest: Sequence[float]) -> None:
        """Add a step: for each stage the longest wait of any rank."""
        for stage, seconds in zip(STAGES, longest, strict=True):
            self.longest[stage] += seconds

    def _read(self) -> tuple[float, ...]:
        return tuple(getattr(self.waited, stage) for stage in STAGES)
