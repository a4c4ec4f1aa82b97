"""What to do about an experiment: a pure function of what was observed, the settings and the clock.

    plan(observed, settings, now, token) -> Decision

Every rule is a function over the pass's draft that may end the pass; they stand in `RULES` in the
order in which they are asked. A rule says what should be (children, job, conditions); `Decision` is
what the executor carries out, its status first. Nothing here calls a client or reads a clock, and a
pass over the same observation decides the same, so that it can be cut off and run again anywhere.

    run       what is trained, by its hash, and in order on how many ranks; else it is a new run
    attempt   one submission of a run; the next resumes from the last checkpoint
    failure   an attempt that ended by itself; these alone are held against backoffLimit
"""

from __future__ import annotations

from datetime import datetime

from dataset_operator.observed import Observed
from dataset_operator.plan import (
    attempt,
    cluster,
    decisions,
    draining,
    ending,
    history,
    requests,
    scaling,
    usage,
)
from dataset_operator.plan.decision import Decision
from dataset_operator.plan.draft import Draft
from dataset_operator.plan.readings import Readings
from dataset_operator.settings import OperatorSettings

RULES = (
    ending.release_deleted,
    history.settle,
    ending.refuse_invalid,
    ending.keep_finished,
    ending.start_changed_run,
    ending.remember_accepted,
    ending.suspend,
    ending.enforce_deadlines,
    cluster.watch_ray,
    draining.forget_lost_cluster,
    cluster.yield_to_queue,
    cluster.recover_lost,
    cluster.replace_changed,
    attempt.judge_job,
    cluster.ensure_children,
    draining.go_on_draining,
    scaling.keep_below_most,
    requests.apply_request,
    cluster.wait_for_pods,
    scaling.scale_workers,
    decisions.keep_log,
    attempt.submit,
)


def plan(
    observed: Observed,
    settings: OperatorSettings,
    now: datetime,
    token: str,
    readings: Readings | None = None,
) -> Decision:
    """Decide one pass.

    Args:
        now: UTC, with a zone.
        token: a fresh random token, used only if the experiment has none yet.
        readings: what earlier passes parsed and hashed; None: nothing is known.
    """
    readings = Readings() if readings is None else readings
    draft = Draft(observed=observed, settings=settings, now=now, token=token, readings=readings)
    for rule in RULES:
        if rule(draft):
            break
    usage.account(draft)
    return draft.decide()
