"""Rules about what begins and ends runs: deletion, bad specs, edits, suspend, deadlines."""

from __future__ import annotations

from dataset_operator.api import (
    ACCEPTED,
    CHANGE_PENDING,
    CLUSTER_READY,
    COMPLETE,
    DEADLINE_EXCEEDED,
    FAILED,
    INVALID_SPEC,
    NEW_RUN,
    PRE_RUNNING_DEADLINE_EXCEEDED,
    RELEASED,
    RESUMED,
    STOPPING,
    SUSPENDED,
    SUSPENDED_BY_SPEC,
    TRAINING,
    VALID_SPEC,
)
from dataset_operator.observed import parse_time
from dataset_operator.plan.decision import Event, Stop
from dataset_operator.plan.draft import Draft, parse
from pipeline_runtime.config import DatasetExperiment, ManifestError, run_hash

# The finaliser is gone within this long of a deletion, whatever Ray answers.
RELEASE_SECONDS = 60.0
# A driver that was asked to stop has this long for a step and a checkpoint.
STOP_SECONDS = 120.0
# How often a job is asked how it is.
POLL_SECONDS = 10.0
STOP_POLL_SECONDS = 2.0
_MAX_MESSAGE_CHARS = 4096


def release_deleted(draft: Draft) -> bool:
    """Deleted: stop the driver, wait a bounded time, let go; owner references do the rest."""
    deleted_at, observed = draft.observed.deleted_at, draft.observed
    if deleted_at is None:
        return False
    left = draft.until(deleted_at, RELEASE_SECONDS)
    unknown = observed.job is None and not observed.ray_reachable
    may_run = unknown if observed.job is None else observed.job.is_active
    submission = draft.submission
    draft.has_finalizer = bool(
        submission and observed.ray_cluster is not None and may_run and left > 0
    )
    if submission and draft.has_finalizer:
        draft.job = Stop(submission_id=submission["id"])
        draft.look_again(min(STOP_POLL_SECONDS, left))
    return True


def refuse_invalid(draft: Draft) -> bool:
    """A bad spec is said to be bad; what runs goes on as it was accepted."""
    accepted = draft.observed.accepted
    try:
        current = parse(draft.observed.document)
    except ManifestError as error:
        message = f"nothing was changed: {error}"
        draft.condition(ACCEPTED, False, INVALID_SPEC, message[:_MAX_MESSAGE_CHARS])
        draft.warn()
        draft.experiment = parse(accepted) if accepted else None
        return draft.experiment is None
    draft.spec = current.spec
    draft.experiment = parse(accepted) if accepted and _is_changed(draft) else current
    if _is_changed(draft) and not _is_over(draft) and current.spec.update_policy == "AfterRun":
        starts = f"generation {draft.observed.generation} starts as a new run"
        message = f"{starts} when run {draft.status['run']} ends"
        draft.condition(ACCEPTED, True, CHANGE_PENDING, message)
    else:
        draft.condition(ACCEPTED, True, VALID_SPEC, "the spec is valid")
    return False


def keep_finished(draft: Draft) -> bool:
    """Complete or failed: the cluster goes, the experiment stays until its time to live is over."""
    if "run" not in draft.status or not _is_over(draft) or _is_changed(draft):
        return False
    draft.forget("submission")
    draft.has_finalizer = False
    draft.release_cluster()
    ttl, ended = draft.wanted.ttl_seconds_after_finished, draft.status.get("completionTime")
    if ttl is not None and ended:
        left = draft.until(parse_time(ended), ttl)
        draft.delete_self = left <= 0
        if left > 0:
            draft.look_again(left)
    return True


def start_changed_run(draft: Draft) -> bool:
    """Another run than the present one is wanted: after it, or at once, as updatePolicy says."""
    if draft.spec is None or not _is_changed(draft):
        return False
    if not _is_over(draft):
        if draft.spec.update_policy == "AfterRun":
            return False
        if _stop_driver(draft):
            return True
    _begin_run(draft, parse(draft.observed.document))
    return False


def _is_over(draft: Draft) -> bool:
    return "run" not in draft.status or draft.is_true(COMPLETE) or draft.is_true(FAILED)


def _is_changed(draft: Draft) -> bool:
    if draft.spec is None:
        return False
    return run_hash(parse(draft.observed.document)) != draft.status.get("runHash")


def _begin_run(draft: Draft, experiment: DatasetExperiment) -> None:
    run = int(draft.status.get("run", 0)) + 1
    draft.clear(TRAINING, COMPLETE, FAILED)
    draft.forget("submission", "completionTime", "trainingStartTime", "lastFailureTime", "trainer")
    draft.status |= {
        "run": run,
        "runHash": run_hash(experiment),
        "failures": 0,
        "firstAttempt": draft.attempt + 1,
        "startTime": draft.stamp(),
    }
    draft.experiment = experiment
    draft.has_finalizer = False
    draft.events.append(Event(type="Normal", reason=NEW_RUN, message=f"run {run} begins"))


def suspend(draft: Draft) -> bool:
    """Suspended: stop with a checkpoint, give the cluster back. Resumed: the clock restarts."""
    # A bad spec changes nothing, so what is suspended stays so.
    if not (draft.spec.suspend if draft.spec else draft.is_true(SUSPENDED)):
        if draft.is_true(SUSPENDED):
            draft.status["startTime"] = draft.stamp()
            draft.condition(SUSPENDED, False, RESUMED, "spec.suspend is false again")
        return False
    job = draft.observed.job
    if draft.submission and job is not None and job.status in ("SUCCEEDED", "FAILED"):
        return False  # it ended before it could be stopped, and is judged first
    if _stop_driver(draft):
        return True
    draft.forget("submission")
    draft.has_finalizer = False
    draft.release_cluster()
    draft.condition(CLUSTER_READY, False, RELEASED, "the cluster was given back")
    draft.condition(TRAINING, False, SUSPENDED_BY_SPEC, "nothing trains while suspended")
    draft.condition(SUSPENDED, True, SUSPENDED_BY_SPEC, "spec.suspend is true")
    return True


def _stop_driver(draft: Draft) -> bool:
    """Ask the driver to stop; whether it still has time to."""
    submission, observed = draft.submission, draft.observed
    if submission is None or observed.ray_cluster is None:
        return False
    if observed.job is not None and not observed.job.is_active:
        return False
    if draft.reason(TRAINING) != STOPPING:
        draft.clear(TRAINING)  # the time to stop counts from now
        draft.condition(TRAINING, False, STOPPING, "the driver writes a checkpoint and ends")
    since = draft.since(TRAINING)
    assert since is not None
    left = draft.until(since, STOP_SECONDS)
    if left <= 0:
        return False
    draft.job = Stop(submission_id=submission["id"])
    draft.look_again(min(STOP_POLL_SECONDS, left))
    return True


def enforce_deadlines(draft: Draft) -> bool:
    """A run that takes too long, as a whole or until it first trains, fails."""
    started = parse_time(draft.status["startTime"])
    whole, start = draft.wanted.active_deadline_seconds, draft.wanted.pre_running_deadline_seconds
    if whole is not None:
        left = draft.until(started, whole)
        if left <= 0:
            field = f"activeDeadlineSeconds ({whole})"
            return fail_run(draft, DEADLINE_EXCEEDED, f"the run took longer than {field}")
        draft.look_again(left)
    if start is not None and "trainingStartTime" not in draft.status:
        left = draft.until(started, start)
        if left <= 0:
            message = f"no training after preRunningDeadlineSeconds ({start})"
            waits = next((pod.waiting for pod in draft.observed.pods if pod.waiting), "")
            message += f"; a pod waits: {waits}" if waits else ""
            return fail_run(draft, PRE_RUNNING_DEADLINE_EXCEEDED, message)
        draft.look_again(left)
    return False


def fail_run(draft: Draft, reason: str, message: str) -> bool:
    """The run has failed for good: say why, stop what runs, give the cluster back."""
    submission, job = draft.submission, draft.observed.job
    if submission and job is not None and job.is_active:
        draft.job = Stop(submission_id=submission["id"])
    _end_run(draft)
    draft.condition(TRAINING, False, reason, "the run failed")
    draft.events.pop()  # one event says it
    draft.condition(FAILED, True, reason, message)
    draft.warn()
    return True


def complete_run(draft: Draft, reason: str, message: str) -> bool:
    """The run is complete: give the cluster back."""
    _end_run(draft)
    draft.condition(TRAINING, False, reason, "the training ended")
    draft.events.pop()
    draft.condition(COMPLETE, True, reason, message)
    return True


def _end_run(draft: Draft) -> None:
    draft.status["completionTime"] = draft.stamp()
    draft.forget("submission")
    draft.has_finalizer = False
    draft.release_cluster()
    draft.condition(CLUSTER_READY, False, RELEASED, "the cluster was given back")
    draft.look_again(0.0)
