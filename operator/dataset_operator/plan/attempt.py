"""Rules about attempts: submit the driver, check its job, and try again after a failure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from dataset_operator.api import (
    BACKOFF_LIMIT_EXCEEDED,
    CHECKPOINT_REFUSED,
    CHECKPOINTS_DAMAGED,
    DATA_WORKERS,
    GPUS_MISSING,
    INVALID_SPEC,
    JOB_FAILED,
    NODE_LOST,
    OUT_OF_MEMORY,
    OUTPUT_REFUSED,
    RETRYING,
    RUNNING,
    SUBMITTED,
    SUCCEEDED,
    TRAINERS,
    TRAINING,
    WRITING,
)
from dataset_operator.autoscaling.interface import PERIOD_SECONDS
from dataset_operator.builders.pod_templates import SPEC_FIELDS
from dataset_operator.documents import parse_time
from dataset_operator.observed import OUTPUT_PHASES, Job, Pod, Progress
from dataset_operator.plan.draft import Draft
from dataset_operator.plan.ending import POLL_SECONDS, complete_run, fail_run
from dataset_operator.plan.outcome import Submit
from dataset_operator.plan.progress import record_progress
from dataset_operator.status import find_condition

# Exit codes of `lastmile run` after which another attempt would fail in the same way.
_FINAL_EXIT_CODES = {2: INVALID_SPEC, 4: CHECKPOINT_REFUSED, 5: OUTPUT_REFUSED}
# The back-off of a Kubernetes Job: 10 s, 20 s, 40 s, … up to six minutes (Kubernetes docs, Jobs).
FIRST_BACKOFF_SECONDS = 10.0
MAX_BACKOFF_SECONDS = 360.0
# A data worker that was killed longer ago than this did not cause the attempt's failure.
CAUSE_SECONDS = 300.0
# Ray's message ends with the driver's log. Its first line and its end are kept, which leaves room
# for what happened, what to do and where the logs are.
_MAX_FIRST_CHARS = 120
_MAX_LAST_CHARS = 500


def judge_job(draft: Draft) -> bool:
    """Set the conditions by the state of the attempt's Ray job."""
    submission, job = draft.submission, draft.observed.job
    if submission is None:
        return False
    is_running = job is not None and job.status == "RUNNING"
    # The same period as the autoscaler's, so that one pass serves both.
    draft.look_again(PERIOD_SECONDS if is_running else POLL_SECONDS)
    if job is None:
        return False  # Ray did not answer, or the job has to be submitted again
    draft.take(record_progress(draft.situation, job))
    if job.status == "SUCCEEDED":
        run = draft.status["run"]
        message = f"run {run} is complete after attempt {draft.attempt}"
        return draft.take(complete_run(draft.situation, SUCCEEDED, message))
    if job.status == "STOPPED" and "stopTime" in submission:
        draft.forget("submission")  # it was asked to stop: this is not a failure
        draft.has_finalizer = False
        return False
    if not job.is_active:
        return _judge_failure(draft, job)
    if is_running:
        draft.status.setdefault("trainingStartTime", draft.stamp())
        (_say_writing if draft.is_writing else _say_training)(draft)
    return False


def _say_writing(draft: Draft) -> None:
    """Report that the attempt writes the table, and how far it is if its driver reports that."""
    progress, message = draft.observed.progress, f"attempt {draft.attempt} writes the table"
    phase = progress.table.phase if progress and progress.table else None
    if phase is not None:
        message += f": {OUTPUT_PHASES[phase]}"
        output = draft.status.get("output", {})
        if "partitions" in output:
            done = output.get("completePartitions", 0)
            message += f"; {done} of {output['partitions']} partitions are complete"
    elif (before := find_condition(draft.status, WRITING)) and before["message"].startswith(
        f"{message}:"
    ):
        message = before["message"]  # the driver does not answer at the moment
    draft.condition(WRITING, True, RUNNING, message)


def _say_training(draft: Draft) -> None:
    """Report that the attempt trains, and any problems that its driver has found."""
    progress, message = draft.observed.progress, f"attempt {draft.attempt} trains"
    before = find_condition(draft.status, TRAINING)
    said = before["message"] if before is not None else ""
    if progress is None:
        # The driver does not answer at the moment: keep the problems that it reported before.
        message = said if said.startswith(f"{message};") else message
    else:
        for reason, amiss, advice in _find_amiss(draft, progress):
            message += f"; {amiss}"
            if amiss not in said:
                draft.tell(reason, f"attempt {draft.attempt} trains; {amiss}: {advice}", warns=True)
    draft.condition(TRAINING, True, RUNNING, message)


def _find_amiss(draft: Draft, progress: Progress) -> Iterator[tuple[str, str, str]]:
    """Yield the reason, the message and the advice for each problem."""
    if progress.damaged_checkpoints:
        amiss = f"{progress.damaged_checkpoints} damaged checkpoints were skipped"
        yield CHECKPOINTS_DAMAGED, amiss, "steps since then are trained again; see the report"
    trainers = draft.on_cluster.spec.trainers
    # Without a GPU resource in the operator's settings, CPUs are the platform's own choice.
    wants_gpus = trainers.gpus_per_replica > 0 and draft.settings.gpu_resource is not None
    if wants_gpus and progress.cpu_ranks:
        ranks = trainers.replicas * trainers.gpus_per_replica
        amiss = f"{progress.cpu_ranks} of {ranks} ranks found no GPU and train on their CPUs"
        advice = "check that torch in the image has CUDA, and that nodes have its driver"
        yield GPUS_MISSING, amiss, advice


def _judge_failure(draft: Draft, job: Job) -> bool:
    said = shorten(job.message) or f"the job ended with status {job.status}"
    final = _FINAL_EXIT_CODES.get(job.exit_code or 0)
    if final is not None:
        return draft.take(fail_run(draft.situation, final, "the driver cannot continue", said))
    for reason, why in (
        (OUT_OF_MEMORY, _find_out_of_memory(draft, job)),
        (NODE_LOST, _find_lost(draft)),
    ):
        if why is not None:
            return fail_attempt(draft, reason, f"{why}; {said}" if why else said)
    return fail_attempt(draft, JOB_FAILED, said)


def shorten(message: str) -> str:
    """Shorten a job's message to its first line and the last whole lines of the driver's log."""
    message = message.strip()
    if len(message) <= _MAX_FIRST_CHARS + _MAX_LAST_CHARS:
        return message
    first = message.splitlines()[0][:_MAX_FIRST_CHARS]
    last = message[-_MAX_LAST_CHARS:]
    return f"{first} … {last.partition(chr(10))[2] or last}"


def _find_out_of_memory(draft: Draft, job: Job) -> str | None:
    """Name the pod that ran out of memory during the attempt; None if none did.

    Returns "" if only Ray reports it, without naming a pod.
    """
    for pod in draft.observed.pods:
        if why := blame_memory(draft, pod):
            return why
    return "" if job.out_of_memory else None


def blame_memory(draft: Draft, pod: Pod) -> str:
    """Return a message if the attempt ended because this pod ran out of memory; "" otherwise."""
    killed = pod.out_of_memory
    if killed is None or killed < _began(draft):
        return ""
    if pod.role == DATA_WORKERS and draft.until(killed, CAUSE_SECONDS) <= 0:
        return ""  # one data worker of many, killed long ago, did not end the attempt
    field = SPEC_FIELDS[pod.role]
    return f"{pod.name} ran out of memory: raise spec.{field}.resources.limits.memory"


def _find_lost(draft: Draft) -> str | None:
    """Name the trainer that was evicted, replaced or lost with its node; None if none was.

    The loss of data workers ends no attempt.
    """
    began = _began(draft)
    for pod in draft.observed.pods:
        if pod.role == TRAINERS:
            if pod.lost:
                return f"{pod.name} was lost ({pod.lost})"
            if pod.created is not None and pod.created > began:
                return f"a trainer was lost and replaced by {pod.name}"
    found = sum(pod.role == TRAINERS for pod in draft.observed.pods)
    return "a trainer was lost" if found < draft.on_cluster.spec.num_trainers else None


def _began(draft: Draft) -> datetime:
    assert draft.submission is not None
    return parse_time(draft.submission["time"])


def fail_attempt(draft: Draft, reason: str, message: str) -> bool:
    """Count a failure; retry after a pause, or fail the run once backoffLimit is exceeded."""
    failures, limit = draft.failures + 1, draft.wanted.backoff_limit
    draft.status |= {"failures": failures, "lastFailureTime": draft.stamp()}
    draft.forget("submission")
    draft.has_finalizer = False
    if failures > limit:
        attempts = "1 attempt" if failures == 1 else f"{failures} attempts"
        what = f"{attempts} failed; backoffLimit is {limit}"
        cause = f"last failure ({reason}): {message}"
        if uri := draft.status.get("artifactsUri"):
            cause = f"logs are in {uri}; {cause}"
        return draft.take(fail_run(draft.situation, BACKOFF_LIMIT_EXCEEDED, what, cause))
    pause = backoff_seconds(failures)
    draft.clear(draft.work)  # so that every failure is reported
    why = f"attempt {draft.attempt} failed ({reason}); the next attempt starts in {pause:.0f} s"
    draft.condition(draft.work, False, RETRYING, f"{why}: {message}", warns=True)
    draft.look_again(0.0)
    return True


def backoff_seconds(failures: int) -> float:
    """Return the pause before the next attempt."""
    return min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(failures - 1, 30))


def submit(draft: Draft) -> bool:
    """Submit the next attempt, or again the recorded attempt if Ray does not know it.

    The status records the attempt and its head before the submission. If a pass is interrupted
    between the two, the next pass submits the same id.
    """
    observed, head = draft.observed, draft.observed.head
    assert head is not None  # wait_for_pods
    if not observed.ray_reachable:
        draft.look_again(POLL_SECONDS)
        return True
    is_known = draft.submission is not None and observed.job is not None
    if is_known or (draft.submission is None and not _is_time(draft)):
        return True
    submission = draft.submission or _begin_attempt(draft, head.uid)
    draft.has_finalizer = True
    draft.job = Submit(
        submission_id=submission["id"],
        experiment=draft.on_cluster.to_document(),
        run_id=draft.owner.run_id(draft.status["run"]),
        resume=draft.attempt > int(draft.status.get("firstAttempt", 1)),
        storage_root=draft.status.get("storageRoot") or draft.settings.storage_root,
    )
    draft.condition(draft.work, False, SUBMITTED, f"attempt {draft.attempt} was submitted")
    draft.look_again(POLL_SECONDS)
    return True


def _is_time(draft: Draft) -> bool:
    failed = draft.status.get("lastFailureTime")
    if failed is None or draft.reason(draft.work) != RETRYING:
        return True
    left = draft.until(parse_time(failed), backoff_seconds(draft.failures))
    if left > 0:
        draft.look_again(left)
    return left <= 0


def _begin_attempt(draft: Draft, head_uid: str) -> dict[str, str]:
    attempt = draft.attempt + 1
    submission = {
        "id": draft.owner.submission_id(attempt),
        "headPodUid": head_uid,
        "time": draft.stamp(),
    }
    draft.status |= {"attempt": attempt, "submission": submission}
    return submission
