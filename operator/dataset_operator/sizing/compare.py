"""Simulates every policy for the same run with the same seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from dataset_operator.autoscaling import Decision
from dataset_operator.simulation.loop import AutoscalingPolicy, Moment, Trace, simulate
from dataset_operator.simulation.setting import Setting
from dataset_operator.sizing.document import Curve, Outcome, PolicyName, WholeRun
from dataset_operator.sizing.scalers import Autoscaler, Constant
from dataset_operator.sizing.simulated_run import SECONDS_PER_HOUR, Assumed, Run

# Simulations per policy, so that a lucky one does not decide; the figures are their means.
TIMES = 3
# The settled number is taken from this share of a simulation, at its end.
_SETTLED_SHARE = 1.0 / 3.0
# A number is not settled if workers differ from it for a longer share of that time.
_MAX_UNSETTLED_SHARE = 0.1
# Simulations whose numbers differ by a larger share have no common result.
_MAX_APART_SHARE = 0.1
# Points of a curve: a picture is 550 pixels wide.
_MAX_POINTS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A compared policy: a constant number of workers; None: the autoscaling policy."""

    name: PolicyName
    workers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Outcomes of all policies, and the autoscaling policy's last decision."""

    outcomes: tuple[Outcome, ...]
    curves: tuple[Curve, ...]
    last: Decision


def list_policies(run: Run) -> tuple[Policy, ...]:
    """Return the autoscaling policy, and the constants that a user might choose instead."""
    return (
        Policy(name="autoscaler"),
        Policy(name="minReplicas", workers=run.rules.min_workers),
        Policy(name="advised", workers=run.advised),
        Policy(name="maxReplicas", workers=run.rules.max_workers),
    )


def compare(
    run: Run, assumed: Assumed, tell: Callable[[str], None] = lambda what: None
) -> Compared:
    """Simulate every policy; equal constants are simulated once.

    Args:
        tell: called with the name of the policy that is simulated next.
    """
    known: dict[int | None, list[Trace]] = {}
    outcomes, curves, autoscalers = [], [], []
    for policy in list_policies(run):
        tell(policy.name)
        if policy.workers not in known:
            found = [_simulate(run, policy, assumed.seed + index) for index in range(TIMES)]
            known[policy.workers] = [trace for trace, _ in found]
            autoscalers += [scaler for _, scaler in found if isinstance(scaler, Autoscaler)]
        traces = known[policy.workers]
        outcomes.append(_sum_up(policy, traces, run, assumed))
        curves.append(build_curve(policy.name, traces[0].moments))
    last = autoscalers[0].last
    assert last is not None, "a simulation has at least one period"
    return Compared(outcomes=tuple(outcomes), curves=tuple(curves), last=last)


def _simulate(run: Run, policy: Policy, seed: int) -> tuple[Trace, AutoscalingPolicy]:
    workers = policy.workers
    scaler: AutoscalingPolicy = Autoscaler(run.rules) if workers is None else Constant(workers)
    return simulate(_setting_of(run, policy), lambda _: scaler, seed), scaler


def _setting_of(run: Run, policy: Policy) -> Setting:
    n = policy.workers
    if n is None:
        return run.setting
    return replace(run.setting, min_workers=n, max_workers=n, first_workers=n)


def _sum_up(policy: Policy, traces: Sequence[Trace], run: Run, assumed: Assumed) -> Outcome:
    lasts = [trace.moments[-1] for trace in traces]
    seconds, samples = _mean([m.at for m in lasts]), _mean([m.rows for m in lasts])
    paid = _mean([m.paid_seconds for m in lasts])
    settled, since = find_common([find_settled(trace.moments) for trace in traces])
    spent = _spend(seconds, paid, run, assumed)
    return Outcome(
        name=policy.name,
        replicas=policy.workers,
        workers_mean=paid / seconds,
        workers_settled=settled,
        workers_max=max(moment.desired for trace in traces for moment in trace.moments),
        settled_seconds=since,
        idle_ratio=_mean([m.production_seconds / m.at for m in lasts]),
        settled_idle_ratio=_mean([_idle_at_last(trace.moments) for trace in traces]),
        samples=samples,
        is_complete=all(trace.has_ended for trace in traces),
        hours=spent.hours,
        worker_hours=spent.worker_hours,
        gpu_hours=spent.gpu_hours,
        cost=spent.cost,
        cost_per_million=1e6 * spent.cost / samples if samples else None,
        whole_run=_sum_up_whole(traces, run, assumed),
    )


def _sum_up_whole(traces: Sequence[Trace], run: Run, assumed: Assumed) -> WholeRun | None:
    if not all(trace.moments[-1].rows for trace in traces):
        return None
    whole = [_extend(trace.moments, float(run.samples)) for trace in traces]
    return _spend(_mean([s for s, _ in whole]), _mean([p for _, p in whole]), run, assumed)


def _spend(seconds: float, paid_seconds: float, run: Run, assumed: Assumed) -> WholeRun:
    gpu_hours = run.gpus * seconds / SECONDS_PER_HOUR
    worker_hours = paid_seconds / SECONDS_PER_HOUR
    return WholeRun(
        hours=seconds / SECONDS_PER_HOUR,
        worker_hours=worker_hours,
        gpu_hours=gpu_hours,
        cost=gpu_hours * assumed.gpu_hour_price + worker_hours * assumed.worker_hour_price,
    )


Settled = tuple[int, float]


def find_common(settled: Sequence[Settled | None]) -> tuple[int | None, float | None]:
    """Return the median number, and the longest settling time; None: the numbers differ."""
    known = [each for each in settled if each is not None]
    numbers = sorted(number for number, _ in known)
    if len(known) < len(settled):
        return None, None
    if numbers[-1] - numbers[0] > max(1.0, _MAX_APART_SHARE * numbers[-1]):
        return None, None
    return statistics.median_low(numbers), max(since for _, since in known)


def find_settled(moments: Sequence[Moment]) -> Settled | None:
    """Return the settled number, and the time since which it held within one; None: it varied."""
    late = _last_part(moments)
    settled = statistics.mode(moment.ready for moment in late)
    off = [moment for moment in late if abs(moment.ready - settled) > 1]
    if len(off) > _MAX_UNSETTLED_SHARE * len(late):
        return None
    start = len(moments) - len(late)
    # Within the last part, a pod that is lost for a while does not count.
    before = [i for i in range(start) if abs(moments[i].ready - settled) > 1]
    return settled, moments[before[-1] + 1].at if before else 0.0


def _idle_at_last(moments: Sequence[Moment]) -> float:
    late = _last_part(moments)
    waited = late[-1].production_seconds - late[0].production_seconds
    return waited / max(late[-1].at - late[0].at, 1.0)


def _last_part(moments: Sequence[Moment]) -> Sequence[Moment]:
    return moments[int((1.0 - _SETTLED_SHARE) * len(moments)) :]


def _extend(moments: Sequence[Moment], samples: float) -> tuple[float, float]:
    """Return the seconds and paid worker seconds until this many samples are trained on."""
    if samples > moments[-1].rows:
        # The run ends within the last period, so that period is incomplete.
        last, middle = moments[-2], moments[len(moments) // 2]
        if last.rows == middle.rows:  # steps take minutes: use the whole run
            times = samples / moments[-1].rows
            return times * moments[-1].at, times * moments[-1].paid_seconds
        times = (samples - last.rows) / (last.rows - middle.rows)
        seconds = last.at + times * (last.at - middle.at)
        return seconds, last.paid_seconds + times * (last.paid_seconds - middle.paid_seconds)
    at, rows, paid = 0.0, 0.0, 0.0
    for moment in moments:
        if moment.rows >= samples:
            share = (samples - rows) / (moment.rows - rows) if moment.rows > rows else 1.0
            return at + share * (moment.at - at), paid + share * (moment.paid_seconds - paid)
        at, rows, paid = moment.at, moment.rows, moment.paid_seconds
    raise AssertionError("the last moment has all rows")


def build_curve(name: PolicyName, moments: Sequence[Moment]) -> Curve:
    """Return a trace with few points; waits are means between two of them."""
    stride = -(-len(moments) // _MAX_POINTS)
    kept = [moments[0], *moments[stride::stride]]
    if kept[-1] is not moments[-1]:
        kept.append(moments[-1])
    first = kept[0].production_seconds / kept[0].at
    waits = [
        (b.production_seconds - a.production_seconds) / (b.at - a.at) for a, b in pairwise(kept)
    ]
    return Curve(
        name=name,
        seconds=tuple(moment.at for moment in kept),
        asked=tuple(moment.desired for moment in kept),
        ready=tuple(moment.ready for moment in kept),
        # A wait is recorded when it ends, and may have begun before the previous point.
        idle_ratio=tuple(min(1.0, wait) for wait in (first, *waits)),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
