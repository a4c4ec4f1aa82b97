"""Steps of some intervals: the number that is enough for a share, a block and an estimate.

Counters that are read in the middle of a step contain its rows but not all of its seconds, so they
need several steps. The trainers' clock contains finished steps only, so a few long steps are enough
for it. Without the clock, changes are found six minutes later in scenario "long steps".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dataset_operator.autoscaling.interface import PERIOD_SECONDS
from dataset_operator.autoscaling.signals import Interval

# Steps that an estimate of the demand needs (docs/autoscaling.md).
MIN_STEPS = 20.0
# Steps that a block of intervals needs.
MIN_BLOCK_STEPS = 5.0
# A wait is recorded when it ends, so a share of waits covers at least this many steps.
_MIN_SHARE_STEPS = 3.0
# Steps are long if a period contains fewer than a block needs.
_LONG_STEP_SECONDS = PERIOD_SECONDS / MIN_BLOCK_STEPS
# By the trainers' clock, this much time in long steps is enough, if it contains enough of them.
_LONG_SHARE_SECONDS = 30.0
_LONG_BLOCK_SECONDS, _MIN_LONG_BLOCK_STEPS = 30.0, 2.0
_LONG_ESTIMATE_SECONDS, _MIN_LONG_STEPS = 60.0, 4.0


@dataclass(slots=True)
class Steps:
    """Sums over intervals, of all steps by the loop, and of the finished ones by the clock.

    Attributes:
        seconds: without waits for production.
        has_clock: True if every interval has the totals of the clock.
    """

    steps: float = 0.0
    rows: float = 0.0
    seconds: float = 0.0
    clock_steps: float = 0.0
    clock_rows: float = 0.0
    clock_seconds: float = 0.0
    has_clock: bool = True

    def add(self, interval: Interval) -> None:
        """Add the steps of an interval."""
        self.steps += interval.steps
        self.rows += interval.rows
        self.seconds += interval.unstarved_seconds
        if (clock := interval.clock) is None:
            self.has_clock = False
        else:
            self.clock_steps += clock.steps
            self.clock_rows += clock.rows
            self.clock_seconds += clock.seconds

    @property
    def are_long(self) -> bool:
        """Return whether the clock shows long steps, so that it measures them."""
        return self.has_clock and self.clock_seconds > _LONG_STEP_SECONDS * self.clock_steps > 0.0

    @property
    def measured(self) -> tuple[float, float]:
        """Rows and seconds, of the clock if steps are long, of the loop otherwise."""
        if self.are_long:
            return self.clock_rows, self.clock_seconds
        return self.rows, self.seconds

    def make_share(self) -> bool:
        """Return whether these steps are enough for a share of waits."""
        if self.are_long:
            return self.clock_seconds >= _LONG_SHARE_SECONDS
        return self.steps >= _MIN_SHARE_STEPS

    def make_block(self) -> bool:
        """Return whether these steps are enough for a block."""
        if self.are_long:
            is_enough = self.clock_steps >= _MIN_LONG_BLOCK_STEPS
            return is_enough and self.clock_seconds >= _LONG_BLOCK_SECONDS
        return self.steps >= MIN_BLOCK_STEPS

    def make_estimate(self) -> bool:
        """Return whether these steps are enough for an estimate of the demand."""
        if self.are_long:
            is_enough = self.clock_steps >= _MIN_LONG_STEPS
            return is_enough and self.clock_seconds >= _LONG_ESTIMATE_SECONDS
        return self.steps >= MIN_STEPS


def sum_steps(intervals: Iterable[Interval]) -> Steps:
    """Return the steps of all intervals."""
    found = Steps()
    for interval in intervals:
        found.add(interval)
    return found
