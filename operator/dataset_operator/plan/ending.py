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
from dataset_operator.plan import keeping_history
from dataset_operator.plan.accepted import name_broken_seal, report_accepted
from dataset_operator.plan.cluster_objects import change_numbers, release_cluster
from dataset_operator.plan.outcome import Apply, DeleteSelf, Stop
from dataset_operator.plan.situation import Situation, follow
from dataset_operator.plan.validity import parse_wanted
from dataset_operator.plan.verdict import (
    END,
    NOTHING,
    Judged,
    Verdict,
    act,
    change,
    clear_conditions,
    clear_fields,
    look_again,
    record_event,
    set_condition,
)
from dataset_operator.readings import Reading
from dataset_operator.remedies import advise_on_end
from dataset_operator.sealing import compute_digest
from pipeline_runtime.config import ManifestError, WorkerStatus, locate_artifacts

# The finaliser is removed within this time of a deletion, whatever Ray answers.
RELEASE_SECONDS = 60.0
# A driver that was asked to stop has this long to finish a step and write a checkpoint.
STOP_SECONDS = 120.0
# How often Ray is asked for the state of a job.
POLL_SECONDS = 10.0
STOP_POLL_SECONDS = 2.0


def release_deleted(situation: Situation) -> Verdict | None:
    """Stop the driver of a deleted experiment, wait a bounded time, then remove the finaliser."""
    observed, submission = situation.observed, situation.submission
    if observed.deleted_at is None:
        return None
    left = situation.until(observed.deleted_at, RELEASE_SECONDS)
    unknown = observed.job is None and not observed.ray_reachable
    may_run = unknown if observed.job is None else observed.job.is_active
    soon = look_again(min(STOP_POLL_SECONDS, left))
    if submission and observed.cluster is not None and may_run and left > 0:
        stop = act(Stop(submission_id=submission.id))
        return Verdict(has_finalizer=True, ends=True) + stop + soon
    released = Verdict(has_finalizer=False, ends=True)
    if left > 0 and keeping_history.has_finalizer(situation):
        is_held, holding = keeping_history.hold(situation)
        return released + holding + soon if is_held else released + holding
    return released


def refuse_invalid(situation: Situation) -> Verdict:
    """Refuse an invalid spec; a run continues with its accepted spec."""
    accepted = situation.specs.accepted
    try:
        current = parse_wanted(situation)
    except ManifestError as error:
        note = "" if accepted or _is_over(situation) else f"; {_name_lost_spec(situation)}"
        refused = _refuse(situation, str(error), note)
        if situation.submission is not None:
            refused += look_again(POLL_SECONDS)
        if accepted is None:
            return refused + END
        return refused + Verdict(judged=Judged(experiment=accepted.valid))
    judged = Verdict(judged=Judged(experiment=current, spec=current.spec))
    if accepted and situation.after(judged).is_run_changed:
        judged = Verdict(judged=Judged(experiment=accepted.valid, spec=current.spec))
    return judged + _judge_edit(situation.after(judged))


def _judge_edit(situation: Situation) -> Verdict:
    """Report whether a valid spec takes effect now, waits, or is refused by the API server."""
    refusal = situation.observed.refusal
    if refusal is not None and refusal.is_invalid:
        return _refuse(situation, refusal.message)
    if waits_for := _waits_for(situation):
        message = f"generation {situation.observed.generation} {waits_for}"
        is_refused = refusal is not None
        return report_accepted(situation, CHANGE_PENDING, message, warns=is_refused)
    return report_accepted(situation, VALID_SPEC, "the spec is valid")


def _name_lost_spec(situation: Situation) -> str:
    run, name = situation.run, situation.owner.accepted
    return (
        f"run {run} is not managed until the spec is valid, because ConfigMap {name} does not hold "
        "the accepted one"
    )


def _refuse(situation: Situation, why: str, note: str = "") -> Verdict:
    if broken := name_broken_seal(situation, "ConfigMap"):
        note += f"; {broken} has content that the operator did not write"
    message = f"the spec was not applied{note}: {why}"
    return report_accepted(situation, INVALID_SPEC, message, warns=True)


def _waits_for(situation: Situation) -> str | None:
    """Describe what an edit waits for, or why it cannot be made; None if it takes effect now."""
    if _is_over(situation) or not _is_started(situation):
        return None
    if (refusal := situation.observed.refusal) and situation.is_cluster_changed:
        return f"cannot change the cluster: {refusal.message}"
    if situation.wanted.update_policy != "AfterRun":
        return None
    if situation.is_run_changed:
        return f"starts as a new run when run {situation.run} ends (updatePolicy: AfterRun)"
    if situation.is_cluster_changed:
        return "changes the cluster before the next attempt (updatePolicy: AfterRun)"
    return None


def keep_finished(situation: Situation) -> Verdict | None:
    """Release the cluster of a finished run, and delete the experiment after its time to live."""
    status = situation.status
    if status.run is None or not _is_over(situation) or situation.is_run_changed:
        return None
    if _is_given_another_chance(situation):
        return _reopen_run(situation)
    verdict = _release(situation) + END
    ttl = situation.wanted.ttl_seconds_after_finished
    if ttl is None or not status.completion_time or situation.spec is None:
        return verdict
    left = situation.until(status.completion_time, ttl)
    return verdict + (look_again(left) if left > 0 else act(DeleteSelf()))


def _release(situation: Situation) -> Verdict:
    """Give up the submission and the finaliser, and release the cluster."""
    released = clear_fields("submission") + Verdict(has_finalizer=False)
    return released + keeping_history.release(situation)


def _is_given_another_chance(situation: Situation) -> bool:
    """Return whether a failed run continues after an edit of what it may have failed by."""
    accepted = situation.specs.accepted
    if situation.spec is None or accepted is None or not situation.status.is_true(FAILED):
        return False
    return _chances(situation.specs.current) != _chances(accepted)


def _chances(reading: Reading) -> tuple[object, ...]:
    spec = reading.valid.spec
    deadlines = (spec.active_deadline_seconds, spec.pre_running_deadline_seconds)
    # Not part of the run's hash.
    mode, checkpoint = spec.output and spec.output.mode, spec.training.checkpoint
    return (reading.cluster_hash, spec.backoff_limit, mode, checkpoint, *deadlines)


def _reopen_run(situation: Situation) -> Verdict:
    cleared = clear_fields("completion_time", "training_start_time", "last_failure_time")
    reopened = clear_conditions(situation.work, FAILED) + cleared
    reopened += change(failures=0, start_time=situation.stamp)
    message = f"run {situation.run} continues, since its spec was edited"
    return reopened + record_event(REOPENED, message)


def remember_accepted(situation: Situation) -> Verdict | None:
    """Store the spec that the run has accepted; it is used while a later spec waits or is invalid.

    The ConfigMap is written after the status. While the ConfigMap may still hold the spec before,
    the status holds the digests of both: if the operator is killed in between, the run goes on as
    one of the two.
    """
    observed, specs = situation.observed, situation.specs
    is_refused = observed.refusal is not None or observed.foreign
    if situation.spec is None or situation.is_run_changed or is_refused:
        return None
    manifest = specs.build_manifest(situation.running.spec)
    built = build_accepted(situation.owner, situation.run, manifest)
    digest = compute_digest(manifest)
    if is_as_built(observed.children.get(situation.owner.accepted), built):
        return change(accepted_digests=(digest,))
    digests = [digest]
    if observed.accepted is not None and specs.accepted is not None:
        digests = list(dict.fromkeys([compute_digest(observed.accepted), digest]))
    stored = change(accepted_digests=tuple(digests)) + act(Apply(built))
    if broken := name_broken_seal(situation, "ConfigMap"):
        message = f"{broken} is overwritten, since the operator did not write its content"
        stored += record_event(SEAL_BROKEN, message, warns=True, is_logged=True)
    return stored


def start_changed_run(situation: Situation) -> Verdict | None:
    """Start a new run if the spec wants another run than the present one.

    With updatePolicy AfterRun the new run waits until the present run ends, unless no driver of it
    was submitted yet.
    """
    if situation.spec is None or not situation.is_run_changed:
        return None
    released, job = NOTHING, situation.observed.job
    if not _is_over(situation) and _is_started(situation):
        is_known = situation.specs.accepted is not None or situation.submission is not None
        if situation.spec.update_policy == "AfterRun" and is_known:
            return None
        if job is not None and job.status in ("SUCCEEDED", "FAILED"):
            return None  # `judge_job` handles it first
        if stopping := stop_driver(situation):
            return stopping
        may_run = situation.submission is not None and (job is None or job.is_active)
        if may_run and situation.observed.cluster is not None:
            # The driver could not be asked to stop.
            released = release_cluster(situation) + look_again(STOP_POLL_SECONDS) + END
    return released + _begin_run(situation.after(released))


def _is_over(situation: Situation) -> bool:
    status = situation.status
    return status.run is None or status.is_true(COMPLETE) or status.is_true(FAILED)


def _is_started(situation: Situation) -> bool:
    """Return whether a driver of this run was ever submitted."""
    return situation.attempt >= (situation.status.first_attempt or 1)


def _begin_run(situation: Situation) -> Verdict:
    """Begin a run of the wanted spec."""
    reading, root = situation.specs.current, situation.settings.storage_root
    spec, run = reading.valid.spec, (situation.status.run or 0) + 1
    begun = clear_conditions(TRAINING, WRITING, MATERIALIZED, COMPLETE, FAILED)
    begun += clear_fields("submission", "completion_time", "training_start_time")
    begun += clear_fields("last_failure_time", "trainer", "scaling", "usage", "output")
    begun += clear_fields("snapshots", "models", "materialization")
    begun += change(
        run=run,
        run_hash=reading.run_hash,
        accepted_digests=(compute_digest(situation.specs.build_manifest(spec)),),
        storage_root=spec.storage.root or root or "",
        artifacts_uri=locate_artifacts(reading.valid, root),
        failures=0,
        first_attempt=situation.attempt + 1,
        start_time=situation.stamp,
    )
    begun += change_numbers(situation, _keep_drain)
    begun += Verdict(judged=Judged(experiment=reading.valid, spec=spec), has_finalizer=False)
    return begun + record_event(NEW_RUN, f"run {run} begins")


def _keep_drain(workers: WorkerStatus) -> WorkerStatus | None:
    """Return the draining workers: the cluster stays, and its drain goes on."""
    if not workers.draining:
        return None
    return workers.change(current_replicas=None, ready_replicas=None, desired_replicas=None)


def suspend(situation: Situation) -> Verdict | None:
    """Stop the driver and release the cluster if suspended; restart the deadlines on resuming."""
    # An invalid spec changes nothing, so a suspended experiment stays suspended.
    was_suspended = situation.status.is_true(SUSPENDED)
    if not (situation.spec.suspend if situation.spec else was_suspended):
        if not was_suspended:
            return None
        # preRunningDeadlineSeconds counts again.
        restarted = change(start_time=situation.stamp, training_start_time=None)
        return restarted + set_condition(SUSPENDED, False, RESUMED, "spec.suspend is false again")
    job = situation.observed.job
    if situation.submission and job is not None and job.status in ("SUCCEEDED", "FAILED"):
        return None  # it ended before it could be stopped: `judge_job` handles it first
    if stopping := stop_driver(situation):
        return stopping
    idle = "nothing runs while suspended"
    return (
        _release(situation)
        + set_condition(CLUSTER_READY, False, RELEASED, "the cluster was released")
        + set_condition(situation.work, False, SUSPENDED_BY_SPEC, idle)
        + set_condition(SUSPENDED, True, SUSPENDED_BY_SPEC, "spec.suspend is true")
        + END
    )


def stop_driver(situation: Situation) -> Verdict | None:
    """Ask the driver to stop, and end the pass; None if there is nothing to wait for any more."""
    submission, observed = situation.submission, situation.observed
    if submission is None or observed.cluster is None:
        return None
    if observed.job is not None and not observed.job.is_active:
        return None
    if observed.job is None and observed.ray_reachable:
        return None  # Ray does not know it
    verdict, asked_at = END, submission.stop_time
    if asked_at is None or situation.reason(situation.work) != STOPPING:
        # A recorded time may be of a revoked stop.
        asked_at = situation.stamp
        verdict += change(submission=submission.change(stop_time=asked_at))
        message = "the driver saves its state and ends"
        verdict += set_condition(situation.work, False, STOPPING, message)
    left = situation.until(asked_at, STOP_SECONDS)
    if left <= 0:
        return None
    stop = act(Stop(submission_id=submission.id))
    return verdict + stop + look_again(min(STOP_POLL_SECONDS, left))


def enforce_deadlines(situation: Situation) -> Verdict | None:
    """Fail a run that exceeds activeDeadlineSeconds or preRunningDeadlineSeconds."""
    job = situation.observed.job
    if job is not None and job.status == "SUCCEEDED":
        return None
    return follow(situation, _enforce_active_deadline, _enforce_start_deadline)


def _enforce_active_deadline(situation: Situation) -> Verdict | None:
    whole = situation.wanted.active_deadline_seconds
    if whole is None:
        return None
    left = situation.until(situation.start_time, whole)
    if left > 0:
        return look_again(left)
    message = f"the run took longer than activeDeadlineSeconds ({whole})"
    return stop_driver(situation) or fail_run(situation, DEADLINE_EXCEEDED, message)


def _enforce_start_deadline(situation: Situation) -> Verdict | None:
    start = situation.wanted.pre_running_deadline_seconds
    has_trained = situation.status.training_start_time is not None
    if start is None or has_trained or _may_train(situation):
        return None
    left = situation.until(situation.start_time, start)
    if left > 0:
        return look_again(left)
    message = f"no driver ran within preRunningDeadlineSeconds ({start})"
    obstacle = _find_obstacle(situation)
    return fail_run(situation, PRE_RUNNING_DEADLINE_EXCEEDED, message, obstacle)


def _may_train(situation: Situation) -> bool:
    """Return whether a driver may be running; if Ray does not answer, a submitted one may be."""
    observed = situation.observed
    if observed.job is not None:
        return observed.job.status == "RUNNING"
    return situation.submission is not None and not observed.ray_reachable


def _find_obstacle(situation: Situation) -> str:
    """Return why no driver starts, as a pod or Ray reports it; "" if neither does."""
    if waits := next((pod.waiting for pod in situation.observed.pods if pod.waiting), ""):
        return f"a pod waits: {waits}"
    if why := situation.observed.ray_failure:
        return f"Ray does not answer the operator: {why}"
    return ""


def fail_run(situation: Situation, reason: str, message: str, cause: str = "") -> Verdict:
    """Fail the run for good: report the reason and advice, stop its job, release the cluster.

    Args:
        cause: text from Ray, Kubernetes or the driver. It comes last, since long messages are cut
            at their end.
    """
    submission, job = situation.submission, situation.observed.job
    is_active = submission is not None and job is not None and job.is_active
    stop = act(Stop(submission_id=submission.id)) if submission and is_active else NOTHING
    parts = (message, advise_on_end(reason, situation.owner.name), cause)
    whole = "; ".join(filter(None, parts))
    return (
        stop
        + _end_run(situation)
        # The event of the condition Failed is enough.
        + set_condition(situation.work, False, reason, "the run failed", is_recorded=False)
        + set_condition(FAILED, True, reason, whole, warns=True)
    )


def complete_run(situation: Situation, reason: str, message: str) -> Verdict:
    """Complete the run and release the cluster."""
    end = "the table is complete" if situation.is_writing else "the training ended"
    return (
        _end_run(situation)
        + set_condition(situation.work, False, reason, end, is_recorded=False)
        + set_condition(COMPLETE, True, reason, message)
    )


def _end_run(situation: Situation) -> Verdict:
    return (
        _release(situation)
        + change(completion_time=situation.stamp)
        + set_condition(CLUSTER_READY, False, RELEASED, "the cluster was released")
        + look_again(0.0)
        + END
    )
