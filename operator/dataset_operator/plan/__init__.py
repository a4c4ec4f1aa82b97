"""Decides what to do about an experiment: a pure function of observation, settings and clock.

    plan(observed, settings, now, token) -> Decision

The rules run in the order of `RULES` and change the draft of the reconcile pass; a rule that
returns True ends the pass. The draft collects the wanted objects, job and conditions, and becomes a
`Decision`, which the executor carries out, status first. Nothing here calls a client or reads a
clock, and the same observation gives the same decision, so a pass can be interrupted and repeated.

    run       one training, identified by a hash of its data, code and training and, with
              preserveOrder, by its number of ranks; a change of either starts a new run
    attempt   one submission of a run; the next attempt resumes from the last checkpoint
    failure   an attempt that ended by itself; only failures count towards backoffLimit
"""

from __future__ import annotations

from datetime import datetime

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
from dataset_operator.plan.data_workers import draining, scale_requests, scaling
from dataset_operator.plan.draft import Draft
from dataset_operator.plan.outcome import Decision
from dataset_operator.plan.readings import Readings
from dataset_operator.settings import OperatorSettings

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


def plan(
    observed: Observed,
    settings: OperatorSettings,
    now: datetime,
    token: str,
    readings: Readings | None = None,
) -> Decision:
    """Decide one reconcile pass.

    Args:
        now: the time in UTC, with its time zone set.
        token: a fresh random token, used only if the experiment has none yet.
        readings: the specs that earlier passes parsed and hashed; None: there are none.
    """
    readings = readings or Readings()
    draft = Draft(observed=observed, settings=settings, now=now, token=token, readings=readings)
    for rule in RULES:
        if rule(draft):
            break
    usage.account(draft)
    kept_rows.say_materialized(draft)
    return draft.decide()
