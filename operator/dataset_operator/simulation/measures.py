"""What came of a simulated run, in the measures of the design («How it is judged»)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dataset_operator.autoscaling.decision import (
    HEADROOM,
    PERIOD_SECONDS,
    SCALE_DOWN_WINDOW_SECONDS,
)
from dataset_operator.autoscaling.recommend import WINDOW_SECONDS
from dataset_operator.simulation.loop import Moment, Trace
from dataset_operator.simulation.setting import Setting

# The slowest of twenty pods starts so much later than the median, in the plant.
_LATEST_START = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Of one run.

    Attributes:
        idle_share: GPU-idle seconds by waits for production, as a share of all GPU seconds.
        overshoot_workers: the most above ⌈D (1 + h) ÷ μ⌉ with true values, beyond what the run
            began with.
        settling_seconds: after each change of the truth, the longest until the number stays within
            one of that; None: there was no change, or it never did.
        steps: changes of the truth that had time to be answered before the next.
        late_steps: of these, after which the number was not within one of the truth in time:
            L + W + 2 P upwards, so many windows of stabilisation downwards as quarters need.
        reversals: sign changes of moves of the desired number.
    """

    seconds: float
    rows: float
    idle_share: float
    worker_hours: float
    overshoot_workers: int
    settling_seconds: float | None
    steps: int
    late_steps: int
    reversals: int
    moves: int
    has_ended: bool

    def cost_per_row(self, num_gpus: int, price_ratio: float) -> float:
        """J in worker seconds a row, a GPU second costing `price_ratio` worker seconds."""
        gpu_seconds = num_gpus * self.seconds
        return (gpu_seconds * price_ratio + 3600.0 * self.worker_hours) / max(self.rows, 1.0)


def measure(trace: Trace) -> Measures:
    """The measures of a trace that has moments."""
    moments = trace.moments
    last = moments[-1]
    desired = [moment.desired for moment in moments]
    steps = list(_judge_steps(moments, trace.setting))
    return Measures(
        seconds=last.at,
        rows=last.rows,
        idle_share=last.production_seconds / last.at,
        worker_hours=last.paid_seconds / 3600.0,
        overshoot_workers=_overshoot(moments),
        settling_seconds=_settling(moments),
        steps=len(steps),
        late_steps=sum(not in_time for in_time in steps),
        reversals=count_reversals(desired),
        moves=sum(a != b for a, b in pairwise(desired)),
        has_ended=trace.has_ended,
    )


def count_reversals(desired: Sequence[int]) -> int:
    """How often a move goes the other way than the one before it."""
    signs = [math.copysign(1.0, b - a) for a, b in pairwise(desired) if a != b]
    return sum(a != b for a, b in pairwise(signs))


def _wanted(moment: Moment) -> int:
    return moment.truth.needed(HEADROOM)


def _overshoot(moments: Sequence[Moment]) -> int:
    """Only moves upwards can overshoot: who falls behind a falling need has not."""
    over = [
        after.desired - max(_wanted(after), before.desired)
        for before, after in pairwise(moments)
        if after.desired > before.desired
    ]
    return max([0, *over])


def _judge_steps(moments: Sequence[Moment], setting: Setting) -> Iterator[bool]:
    """Whether the number was right in time, for each change of the truth that had the time."""
    changes = [i for i in range(1, len(moments)) if moments[i].truth != moments[i - 1].truth]
    for start, end in pairwise([*changes, len(moments)]):
        before, after = moments[start - 1].desired, _wanted(moments[start])
        after = min(max(after, setting.min_workers), setting.max_workers)
        if after > before:
            seconds = (1.0 + _LATEST_START) * setting.start_seconds  # L is a median
            seconds += WINDOW_SECONDS + 2.0 * PERIOD_SECONDS
        else:
            quarters = math.ceil(math.log(before / after) / math.log(4.0 / 3.0))
            seconds = (1 + quarters) * SCALE_DOWN_WINDOW_SECONDS
        due = start + math.ceil(seconds / PERIOD_SECONDS)
        if due < end:
            yield abs(moments[due].desired - after) <= 1 and moments[due].ready >= after - 1


def _settling(moments: Sequence[Moment]) -> float | None:
    longest: float | None = None
    starts = [0, *(i for i in range(1, len(moments)) if moments[i].truth != moments[i - 1].truth)]
    for start, end in pairwise([*starts, len(moments)]):
        off = [i for i in range(start, end) if abs(moments[i].ready - _wanted(moments[i])) > 1]
        if off and off[-1] == end - 1:
            continue  # it never settles; the other measures tell
        seconds = (off[-1] + 1 - start) * PERIOD_SECONDS if off else 0.0
        longest = seconds if longest is None else max(longest, seconds)
    return longest
