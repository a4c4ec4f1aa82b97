"""The course of a real or simulated run, and its compared figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.simulator.profiles import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A run at the end of a control period, before the decision; sums since its start.

    Attributes:
        at: seconds since the first worker began.
        desired: requested workers.
        ready: workers that have delivered rows.
        idle_seconds: time that the trainers have waited for rows that no worker had made.
    """

    at: float
    desired: int
    ready: int
    rows: float
    idle_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Points in order, the last when all rows were trained."""

    points: Sequence[Point]

    @property
    def rows_per_second(self) -> float:
        return self.points[-1].rows / self.points[-1].at

    @property
    def idle_seconds(self) -> float:
        return self.points[-1].idle_seconds

    @property
    def mean_ready(self) -> float:
        """Mean of the ready workers over the run."""
        points = self.points
        spent = sum(before.ready * (after.at - before.at) for before, after in pairwise(points))
        return spent / (points[-1].at - points[0].at)

    def settled(self, profile: Profile) -> list[int]:
        """Return the workers requested at the end of each phase."""
        last = {profile.phase_at(point.rows): point.desired for point in self.points}
        return [last[place] for place in sorted(last)]
