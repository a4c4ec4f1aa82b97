"""Measures a simulated run: waits, cost, overshoot, settling and reversals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dataset_operator.autoscaling.interface import PERIOD_SECONDS, SCALE_DOWN_WINDOW_SECONDS
from dataset_operator.autoscaling.recommend import WINDOW_SECONDS
from dataset_operator.simulation.loop import Moment, Trace
from dataset_operator.simulation.setting import Setting
from pipeline_runtime.config import HEADROOM

# In the simulator, the slowest of twenty pods starts this share later than the median.
_LATEST_START = 0.25
_HOUR_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """The measures of one run, or the sums and maxima over several runs that share a cluster.

    The required workers are those that the true rates require, headroom included.

    Attributes:
        idle_share: seconds in which GPUs waited for production, as a share of all GPU seconds.
        overshoot_workers: the most that an upward move went above the required workers. A number
            that was already higher when the requirement fell does not count.
        settling_seconds: the longest time from a change of the truth until the desired number stays
            within one of the required workers and that many have been ready; None: it never did.
        unsettled: changes of the truth after which it did not, before the next change.
        steps: changes of the truth that left time to react before the next change.
        late_steps: steps after which the number was not within one of the required workers in time.
            The limit upwards is the latest start of a pod, a window and two periods; downwards, one
            stabilisation window and one more for each quarter to remove.
        reversals: moves of the desired number in the opposite direction of the move before.
        hours, turned_hours: hours of the run, the rest counted with the last; and the hours with a
            reversal.
        moves, up_moves: changes of the desired number, and the increases among them.
    """

    seconds: float
    rows: float
    idle_share: float
    worker_hours: float
    overshoot_workers: int
    settling_seconds: float | None
    unsettled: int
    steps: int
    late_steps: int
    reversals: int
    hours: int
    turned_hours: int
    moves: int
    up_moves: int
    has_ended: bool

    def cost_per_row(self, num_gpus: int, price_ratio: float) -> float:
        """Return the cost per row in worker seconds; a GPU second costs `price_ratio` of them."""
        gpu_seconds = num_gpus * self.seconds
        return (gpu_seconds * price_ratio + 3600.0 * self.worker_hours) / max(self.rows, 1.0)


def measure(trace: Trace) -> Measures:
    """Measure a trace, which must have moments."""
    moments = trace.moments
    last = moments[-1]
    desired = [moment.desired for moment in moments]
    steps = list(_judge_steps(moments, trace.setting))
    settled = list(_settle(moments))
    turns = [moments[i].at for i in find_turns(desired)]
    hours = max(1, math.floor(last.at / _HOUR_SECONDS))
    return Measures(
        seconds=last.at,
        rows=last.rows,
        idle_share=last.production_seconds / last.at,
        worker_hours=last.paid_seconds / _HOUR_SECONDS,
        overshoot_workers=_overshoot(moments),
        settling_seconds=max((s for s in settled if s is not None), default=None),
        unsettled=settled.count(None),
        steps=len(steps),
        late_steps=sum(not in_time for in_time in steps),
        reversals=len(turns),
        hours=hours,
        turned_hours=len({min(int(at // _HOUR_SECONDS), hours - 1) for at in turns}),
        moves=sum(a != b for a, b in pairwise(desired)),
        up_moves=sum(a < b for a, b in pairwise(desired)),
        has_ended=trace.has_ended,
    )


def measure_together(traces: Sequence[Trace]) -> Measures:
    """Measure runs that share a cluster as if they were one: each has its GPUs and its workers."""
    found = [measure(trace) for trace in traces]
    seconds = sum(each.seconds for each in found)
    settled = [s for each in found if (s := each.settling_seconds) is not None]
    return Measures(
        seconds=seconds,
        rows=sum(each.rows for each in found),
        idle_share=sum(each.idle_share * each.seconds for each in found) / seconds,
        worker_hours=sum(each.worker_hours for each in found),
        overshoot_workers=max(each.overshoot_workers for each in found),
        settling_seconds=max(settled, default=None),
        unsettled=sum(each.unsettled for each in found),
        steps=sum(each.steps for each in found),
        late_steps=sum(each.late_steps for each in found),
        reversals=sum(each.reversals for each in found),
        hours=sum(each.hours for each in found),
        turned_hours=sum(each.turned_hours for each in found),
        moves=sum(each.moves for each in found),
        up_moves=sum(each.up_moves for each in found),
        has_ended=all(each.has_ended for each in found),
    )


def find_turns(desired: Sequence[int]) -> list[int]:
    """Return the positions of moves in the opposite direction of the move before."""
    moves = [i for i in range(1, len(desired)) if desired[i] != desired[i - 1]]
    is_up = {i: desired[i] > desired[i - 1] for i in moves}
    return [now for before, now in pairwise(moves) if is_up[before] != is_up[now]]


def _wanted(moment: Moment) -> int:
    return moment.truth.required(HEADROOM)


def _find_changes(moments: Sequence[Moment]) -> list[int]:
    return [i for i in range(1, len(moments)) if moments[i].truth != moments[i - 1].truth]


def _overshoot(moments: Sequence[Moment]) -> int:
    most, fewest = 0, moments[0].desired
    for before, after in pairwise(moments):
        fewest = before.desired if after.truth != before.truth else min(fewest, before.desired)
        if after.desired > before.desired:
            most = max(most, after.desired - max(_wanted(after), fewest))
    return most


def _judge_steps(moments: Sequence[Moment], setting: Setting) -> Iterator[bool]:
    """Yield, for each change of the truth that left time to react, whether the number was right."""
    for start, end in pairwise([*_find_changes(moments), len(moments)]):
        before, after = moments[start - 1].desired, _wanted(moments[start])
        after = min(max(after, setting.min_workers), setting.max_workers)
        if after > before:
            seconds = (1.0 + _LATEST_START) * setting.start_seconds  # which is a median
            seconds += WINDOW_SECONDS + 2.0 * PERIOD_SECONDS
        else:
            quarters = math.ceil(math.log(before / after) / math.log(4.0 / 3.0))
            seconds = (1 + quarters) * SCALE_DOWN_WINDOW_SECONDS
        due = start + math.ceil(seconds / PERIOD_SECONDS)
        if due < end:
            yield _is_asked_for(moments[due], after) and _is_there(moments[due], after)


def _is_asked_for(moment: Moment, workers: int) -> bool:
    """Return whether about this many workers, or all that the cluster can place, are desired."""
    most = min(workers, moment.capacity)
    return most - 1 <= moment.desired <= workers + 1


def _is_there(moment: Moment, workers: int) -> bool:
    return moment.ready >= min(workers, moment.capacity) - 1


def _settle(moments: Sequence[Moment]) -> Iterator[float | None]:
    """Yield the settling time after the start and each change of the truth; None: never settled.

    Pods that are lost later do not count, since no autoscaling policy replaces them.
    """
    for start, end in pairwise([0, *_find_changes(moments), len(moments)]):
        phase, wanted = moments[start:end], _wanted(moments[start])
        off = [i for i, moment in enumerate(phase) if not _is_asked_for(moment, wanted)]
        there = [i for i, moment in enumerate(phase) if _is_there(moment, wanted)]
        asked = off[-1] + 1 if off else 0
        if asked == len(phase) or not there:
            yield None
        else:
            yield max(asked, there[0]) * PERIOD_SECONDS
