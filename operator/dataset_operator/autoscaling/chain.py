"""From a recommendation to a number of workers: stabilise, limit the rate, clamp.

Each takes a number and returns one, with the reason if that is another. The rules are those of the
HorizontalPodAutoscaler's `behavior` (kubernetes, pkg/controller/podautoscaler/horizontal.go).
"""

from __future__ import annotations

import math

from dataset_operator.autoscaling.interface import (
    SCALE_DOWN_LIMIT,
    SCALE_DOWN_STABILIZED,
    SCALE_UP_LIMIT,
    SCALE_UP_STABILIZED,
    SCALING_DISABLED,
    TOO_FEW_REPLICAS,
    TOO_MANY_REPLICAS,
    Direction,
    RateLimit,
    Rules,
    Verdict,
)
from dataset_operator.autoscaling.intervals import Memory, Move


def constrain(
    wanted: int, current: int, memory: Memory, rules: Rules, now: float
) -> tuple[int, Verdict | None]:
    """The whole chain; of the rules that changed the number the last one is told."""
    answer = clamp(wanted, rules)
    workers, limited = answer.workers, answer if answer.reason else None
    for step in (stabilise, limit_rate):
        answer = step(workers, current, memory, rules, now)
        workers, limited = answer.workers, answer if answer.reason else limited
    answer = clamp(workers, rules)
    return answer.workers, answer if answer.reason else limited


def stabilise(wanted: int, current: int, memory: Memory, rules: Rules, now: float) -> Verdict:
    """The most careful recommendation of the window of its direction, the latest included.

    Args:
        memory: with the latest recommendation in it.
    """
    if wanted > current:
        window = rules.up.stabilization_seconds
        least = min(_recommended(memory, now - window), default=wanted)
        if least < wanted:
            message = f"{wanted} wanted, {least} at some time of the last {window:.0f} s"
            return Verdict(workers=max(least, current), reason=SCALE_UP_STABILIZED, message=message)
    elif wanted < current:
        window = rules.down.stabilization_seconds
        most = max(_recommended(memory, now - window), default=wanted)
        if now - memory.since < window:
            most = current  # nobody knows what was recommended before
        if most > wanted:
            message = f"{wanted} would do, {most} at some time of the last {window:.0f} s"
            return Verdict(
                workers=min(most, current), reason=SCALE_DOWN_STABILIZED, message=message
            )
    return Verdict(workers=wanted, reason="", message="")


def limit_rate(wanted: int, current: int, memory: Memory, rules: Rules, now: float) -> Verdict:
    """As far as the policies of the direction let it go."""
    if wanted == current:
        return Verdict(workers=wanted, reason="", message="")
    is_up = wanted > current
    direction = rules.up if is_up else rules.down
    if direction.select == "Disabled":
        side = "scaleUp" if is_up else "scaleDown"
        message = f"{wanted} wanted, but autoscaling.{side}.selectPolicy is Disabled"
        return Verdict(workers=current, reason=SCALING_DISABLED, message=message)
    if not direction.limits:
        return Verdict(workers=wanted, reason="", message="")
    if is_up:
        most = max(current, _bound(direction, current, memory.moves, now, is_up=True))
        if wanted > most:
            message = f"{wanted} wanted; scaleUp.policies allow {most} now"
            return Verdict(workers=most, reason=SCALE_UP_LIMIT, message=message)
        return Verdict(workers=wanted, reason="", message="")
    least = min(current, _bound(direction, current, memory.moves, now, is_up=False))
    if wanted < least:
        message = f"{wanted} would do; scaleDown.policies allow {least} now"
        return Verdict(workers=least, reason=SCALE_DOWN_LIMIT, message=message)
    return Verdict(workers=wanted, reason="", message="")


def clamp(wanted: int, rules: Rules) -> Verdict:
    """minReplicas to maxReplicas."""
    if wanted > rules.max_workers:
        message = f"{wanted} wanted, dataWorkers.maxReplicas is {rules.max_workers}"
        return Verdict(workers=rules.max_workers, reason=TOO_MANY_REPLICAS, message=message)
    if wanted < rules.min_workers:
        message = f"{wanted} would do, dataWorkers.minReplicas is {rules.min_workers}"
        return Verdict(workers=rules.min_workers, reason=TOO_FEW_REPLICAS, message=message)
    return Verdict(workers=wanted, reason="", message="")


def _recommended(memory: Memory, since: float) -> list[int]:
    """Return the recommendations since then."""
    kept = memory.recommendations
    ends = [at for at, _ in kept[1:]] + [math.inf]
    return [workers for (_, workers), end in zip(kept, ends, strict=True) if end > since]


def _bound(
    direction: Direction, current: int, moves: tuple[Move, ...], now: float, *, is_up: bool
) -> int:
    """Return the bound that the policies set on the number, by the one of `selectPolicy`."""
    bounds = [_bound_of(limit, current, moves, now, is_up=is_up) for limit in direction.limits]
    is_widest = direction.select == "Max"
    return max(bounds) if is_widest == is_up else min(bounds)


def _bound_of(
    limit: RateLimit, current: int, moves: tuple[Move, ...], now: float, *, is_up: bool
) -> int:
    """From what there was as the period began: moves of both directions are taken back."""
    recent = [m.after - m.before for m in moves if m.at > now - limit.period_seconds]
    start = current - sum(recent)
    if limit.type == "Workers":
        return start + limit.value if is_up else start - limit.value
    if is_up:
        return math.ceil(start * (1.0 + limit.value / 100.0))
    return math.floor(start * (1.0 - limit.value / 100.0))
