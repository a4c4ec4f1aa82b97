"""Carries out changes of the number of data workers, and reports them.

More workers are one patch that raises `replicas`. Fewer workers are drained first (`draining`).
"""

from __future__ import annotations

from dataclasses import replace

from dataset_operator.api import SCALED
from dataset_operator.autoscaling.interface import TOO_MANY_REPLICAS, UNSCHEDULABLE, Decision
from dataset_operator.autoscaling.signals import stuck_after_seconds
from dataset_operator.plan.data_workers.draining import (
    begin_draining,
    choose_victims,
    count_pods,
    find_staying,
    is_leaving,
    request_workers,
)
from dataset_operator.plan.scaling_log import record_decision
from dataset_operator.plan.situation import Situation
from dataset_operator.plan.verdict import NOTHING, Verdict, change, record_event


def report_change(situation: Situation, answer: Decision, before: int) -> Verdict:
    """Record a change of the number and report it as an event."""
    verdict = change(last_scale_time=situation.stamp)
    if scaling := situation.status.scaling:  # else no policy decides
        verdict += change(scaling=record_decision(situation, scaling, answer, before))
    why = answer.recommended.message
    if answer.limited is not None:
        why = f"{why}; {answer.limited.message}"
    reason = answer.limited.reason if answer.limited is not None else ""
    # A table is written with as many workers as there may be; GPUs must not wait for them.
    is_short = reason == TOO_MANY_REPLICAS and not situation.is_writing
    message = f"{before} → {answer.desired} data workers: {why}"
    warns = reason == UNSCHEDULABLE or is_short
    return verdict + record_event(SCALED, message, warns=warns, is_outcome=True)


def remove_workers(situation: Situation, answer: Decision, before: int) -> Verdict:
    """Remove data workers: those that cannot be had first, then others, which are drained.

    It does nothing while others are leaving, or while KubeRay may be making pods.
    """
    if is_leaving(situation):
        return NOTHING
    missing = before - count_pods(situation)
    if missing > 0:
        # If KubeRay is creating pods now, a lower number would make it delete any pods it likes.
        if situation.submission is not None and not are_refused(
            situation, stuck_after_seconds(None)
        ):
            return NOTHING
        staying = max(answer.desired, before - missing)
        changed = report_change(situation, replace(answer, desired=staying), before)
        return changed + request_workers(situation, staying)
    victims = choose_victims(find_staying(situation), before - answer.desired)
    staying, draining = begin_draining(situation, victims, before - len(victims))
    if staying < before:
        draining += report_change(situation, replace(answer, desired=staying), before)
    return draining


def are_refused(situation: Situation, seconds: float) -> bool:
    """Return whether KubeRay has failed to create pods for so long, as with a quota.

    The last change of the number must be as old: until then, missing pods may be in creation.
    """
    cluster = situation.observed.cluster
    if cluster is None or cluster.failure is None:
        return False
    times = [time for time in (situation.status.last_scale_time, cluster.failure.since) if time]
    return bool(times) and all(situation.until(time, seconds) <= 0 for time in times)
