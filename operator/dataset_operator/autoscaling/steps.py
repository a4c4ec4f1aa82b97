"""Steps of some intervals: the number that is enough for a share, a block and an estimate.

Counters that are read in the middle of a step contain its rows but not all of its seconds, so they
need several steps. The trainers' clock contains finished steps only, so a few long steps are enough
for it. Without the clock, changes are found six minutes later in scenario "long steps".
"""

from __future__ import annotations

from dataclasses import dataclass

from dataset_operator.autoscaling.interface import PERIOD_SECONDS
from dataset_operator.autoscaling.signals import Interval, StepTotals

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


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of some intervals.

    Attributes:
        loop: all steps by the counters of the loop.
        clock: finished steps by the trainers' clock; None: unknown.
    """

    loop: StepTotals
    clock: StepTotals | None

    def __add__(self, other: Steps) -> Steps:
        clock = None if self.clock is None or other.clock is None else self.clock + other.clock
        return Steps(self.loop + other.loop, clock)

    @property
    def long(self) -> StepTotals | None:
        """The clock's totals if steps are long; None otherwise."""
        clock = self.clock
        if clock is None or clock.seconds <= _LONG_STEP_SECONDS * clock.steps:
            return None
        return clock if clock.steps > 0.0 else None

    @property
    def totals(self) -> StepTotals:
        """The clock's totals if steps are long, the loop's otherwise."""
        return self.long or self.loop

    def make_share(self) -> bool:
        """Return whether these steps are enough for a share of waits."""
        if (long := self.long) is not None:
            return long.seconds >= _LONG_SHARE_SECONDS
        return self.loop.steps >= _MIN_SHARE_STEPS

    def make_block(self) -> bool:
        """Return whether these steps are enough for a block."""
        if (long := self.long) is not None:
            return long.steps >= _MIN_LONG_BLOCK_STEPS and long.seconds >= _LONG_BLOCK_SECONDS
        return self.loop.steps >= MIN_BLOCK_STEPS

    def make_estimate(self) -> bool:
        """Return whether these steps are enough for an estimate of the demand."""
        if (long := self.long) is not None:
            return long.steps >= _MIN_LONG_STEPS and long.seconds >= _LONG_ESTIMATE_SECONDS
        return self.loop.steps >= MIN_STEPS


_NOTHING = StepTotals(steps=0.0, rows=0.0, seconds=0.0)
NO_STEPS = Steps(_NOTHING, _NOTHING)


def read_steps(interval: Interval) -> Steps:
    """Return the steps of an interval."""
    seconds = interval.unstarved_seconds
    return Steps(
        StepTotals(steps=interval.steps, rows=interval.rows, seconds=seconds), interval.clock
    )
