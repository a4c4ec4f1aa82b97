"""Rules about attempts: submit the driver, check its job, and try again after a failure."""

from __future__ import annotations

from collections.abc import Iterator

from dataset_operator.api import (
    BACKOFF_LIMIT_EXCEEDED,
    CHECKPOINT_REFUSED,
    CHECKPOINTS_DAMAGED,
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
    TRAINING,
    WRITING,
)
from dataset_operator.autoscaling.interface import PERIOD_SECONDS
from dataset_operator.documents import parse_time
from dataset_operator.groups import find_kind, locate_section, resolve_groups
from dataset_operator.observed import OUTPUT_PHASES, Job, Pod, Progress
from dataset_operator.plan.ending import POLL_SECONDS, complete_run, fail_run
from dataset_operator.plan.outcome import Submit
from dataset_operator.plan.progress import record_progress
from dataset_operator.plan.situation import Situation
from dataset_operator.plan.verdict import (
    ATTEMPT_OVER,
    END,
    NOTHING,
    Verdict,
    act,
    change,
    clear_conditions,
    look_again,
    record_event,
    set_condition,
)
from pipeline_runtime.config import SubmissionStatus

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


def judge_job(situation: Situation) -> Verdict | None:
    """Set the conditions by the state of the attempt's Ray job."""
    submission, job = situation.submission, situation.observed.job
    if submission is None:
        return None
    is_running = job is not None and job.status == "RUNNING"
    # The same period as the autoscaler's, so that one pass serves both.
    verdict = look_again(PERIOD_SECONDS if is_running else POLL_SECONDS)
    if job is None:
        return verdict  # Ray did not answer, or the job has to be submitted again
    verdict += record_progress(situation, job)
    situation = situation.after(verdict)
    if job.status == "SUCCEEDED":
        message = f"run {situation.run} is complete after attempt {situation.attempt}"
        return verdict + complete_run(situation, SUCCEEDED, message)
    if job.status == "STOPPED" and submission.stop_time is not None:
        return verdict + ATTEMPT_OVER  # it was asked to stop: this is not a failure
    if not job.is_active:
        return verdict + _judge_failure(situation, job)
    if not is_running:
        return verdict
    since = situation.status.training_start_time or situation.stamp
    report = _report_writing if situation.is_writing else _report_training
    return verdict + change(training_start_time=since) + report(situation)


def _report_writing(situation: Situation) -> Verdict:
    """Report that the attempt writes the table, and how far it is if its driver reports that."""
    progress, message = situation.observed.progress, f"attempt {situation.attempt} writes the table"
    phase = progress.table.phase if progress and progress.table else None
    if phase is not None:
        message += f": {OUTPUT_PHASES[phase]}"
        output = situation.status.output
        if output is not None and output.partitions is not None:
            done, partitions = output.complete_partitions or 0, output.partitions
            message += f"; {done} of {partitions} partitions are complete"
    elif (before := situation.status.find(WRITING)) and before.message.startswith(f"{message}:"):
        message = before.message  # the driver does not answer at the moment
    return set_condition(WRITING, True, RUNNING, message)


def _report_training(situation: Situation) -> Verdict:
    """Report that the attempt trains, and any problems that its driver has found."""
    progress, trains = situation.observed.progress, f"attempt {situation.attempt} trains"
    before = situation.status.find(TRAINING)
    reported = before.message if before is not None else ""
    message, events = trains, NOTHING
    if progress is not None:
        for reason, problem, advice in _find_problems(situation, progress):
            message += f"; {problem}"
            if problem not in reported:
                events += record_event(reason, f"{trains}; {problem}: {advice}", warns=True)
    elif reported.startswith(f"{trains};"):
        message = reported  # the driver does not answer at the moment: keep the problems
    return events + set_condition(TRAINING, True, RUNNING, message)


def _find_problems(situation: Situation, progress: Progress) -> Iterator[tuple[str, str, str]]:
    """Yield the reason, the message and the advice for each problem."""
    if progress.damaged_checkpoints:
        problem = f"{progress.damaged_checkpoints} damaged checkpoints were skipped"
        yield CHECKPOINTS_DAMAGED, problem, "steps since then are trained again; see the report"
    trainers = situation.on_cluster.spec.trainers
    # Without a GPU resource in the operator's settings, CPUs are the platform's own choice.
    wants_gpus = trainers.gpus_per_replica > 0 and situation.settings.gpu_resource is not None
    if wants_gpus and progress.cpu_ranks:
        ranks = trainers.replicas * trainers.gpus_per_replica
        problem = f"{progress.cpu_ranks} of {ranks} ranks found no GPU and train on their CPUs"
        advice = "check that torch in the image has CUDA, and that nodes have its driver"
        yield GPUS_MISSING, problem, advice


def _judge_failure(situation: Situation, job: Job) -> Verdict:
    message = shorten(job.message) or f"the job ended with status {job.status}"
    final = _FINAL_EXIT_CODES.get(job.exit_code or 0)
    if final is not None:
        return fail_run(situation, final, "the driver cannot continue", message)
    if why := next(filter(None, (blame_memory(situation, p) for p in situation.observed.pods)), ""):
        return fail_attempt(situation, OUT_OF_MEMORY, f"{why}; {message}")
    if job.out_of_memory:  # only Ray reports it, without naming a pod
        return fail_attempt(situation, OUT_OF_MEMORY, message)
    if why := _find_lost(situation):
        return fail_attempt(situation, NODE_LOST, f"{why}; {message}")
    return fail_attempt(situation, JOB_FAILED, message)


def shorten(message: str) -> str:
    """Shorten a job's message to its first line and the last whole lines of the driver's log."""
    message = message.strip()
    if len(message) <= _MAX_FIRST_CHARS + _MAX_LAST_CHARS:
        return message
    first = message.splitlines()[0][:_MAX_FIRST_CHARS]
    last = message[-_MAX_LAST_CHARS:]
    return f"{first} … {last.partition(chr(10))[2] or last}"


def blame_memory(situation: Situation, pod: Pod) -> str:
    """Return a message if the attempt ended because this pod ran out of memory; "" otherwise."""
    killed = pod.out_of_memory
    assert situation.submission is not None
    if killed is None or killed < parse_time(situation.submission.time):
        return ""
    groups = situation.observed.groups
    kind = find_kind(pod.role, groups)
    if kind is None:
        return ""  # somebody labelled the pod
    if kind.loss == "CostsUnits" and situation.until(killed, CAUSE_SECONDS) <= 0:
        return ""  # one worker of many, killed long ago, did not end the attempt
    field = locate_section(pod.role, groups)
    return f"{pod.name} ran out of memory: raise spec.{field}.resources.limits.memory"


def _find_lost(situation: Situation) -> str:
    """Return a message about a pod whose loss failed the attempt; "" if there is none.

    It was evicted, replaced or lost with its node. The loss of data workers ends no attempt.
    """
    assert situation.submission is not None
    began = parse_time(situation.submission.time)
    for group in resolve_groups(situation.on_cluster.spec, situation.observed.groups):
        if group.kind.loss != "FailsAttempt":
            continue
        noun = group.kind.noun
        pods = [pod for pod in situation.observed.pods if pod.role == group.role]
        for pod in pods:
            if pod.lost:
                return f"{pod.name} was lost ({pod.lost})"
            if pod.created is not None and pod.created > began:
                return f"a {noun} was lost and replaced by {pod.name}"
        if len(pods) < group.pods.bounds.least:
            return f"a {noun} was lost"
    return ""


def fail_attempt(situation: Situation, reason: str, message: str) -> Verdict:
    """Count a failure; retry after a pause, or fail the run once backoffLimit is exceeded."""
    failures, limit = situation.failures + 1, situation.wanted.backoff_limit
    failed = ATTEMPT_OVER + change(failures=failures, last_failure_time=situation.stamp)
    if failures > limit:
        attempts = "1 attempt" if failures == 1 else f"{failures} attempts"
        what = f"{attempts} failed; backoffLimit is {limit}"
        cause = f"last failure ({reason}): {message}"
        if uri := situation.status.artifacts_uri:
            cause = f"logs are in {uri}; {cause}"
        return failed + fail_run(situation.after(failed), BACKOFF_LIMIT_EXCEEDED, what, cause)
    pause, attempt = backoff_seconds(failures), situation.attempt
    why = f"attempt {attempt} failed ({reason}); the next attempt starts in {pause:.0f} s"
    # The condition is cleared first, so that every failure is reported.
    failed += clear_conditions(situation.work)
    retrying = set_condition(situation.work, False, RETRYING, f"{why}: {message}", warns=True)
    return failed + retrying + look_again(0.0) + END


def backoff_seconds(failures: int) -> float:
    """Return the pause before the next attempt."""
    return min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(failures - 1, 30))


def submit(situation: Situation) -> Verdict:
    """Submit the next attempt, or again the recorded attempt if Ray does not know it.

    The status records the attempt and its head before the submission. If a pass is interrupted
    between the two, the next pass submits the same id.
    """
    observed, owner, status = situation.observed, situation.owner, situation.status
    submission, attempt = situation.submission, situation.attempt
    assert observed.head is not None  # wait_for_pods
    if not observed.ray_reachable:
        return look_again(POLL_SECONDS) + END
    if submission is None:
        if (pause := _find_pause(situation)) > 0:
            return look_again(pause) + END
        attempt += 1
        submission = SubmissionStatus(
            id=owner.submission_id(attempt),
            head_pod_uid=observed.head.uid,
            time=situation.stamp,
        )
    elif observed.job is not None:
        return END  # Ray knows it
    job = Submit(
        submission_id=submission.id,
        experiment=situation.on_cluster.to_document(),
        run_id=owner.run_id(situation.run),
        resume=attempt > (status.first_attempt or 1),
        storage_root=status.storage_root or situation.settings.storage_root,
    )
    submitted = change(attempt=attempt, submission=submission) + Verdict(has_finalizer=True)
    submitted += set_condition(situation.work, False, SUBMITTED, f"attempt {attempt} was submitted")
    return submitted + act(job) + look_again(POLL_SECONDS) + END


def _find_pause(situation: Situation) -> float:
    """Return the seconds until the next attempt; not positive if it is due."""
    failed = situation.status.last_failure_time
    if failed is None or situation.reason(situation.work) != RETRYING:
        return 0.0
    return situation.until(failed, backoff_seconds(situation.failures))
