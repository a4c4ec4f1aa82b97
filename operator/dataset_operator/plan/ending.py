"""Rules that begin and end runs: deletion, bad specs, edits, suspend, deadlines."""

from __future__ import annotations

from dataset_operator.api import (
    CHANGE_PENDING,
    CLUSTER_READY,
    COMPLETE,
    DEADLINE_EXCEEDED,
    FAILED,
    INVALID_SPEC,
    MATERIALIZED,
    NEW_RUN,
    PRE_RUNNING_DEADLINE_EXCEEDED,
    RELEASED,
    REOPENED,
    RESUMED,
    SEAL_BROKEN,
    STOPPING,
    SUSPENDED,
    SUSPENDED_BY_SPEC,
    TRAINING,
    VALID_SPEC,
    WRITING,
)
from dataset_operator.builders.children import build_accepted
from dataset_operator.builders.frozen import is_as_built
from dataset_operator.observed import parse_time
from dataset_operator.plan import keeping_history
from dataset_operator.plan.accepted import name_broken_seal, say_accepted
from dataset_operator.plan.draft import Draft
from dataset_operator.plan.outcome import Event, Stop
from dataset_operator.plan.readings import Reading
from dataset_operator.plan.validity import parse_wanted
from dataset_operator.remedies import advise_on_end
from dataset_operator.sealing import compute_digest
from pipeline_runtime.config import ManifestError, locate_artifacts

# The finaliser is removed within this time of a deletion, whatever Ray answers.
RELEASE_SECONDS = 60.0
# A driver that was asked to stop has this long to finish a step and write a checkpoint.
STOP_SECONDS = 120.0
# How often Ray is asked for the state of a job.
POLL_SECONDS = 10.0
STOP_POLL_SECONDS = 2.0


def release_deleted(draft: Draft) -> bool:
    """Stop the driver of a deleted experiment, wait a bounded time, then remove the finaliser."""
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
    elif left > 0 and keeping_history.has_finalizer(draft) and keeping_history.hold(draft):
        draft.look_again(min(STOP_POLL_SECONDS, left))
    return True


def refuse_invalid(draft: Draft) -> bool:
    """Refuse an invalid spec; a run continues with its accepted spec."""
    accepted, refusal = draft.accepted, draft.observed.refusal
    try:
        current = parse_wanted(draft)
    except ManifestError as error:
        note = "" if accepted or _is_over(draft) else f"; {_name_lost_spec(draft)}"
        _refuse(draft, str(error), note)
        draft.experiment = accepted.experiment if accepted else None
        if draft.submission is not None:
            draft.look_again(POLL_SECONDS)
        return draft.experiment is None
    draft.spec = current.spec
    draft.experiment = accepted.valid if accepted and draft.is_run_changed else current
    if refusal is not None and refusal.is_invalid:
        _refuse(draft, refusal.message)
    elif waits_for := _waits_for(draft):
        generation = f"generation {draft.observed.generation}"
        is_refused = refusal is not None
        say_accepted(draft, CHANGE_PENDING, f"{generation} {waits_for}", warns=is_refused)
    else:
        say_accepted(draft, VALID_SPEC, "the spec is valid")
    return False


def _name_lost_spec(draft: Draft) -> str:
    run, name = draft.status["run"], draft.owner.accepted
    return (
        f"run {run} is not managed until the spec is valid, because ConfigMap {name} does not hold "
        "the accepted one"
    )


def _refuse(draft: Draft, why: str, note: str = "") -> None:
    if broken := name_broken_seal(draft, "ConfigMap"):
        note += f"; {broken} has content that the operator did not write"
    say_accepted(draft, INVALID_SPEC, f"the spec was not applied{note}: {why}", warns=True)


def _waits_for(draft: Draft) -> str | None:
    """Describe what an edit waits for, or why it cannot be made; None if it takes effect now."""
    if _is_over(draft) or not _is_started(draft):
        return None
    if (refusal := draft.observed.refusal) and draft.is_cluster_changed:
        return f"cannot change the cluster: {refusal.message}"
    if draft.wanted.update_policy != "AfterRun":
        return None
    if draft.is_run_changed:
        return f"starts as a new run when run {draft.status['run']} ends (updatePolicy: AfterRun)"
    if draft.is_cluster_changed:
        return "changes the cluster before the next attempt (updatePolicy: AfterRun)"
    return None


def keep_finished(draft: Draft) -> bool:
    """Release the cluster of a finished run, and delete the experiment after its time to live."""
    if "run" not in draft.status or not _is_over(draft) or draft.is_run_changed:
        return False
    if _is_given_another_chance(draft):
        _reopen_run(draft)
        return False
    draft.forget("submission")
    draft.has_finalizer = False
    keeping_history.release(draft)
    ttl, ended = draft.wanted.ttl_seconds_after_finished, draft.status.get("completionTime")
    if ttl is not None and ended and draft.spec is not None:
        left = draft.until(parse_time(ended), ttl)
        draft.delete_self = left <= 0
        if left > 0:
            draft.look_again(left)
    return True


def _is_given_another_chance(draft: Draft) -> bool:
    """Return whether a failed run continues after an edit of what it may have failed by."""
    accepted = draft.accepted
    if draft.spec is None or accepted is None or not draft.is_true(FAILED):
        return False
    return _chances(draft.current) != _chances(accepted)


def _chances(reading: Reading) -> tuple[object, ...]:
    spec = reading.valid.spec
    deadlines = (spec.active_deadline_seconds, spec.pre_running_deadline_seconds)
    # Not part of the run's hash.
    mode, checkpoint = spec.output and spec.output.mode, spec.training.checkpoint
    return (reading.cluster_hash, spec.backoff_limit, mode, checkpoint, *deadlines)


def _reopen_run(draft: Draft) -> None:
    draft.clear(draft.work, FAILED)
    draft.forget("completionTime", "trainingStartTime", "lastFailureTime")
    draft.status |= {"failures": 0, "startTime": draft.stamp()}
    draft.tell(REOPENED, f"run {draft.status['run']} continues, since its spec was edited")


def remember_accepted(draft: Draft) -> bool:
    """Store the spec that the run has accepted; it is used while a later spec waits or is invalid.

    The ConfigMap is written after the status. While the ConfigMap may still hold the spec before,
    the status holds the digests of both: if the operator is killed in between, the run goes on as
    one of the two.
    """
    is_refused = draft.observed.refusal is not None or draft.observed.foreign
    if draft.spec is None or draft.is_run_changed or is_refused:
        return False
    config, before = draft.build_config(), draft.observed.accepted
    built = build_accepted(draft.owner, draft.status["run"], config)
    digests = [compute_digest(config)]
    if not is_as_built(draft.observed.children.get(draft.owner.accepted), built):
        draft.apply.append(built)
        if before is not None and draft.accepted is not None:
            digests = list(dict.fromkeys([compute_digest(before), *digests]))
        if broken := name_broken_seal(draft, "ConfigMap"):
            message = f"{broken} is overwritten, since the operator did not write its content"
            draft.tell(SEAL_BROKEN, message, warns=True, logs=True)
    draft.status["acceptedDigests"] = digests
    return False


def start_changed_run(draft: Draft) -> bool:
    """Start a new run if the spec wants another run than the present one.

    With updatePolicy AfterRun the new run waits until the present run ends, unless no driver of it
    was submitted yet.
    """
    if draft.spec is None or not draft.is_run_changed:
        return False
    if not _is_over(draft) and _is_started(draft):
        is_known = draft.accepted is not None or draft.submission is not None
        if draft.spec.update_policy == "AfterRun" and is_known:
            return False
        job = draft.observed.job
        if job is not None and job.status in ("SUCCEEDED", "FAILED"):
            return False  # `judge_job` handles it first
        if stop_driver(draft):
            return True
        may_run = draft.submission is not None and (job is None or job.is_active)
        if may_run and draft.observed.ray_cluster is not None:
            draft.release_cluster()  # the driver could not be asked to stop
            draft.look_again(STOP_POLL_SECONDS)
    _begin_run(draft, draft.current)
    return bool(draft.delete)


def _is_over(draft: Draft) -> bool:
    return "run" not in draft.status or draft.is_true(COMPLETE) or draft.is_true(FAILED)


def _is_started(draft: Draft) -> bool:
    """Return whether a driver of this run was ever submitted."""
    return draft.attempt >= int(draft.status.get("firstAttempt", 1))


def _begin_run(draft: Draft, reading: Reading) -> None:
    experiment = reading.valid
    run = int(draft.status.get("run", 0)) + 1
    workers = draft.status.get("dataWorkers") or {}
    draft.clear(TRAINING, WRITING, MATERIALIZED, COMPLETE, FAILED)
    draft.forget("submission", "completionTime", "trainingStartTime", "lastFailureTime", "trainer")
    draft.forget("dataWorkers", "scaling", "usage", "output", "snapshots", "materialization")
    if "draining" in workers:  # the cluster stays, and its drain goes on
        kept = {field: workers[field] for field in ("draining", "drainingTo") if field in workers}
        draft.status["dataWorkers"] = kept
    draft.status |= {
        "run": run,
        "runHash": reading.run_hash,
        "storageRoot": experiment.spec.storage.root or draft.settings.storage_root or "",
        "artifactsUri": locate_artifacts(experiment, draft.settings.storage_root),
        "failures": 0,
        "firstAttempt": draft.attempt + 1,
        "startTime": draft.stamp(),
    }
    draft.experiment = experiment
    draft.status["acceptedDigests"] = [compute_digest(draft.build_config())]
    draft.has_finalizer = False
    draft.events.append(Event(type="Normal", reason=NEW_RUN, message=f"run {run} begins"))


def suspend(draft: Draft) -> bool:
    """Stop the driver and release the cluster if suspended; restart the deadlines on resuming."""
    # An invalid spec changes nothing, so a suspended experiment stays suspended.
    if not (draft.spec.suspend if draft.spec else draft.is_true(SUSPENDED)):
        if draft.is_true(SUSPENDED):
            draft.status["startTime"] = draft.stamp()
            draft.forget("trainingStartTime")  # preRunningDeadlineSeconds counts again
            draft.condition(SUSPENDED, False, RESUMED, "spec.suspend is false again")
        return False
    job = draft.observed.job
    if draft.submission and job is not None and job.status in ("SUCCEEDED", "FAILED"):
        return False  # it ended before it could be stopped: `judge_job` handles it first
    if stop_driver(draft):
        return True
    draft.forget("submission")
    draft.has_finalizer = False
    keeping_history.release(draft)
    draft.condition(CLUSTER_READY, False, RELEASED, "the cluster was released")
    draft.condition(draft.work, False, SUSPENDED_BY_SPEC, "nothing runs while suspended")
    draft.condition(SUSPENDED, True, SUSPENDED_BY_SPEC, "spec.suspend is true")
    return True


def stop_driver(draft: Draft) -> bool:
    """Ask the driver to stop; return True while it may take more time."""
    submission, observed = draft.submission, draft.observed
    if submission is None or observed.ray_cluster is None:
        return False
    if observed.job is not None and not observed.job.is_active:
        return False
    if observed.job is None and observed.ray_reachable:
        return False  # Ray does not know it
    if draft.reason(draft.work) != STOPPING:  # else stopTime may be of a revoked stop
        draft.status["submission"] = submission = {**submission, "stopTime": draft.stamp()}
        draft.condition(draft.work, False, STOPPING, "the driver saves its state and ends")
    left = draft.until(parse_time(submission["stopTime"]), STOP_SECONDS)
    if left <= 0:
        return False
    draft.job = Stop(submission_id=submission["id"])
    draft.look_again(min(STOP_POLL_SECONDS, left))
    return True


def enforce_deadlines(draft: Draft) -> bool:
    """Fail a run that exceeds activeDeadlineSeconds or preRunningDeadlineSeconds."""
    job = draft.observed.job
    if job is not None and job.status == "SUCCEEDED":
        return False
    started = parse_time(draft.status["startTime"])
    whole, start = draft.wanted.active_deadline_seconds, draft.wanted.pre_running_deadline_seconds
    if whole is not None:
        left = draft.until(started, whole)
        if left <= 0:
            if stop_driver(draft):
                return True
            field = f"activeDeadlineSeconds ({whole})"
            return fail_run(draft, DEADLINE_EXCEEDED, f"the run took longer than {field}")
        draft.look_again(left)
    if start is not None and "trainingStartTime" not in draft.status and not _may_train(draft):
        left = draft.until(started, start)
        if left <= 0:
            message = f"no driver ran within preRunningDeadlineSeconds ({start})"
            return fail_run(draft, PRE_RUNNING_DEADLINE_EXCEEDED, message, _find_obstacle(draft))
        draft.look_again(left)
    return False


def _may_train(draft: Draft) -> bool:
    """Return whether a driver may be running; if Ray does not answer, a submitted one may be."""
    observed = draft.observed
    if observed.job is not None:
        return observed.job.status == "RUNNING"
    return draft.submission is not None and not observed.ray_reachable


def _find_obstacle(draft: Draft) -> str:
    """Return why no driver starts, as a pod or Ray reports it; "" if neither does."""
    if waits := next((pod.waiting for pod in draft.observed.pods if pod.waiting), ""):
        return f"a pod waits: {waits}"
    if why := draft.observed.ray_failure:
        return f"Ray does not answer the operator: {why}"
    return ""


def fail_run(draft: Draft, reason: str, message: str, cause: str = "") -> bool:
    """Fail the run for good: report the reason and advice, stop its job, release the cluster.

    Args:
        cause: text from Ray, Kubernetes or the driver. It comes last, since long messages are cut
            at their end.
    """
    submission, job = draft.submission, draft.observed.job
    if submission and job is not None and job.is_active:
        draft.job = Stop(submission_id=submission["id"])
    _end_run(draft)
    draft.condition(draft.work, False, reason, "the run failed")
    draft.events.pop()  # the event of the condition Failed is enough
    parts = (message, advise_on_end(reason, draft.owner.name), cause)
    draft.condition(FAILED, True, reason, "; ".join(filter(None, parts)), warns=True)
    return True


def complete_run(draft: Draft, reason: str, message: str) -> bool:
    """Complete the run and release the cluster."""
    _end_run(draft)
    end = "the table is complete" if draft.is_writing else "the training ended"
    draft.condition(draft.work, False, reason, end)
    draft.events.pop()
    draft.condition(COMPLETE, True, reason, message)
    return True


def _end_run(draft: Draft) -> None:
    draft.status["completionTime"] = draft.stamp()
    draft.forget("submission")
    draft.has_finalizer = False
    keeping_history.release(draft)
    draft.condition(CLUSTER_READY, False, RELEASED, "the cluster was released")
    draft.look_again(0.0)
