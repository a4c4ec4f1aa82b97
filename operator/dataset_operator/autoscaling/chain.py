"""Turns a recommendation into a number of workers: stabilise, limit the rate, clamp.

Each step takes a number and returns one, with a reason if it differs. The steps are those of the
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
    """Apply all steps; return the number, and the last step that changed it."""
    answer = clamp(wanted, rules)
    workers, limited = answer.workers, answer if answer.reason else None
    for step in (stabilise, limit_rate):
        answer = step(workers, current, memory, rules, now)
        workers, limited = answer.workers, answer if answer.reason else limited
    answer = clamp(workers, rules)
    return answer.workers, answer if answer.reason else limited


def stabilise(wanted: int, current: int, memory: Memory, rules: Rules, now: float) -> Verdict:
    """Return the most careful recommendation within the window of its direction.

    The HPA's default window saves moves in "ramp" and "straggler in order". A window that began
    before the policy's memory removes nothing (scenario "operator restart").

    Args:
        memory: contains the latest recommendation.
    """
    if wanted > current:
        window = rules.up.stabilization_seconds
        least = min(_recommended(memory, now - window), default=wanted)
        if least < wanted:
            message = f"{wanted} wanted, but {least} at some time in the last {window:.0f} s"
            return Verdict(workers=max(least, current), reason=SCALE_UP_STABILIZED, message=message)
    elif wanted < current:
        window = rules.down.stabilization_seconds
        most = max(_recommended(memory, now - window), default=wanted)
        if now - memory.since < window:
            most = current  # the earlier recommendations are unknown
        if most > wanted:
            message = f"{wanted} would do, but {most} at some time in the last {window:.0f} s"
            return Verdict(
                workers=min(most, current), reason=SCALE_DOWN_STABILIZED, message=message
            )
    return Verdict(workers=wanted, reason="", message="")


def limit_rate(wanted: int, current: int, memory: Memory, rules: Rules, now: float) -> Verdict:
    """Return the nearest number that the rate limits of the direction allow.

    By default at most a quarter of the workers leave per window, so that a wrong estimate costs
    little. Saves moves in "consumer x2".
    """
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
            message = f"{wanted} wanted, but scaleUp.policies allow {most} now"
            return Verdict(workers=most, reason=SCALE_UP_LIMIT, message=message)
        return Verdict(workers=wanted, reason="", message="")
    least = min(current, _bound(direction, current, memory.moves, now, is_up=False))
    if wanted < least:
        message = f"{wanted} would do, but scaleDown.policies allow {least} now"
        return Verdict(workers=least, reason=SCALE_DOWN_LIMIT, message=message)
    return Verdict(workers=wanted, reason="", message="")


def clamp(wanted: int, rules: Rules) -> Verdict:
    """Return the nearest number from minReplicas to maxReplicas (scenario "max reached")."""
    if wanted > rules.max_workers:
        message = f"{wanted} wanted, but {rules.field}.maxReplicas is {rules.max_workers}"
        return Verdict(workers=rules.max_workers, reason=TOO_MANY_REPLICAS, message=message)
    if wanted < rules.min_workers:
        message = f"{wanted} would do, but {rules.field}.minReplicas is {rules.min_workers}"
        return Verdict(workers=rules.min_workers, reason=TOO_FEW_REPLICAS, message=message)
    return Verdict(workers=wanted, reason="", message="")


def _recommended(memory: Memory, since: float) -> list[int]:
    """Return the recommendations that held at any time after `since`."""
    kept = memory.recommendations
    ends = [at for at, _ in kept[1:]] + [math.inf]
    return [workers for (_, workers), end in zip(kept, ends, strict=True) if end > since]


def _bound(
    direction: Direction, current: int, moves: tuple[Move, ...], now: float, *, is_up: bool
) -> int:
    """Return the bound on the number by the rate limit that `selectPolicy` selects."""
    bounds = [_bound_of(limit, current, moves, now, is_up=is_up) for limit in direction.limits]
    is_widest = direction.select == "Max"
    return max(bounds) if is_widest == is_up else min(bounds)


def _bound_of(
    limit: RateLimit, current: int, moves: tuple[Move, ...], now: float, *, is_up: bool
) -> int:
    """Return the bound of one limit, relative to the number when its period began."""
    recent = [m.after - m.before for m in moves if m.at > now - limit.period_seconds]
    start = current - sum(recent)
    if limit.type == "Workers":
        return start + limit.value if is_up else start - limit.value
    if is_up:
        return math.ceil(start * (1.0 + limit.value / 100.0))
    return math.floor(start * (1.0 - limit.value / 100.0))
