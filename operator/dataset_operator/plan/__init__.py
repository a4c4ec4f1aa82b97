"""Decides what to do about an experiment: a pure function of an observation and a time.

    decide(observed, now) -> Decision

Every rule gets a `Situation` and returns a `Verdict`, or None if it has nothing to decide. The
stages run in the order of `STAGES`; each sees what the stages before it have decided, and a verdict
that ends the pass ends it after its stage. `composing` makes the `Decision` of the last situation,
which the executor carries out, status first. Nothing here calls a client or reads a clock, and the
same observation gives the same decision, so a pass can be interrupted and repeated.

    run       one training, identified by a hash of its data, code and training and, with
              preserveOrder, by its number of ranks; a change of either starts a new run
    attempt   one submission of a run; the next attempt resumes from the last checkpoint
    failure   an attempt that ended by itself; only failures count towards backoffLimit
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from dataset_operator.observed import Observed
from dataset_operator.plan import (
    attempt,
    draining,
    ending,
    inference_workers,
    keeping_history,
    kept_rows,
    ray_cluster,
    scaling_log,
    usage,
)
from dataset_operator.plan.composing import compose_decision
from dataset_operator.plan.data_workers import scale_requests, scaling
from dataset_operator.plan.outcome import Decision
from dataset_operator.plan.situation import Situation
from dataset_operator.plan.stages import Stage

STAGES = (
    # A deleted experiment has no future: nothing else matters once it is going.
    Stage("deletion", (ending.release_deleted,)),
    # Until the history of a cluster is stored, the cluster must stay as it is.
    Stage("history", (keeping_history.settle,)),
    # Every later rule works with the experiment that runs, which this one resolves.
    Stage("validity", (ending.refuse_invalid,)),
    # A finished run may be continued, which the next stage must know to start no new one.
    Stage("finished runs", (ending.keep_finished,)),
    # The accepted spec and all objects are those of the run that is the present one from here on.
    Stage("changed runs", (ending.start_changed_run,)),
    # A suspended run has no deadlines, and the clock of a resumed one starts again.
    Stage("suspension", (ending.remember_accepted, ending.suspend)),
    # A run that is too late ends, whatever its cluster does.
    Stage("deadlines", (ending.enforce_deadlines,)),
    # A queue that takes the cluster back causes the loss of its head, which is then no failure.
    Stage(
        "queue",
        (ray_cluster.watch_ray, draining.forget_lost_cluster, ray_cluster.yield_to_queue),
    ),
    # An attempt whose cluster is lost has failed; its successor gets the changed cluster.
    Stage("losses", (ray_cluster.recover_lost,)),
    # A cluster that is to be replaced is not completed or corrected first.
    Stage("replacement", (ray_cluster.replace_changed,)),
    # An attempt that has ended may end the run, and then nothing is created for it.
    Stage("job", (attempt.judge_job,)),
    # The number of data workers is changed in a cluster that exists and is as it was rendered.
    Stage("objects", (ray_cluster.ensure_children,)),
    # These all patch the number of workers, and a pass has one such patch: first the drain that was
    # begun, then the bounds, then the user, then the autoscaling policies.
    Stage("drain", (draining.go_on_draining,)),
    Stage("bound", (scaling.keep_below_most,)),
    Stage("inference bound", (inference_workers.keep_below_most,)),
    Stage("request", (scale_requests.apply_request,)),
    # Nothing is scaled or submitted before the pods are ready; they are reported after the patches.
    Stage("pods", (ray_cluster.wait_for_pods,)),
    # Data workers are not added while inference workers are the bottleneck, which this one finds.
    Stage("inference", (inference_workers.scale_groups,)),
    Stage("autoscaling", (scaling.scale_workers,)),
    # The decisions of the autoscaling policy are stored once they are known.
    Stage("jobs", (scaling_log.keep_log, attempt.submit)),
    # They account for every pass, whichever stage ended it.
    Stage("accounts", (usage.account, kept_rows.report_materialized), is_closing=True),
)


def decide(observed: Observed, now: datetime, stages: Sequence[Stage] = STAGES) -> Decision:
    """Decide one reconcile pass.

    Args:
        now: the time in UTC, with its time zone set.
    """
    situation = Situation.begin(observed, now)
    for stage in stages:
        situation = stage.judge(situation)
    return compose_decision(situation)
