"""Recommends the number of workers from the signals: rules in order, the first answer counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dataset_operator.autoscaling.bottleneck import find_bottleneck, is_starved
from dataset_operator.autoscaling.estimates import Estimate
from dataset_operator.autoscaling.interface import (
    DESIRED_WITHIN_RANGE,
    EARLY_SECONDS,
    METRICS_UNKNOWN,
    SATURATION_POINT_REACHED,
    SCALE_UP_LIMIT,
    UNSCHEDULABLE,
    Rules,
    Verdict,
)
from dataset_operator.autoscaling.intervals import MAX_GROWTH, Memory
from dataset_operator.autoscaling.signals import FIRST_START_SECONDS, Interval, Sample

# If reading is most of the work, storage may be the limit, and `Memory.growth` bounds a move.
_MOST = 0.5
_ROUNDING_SECONDS = 1e-6
# The number for an infinite demand; more than any spec allows.
_UNBOUNDED = 10**9
# Without an estimate, trainers that wait for this share of their time have far too few workers.
COLD_WAIT_SHARE = 0.5
# Periods over which waits are measured; a wait is recorded when it ends, perhaps in a later one.
_COLD_INTERVALS = 8
# W: the window that shows the effect of new workers.
WINDOW_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Inputs of the rules."""

    memory: Memory
    sample: Sample
    rules: Rules
    estimate: Estimate | None

    @property
    def start_seconds(self) -> float:
        """L."""
        return self.sample.pods.start_seconds or FIRST_START_SECONDS


def recommend(known: Known) -> Verdict:
    """Return the answer of the first rule that has one; add nothing if others are too slow."""
    sample = known.sample
    verdict = next(verdict for rule in _RULES if (verdict := rule(known)) is not None)
    if sample.elsewhere is None or verdict.workers <= sample.desired:
        return verdict
    message = sample.elsewhere.message
    return Verdict(workers=sample.desired, reason=DESIRED_WITHIN_RANGE, message=message)


def withdraw_stuck(known: Known) -> Verdict | None:
    """Withdraw the request for pods that do not start.

    Guards "never scheduled" and "two on one quota": a pending pod would hold the quota of others.
    """
    stuck, desired = known.sample.pods.stuck, known.sample.desired
    if not stuck:
        return None
    workers = max(desired - stuck, known.rules.min_workers)
    if workers >= desired:
        return None  # the spec requires this many
    message = f"{stuck} of {desired} workers do not start: their request is withdrawn for a while"
    return Verdict(workers=workers, reason=UNSCHEDULABLE, message=message)


def hold_unknown(known: Known) -> Verdict | None:
    """Keep the number of workers while signals are unknown (scenario "metrics outage")."""
    sample = known.sample
    if sample.trainer is not None and sample.workers is not None:
        return None
    return Verdict(
        workers=sample.desired,
        reason=METRICS_UNKNOWN,
        message="metrics of the driver or of data workers are not known; the number stays",
    )


def hold_idle(known: Known) -> Verdict | None:
    """Keep the number while the files of a table are merged and committed.

    No worker stores rows then, so nothing can be measured. Applies to jobs with `output` only.
    """
    last = known.memory.intervals[-1] if known.memory.intervals else None
    if last is None or not last.is_unbounded or last.loop_seconds > 0.0:
        return None
    message = "no rows are stored at the moment; the number stays"
    return Verdict(workers=known.sample.desired, reason=DESIRED_WITHIN_RANGE, message=message)


def start_cold(known: Known) -> Verdict | None:
    """Double the number once per L + W while there is no estimate and trainers mostly wait.

    Guards "cold start". The waits before the first rows do not count, which saves moves in "slow
    warm-up". If workers store the rows themselves, their driver always waits: nothing is doubled.
    """
    if known.estimate is not None:
        return None
    sample, memory = known.sample, known.memory
    last = max(memory.doubled_at or -math.inf, memory.ready_since or -math.inf)
    since = [i for i in _after_first(memory) if i.end - i.seconds >= last - _ROUNDING_SECONDS]
    lately = since[-_COLD_INTERVALS:]
    loop = sum(interval.loop_seconds for interval in lately)
    waited = sum(interval.production_seconds for interval in lately) / loop if loop > 0.0 else 0.0
    is_there = sample.pods.ready >= sample.desired
    is_due = (
        sample.at - last >= WINDOW_SECONDS - EARLY_SECONDS and is_there and not memory.has_estimate
    )
    is_bounded = bool(lately) and not lately[-1].is_unbounded
    if is_bounded and len(lately) >= 2 and waited > COLD_WAIT_SHARE and is_due:
        message = f"trainers wait {waited:.0%} of their time, and no demand is known yet: doubled"
        return Verdict(workers=2 * sample.desired, reason=DESIRED_WITHIN_RANGE, message=message)
    return Verdict(
        workers=sample.desired,
        reason=DESIRED_WITHIN_RANGE,
        message="too few steps yet for an estimate; the number stays",
    )


def _after_first(memory: Memory) -> tuple[Interval, ...]:
    """Return the intervals after the first rows, before which trainers wait in any case."""
    first = (i for i, interval in enumerate(memory.intervals) if interval.rows > 0.0)
    return memory.intervals[next(first, len(memory.intervals)) + 1 :]


def stay_at_saturation(known: Known) -> Verdict | None:
    """Stay at the saturation point, or try a few more workers when a probe is due.

    Guards the traps "storage-bound" and "storage near demand".
    """
    point, estimate = known.memory.saturation, known.estimate
    if point is None or estimate is None:
        return None
    if _count_required(estimate.required, known.rules) < point.workers:
        return None
    if point.probed_at is not None:
        message = f"trying if {point.probe} workers bring more rows than {point.workers}"
        return Verdict(workers=point.probe, reason=SATURATION_POINT_REACHED, message=message)
    message = (
        f"more than {point.workers} workers brought no more rows "
        f"({estimate.rows_per_second:,.0f} per second): their source "
        "or store is at its limit; look at storage bandwidth"
    )
    return Verdict(workers=point.workers, reason=SATURATION_POINT_REACHED, message=message)


def add_required(known: Known) -> Verdict | None:
    """Add the required workers if trainers wait for rows and more workers would help.

    Trainers that do not wait need no worker, which saves moves in "heavy tail". The lower bound of
    the required number must exceed the present one, which saves moves in "ramp". More workers do
    not help where another stage is the bottleneck (the traps, see `bottleneck`). Growth is limited
    until more workers are observed to help, which guards "storage-bound".
    """
    estimate, sample, rules = known.estimate, known.sample, known.rules
    assert estimate is not None
    if estimate.required_low <= sample.desired or not is_starved(estimate):
        return None
    bottleneck = find_bottleneck(estimate, rules, sample)
    if bottleneck is not None:
        return Verdict(
            workers=sample.desired, reason=DESIRED_WITHIN_RANGE, message=bottleneck.message
        )
    wanted = _count_required(estimate.required, rules)
    message = _explain(estimate, rules)
    most = _most_at_once(known)
    if wanted > most:
        capped = f"{message}; first {most}, until they are observed to help"
        return Verdict(workers=most, reason=SCALE_UP_LIMIT, message=capped)
    return Verdict(workers=wanted, reason=DESIRED_WITHIN_RANGE, message=message)


def remove_spare(known: Known) -> Verdict | None:
    """Remove workers beyond the upper bound of the required number.

    The bound, not the estimate, saves moves in "consumer x2".
    """
    estimate, sample = known.estimate, known.sample
    assert estimate is not None
    enough = _count_required(estimate.required_high, known.rules)
    if enough >= sample.desired or is_starved(estimate):
        return None
    return Verdict(
        workers=enough, reason=DESIRED_WITHIN_RANGE, message=_explain(estimate, known.rules)
    )


def hold(known: Known) -> Verdict:
    """Keep the number: no other rule has an answer."""
    assert known.estimate is not None
    message = _explain(known.estimate, known.rules)
    return Verdict(workers=known.sample.desired, reason=DESIRED_WITHIN_RANGE, message=message)


_RULES = (
    hold_unknown,
    withdraw_stuck,
    hold_idle,
    start_cold,
    stay_at_saturation,
    add_required,
    remove_spare,
    hold,
)


def _count_required(required: float, rules: Rules) -> int:
    return max(1, math.ceil(min(required * (1.0 + rules.headroom), _UNBOUNDED)))


def _most_at_once(known: Known) -> int:
    """Return the most workers that may be requested before more are observed to help."""
    assert known.estimate is not None
    is_reading = known.estimate.read_share > _MOST
    growth = known.memory.growth if is_reading else MAX_GROWTH
    seen = max(known.memory.verified, 1)
    return max(math.ceil((1.0 + growth) * seen), known.sample.desired, 2)


def _explain(estimate: Estimate, rules: Rules) -> str:
    if estimate.is_unbounded:
        return (
            f"{estimate.rows_per_second:,.0f} rows per second are stored, a busy worker makes "
            f"{estimate.worker_rate:,.0f}; workers are added as long as they raise this"
        )
    return (
        f"trainers would take {estimate.demand:,.0f} rows per second, a busy worker makes "
        f"{estimate.worker_rate:,.0f}: {estimate.required:.1f} workers "
        f"({estimate.required_low:.1f} to {estimate.required_high:.1f}), "
        f"{_count_required(estimate.required, rules)} with {rules.headroom:.1%} headroom; "
        f"trainers wait {estimate.production_share:.1%} of their time"
    )
