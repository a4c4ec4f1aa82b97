"""Decides what to do about an experiment: a pure function of an observation and a time.

    decide(observed, now) -> Decision

Every rule gets a `Situation` and returns a `Verdict`, or None if it has nothing to say. The rules
run in the order of `RULES`; each sees what the rules before it have decided, and a verdict that
ends the pass is the last one. `composing` makes the `Decision` of them, which the executor carries
out, status first. Nothing here calls a client or reads a clock, and the same observation gives the
same decision, so a pass can be interrupted and repeated.

    run       one training, identified by a hash of its data, code and training and, with
              preserveOrder, by its number of ranks; a change of either starts a new run
    attempt   one submission of a run; the next attempt resumes from the last checkpoint
    failure   an attempt that ended by itself; only failures count towards backoffLimit
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from dataset_operator.observed import Observed
from dataset_operator.plan import (
    attempt,
    ending,
    keeping_history,
    kept_rows,
    ray_cluster,
    scaling_log,
    usage,
)
from dataset_operator.plan.composing import compose_decision
from dataset_operator.plan.data_workers import draining, scale_requests, scaling
from dataset_operator.plan.draft import Draft
from dataset_operator.plan.outcome import Decision
from dataset_operator.plan.situation import Situation

RULES = (
    ending.release_deleted,
    keeping_history.settle,
    ending.refuse_invalid,
    ending.keep_finished,
    ending.start_changed_run,
    ending.remember_accepted,
    ending.suspend,
    ending.enforce_deadlines,
    ray_cluster.watch_ray,
    draining.forget_lost_cluster,
    ray_cluster.yield_to_queue,
    ray_cluster.recover_lost,
    ray_cluster.replace_changed,
    attempt.judge_job,
    ray_cluster.ensure_children,
    draining.go_on_draining,
    scaling.keep_below_most,
    scale_requests.apply_request,
    ray_cluster.wait_for_pods,
    scaling.scale_workers,
    scaling_log.keep_log,
    attempt.submit,
)


def decide(observed: Observed, now: datetime) -> Decision:
    """Decide one reconcile pass.

    Args:
        now: the time in UTC, with its time zone set.
    """
    draft = Draft(base=Situation.begin(observed, now))
    for rule in RULES:
        if _apply(rule, draft):
            break
    _apply(usage.account, draft)
    _apply(kept_rows.report_materialized, draft)
    return compose_decision(draft.situation)


def _apply(rule: Any, draft: Draft) -> bool:
    """Apply a rule of either form; return whether it ends the pass."""
    if rule.__code__.co_varnames[0] == "draft":
        return bool(rule(draft))
    return draft.take(rule(draft.situation))
