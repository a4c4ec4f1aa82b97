"""Carries out changes of the number of data workers, and reports them.

More workers are one patch that raises `replicas`. Fewer workers are drained first
(`plan.draining`).
"""

from __future__ import annotations

from dataclasses import replace

from dataset_operator.api import SCALED
from dataset_operator.autoscaling.interface import TOO_MANY_REPLICAS, UNSCHEDULABLE, Decision
from dataset_operator.plan import draining
from dataset_operator.plan.scaling_log import record_decision
from dataset_operator.plan.situation import Situation
from dataset_operator.plan.verdict import Verdict, change, record_event


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
    """Remove data workers, and report how many stay; see `draining.remove_workers`."""
    group = draining.find_data_workers(situation)
    staying, verdict = draining.remove_workers(situation, group, answer.desired)
    if staying < before:
        verdict += report_change(situation, replace(answer, desired=staying), before)
    return verdict


def add_workers(situation: Situation, answer: Decision, before: int) -> Verdict:
    """Request more data workers, and report it."""
    group = draining.find_data_workers(situation)
    reported = report_change(situation, answer, before)
    return reported + draining.request_workers(situation, group, answer.desired)
