"""Rules that scale groups of inference workers, each by its own policy (`autoscaling.inference`).

They change the number of pods as for data workers (`draining`). The status of a group has the last
change, its reason and a message. The policy's memory is not stored: an operator that starts removes
no pod for one window.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from dataset_operator.api import INFERENCE, SCALED, SCALING_LIMITED
from dataset_operator.autoscaling.inference import (
    InferenceMemory,
    InferenceRules,
    InferenceSample,
    decide_inference,
)
from dataset_operator.autoscaling.interface import (
    METRICS_UNKNOWN,
    PERIOD_SECONDS,
    SCALING_DISABLED,
    TOO_MANY_REPLICAS,
    UNSCHEDULABLE,
    Rules,
)
from dataset_operator.autoscaling.interface import Decision as Answer
from dataset_operator.autoscaling.interface import Verdict as Recommendation
from dataset_operator.autoscaling.intervals import Memory
from dataset_operator.autoscaling.signals import stuck_after_seconds
from dataset_operator.documents import parse_time
from dataset_operator.groups import Group
from dataset_operator.observed import Progress
from dataset_operator.plan.draining import (
    are_refused,
    count_pods,
    count_wanted,
    find_group,
    list_draining,
    remove_workers,
    request_workers,
)
from dataset_operator.plan.outcome import Patch
from dataset_operator.plan.situation import Situation, follow
from dataset_operator.plan.verdict import NOTHING, Verdict, change, look_again, record_event
from dataset_operator.status import fit_message
from pipeline_runtime.config import InferenceWorkers, InferenceWorkerStatus

# A pass that comes this much early counts as the one that is due.
_EARLY_SECONDS = 2.0
# A new reason is reported once it has held for so many decisions.
_SETTLED_DECISIONS = 4
# Pods that could not be created are requested again after this time.
_RETRY_SECONDS = 900.0
# A status has at most 20 KiB.
MAX_MESSAGE_CHARS = 300


def keep_below_most(situation: Situation) -> Verdict | None:
    """Remove pods beyond maxReplicas, with or without metrics; never end the pass."""
    return follow(situation, *(partial(_keep_below, group=group) for group in _list(situation)))


def scale_groups(situation: Situation) -> Verdict | None:
    """Run the policy of each group once per period, and carry out its number."""
    job, submission = situation.observed.job, situation.submission
    if job is None or job.status != "RUNNING" or submission is None:
        return None
    return follow(situation, *(partial(_scale, group=group) for group in _list(situation)))


def _list(situation: Situation) -> list[Group]:
    """Return the groups of inference workers that the cluster has."""
    groups = (group for group in list_draining(situation) if group.kind.role == INFERENCE)
    return [group for group in groups if find_group(situation, group)]


def _keep_below(situation: Situation, group: Group) -> Verdict | None:
    most = group.pods.bounds.most
    if count_wanted(situation, group) <= most or situation.will(Patch):
        return None
    message = f"{_locate(group)}.maxReplicas is {most} now"
    why = Recommendation(workers=most, reason=TOO_MANY_REPLICAS, message=message)
    return _carry_out(situation, group, why, warns=False)


def _scale(situation: Situation, group: Group) -> Verdict | None:
    now, name = situation.now.timestamp(), group.pods.name
    memory = situation.observed.scaling.inference.get(name)
    memory = memory or InferenceMemory(chain=Memory(since=now))
    decided_at = memory.chain.decided_at
    if decided_at is not None and 0.0 <= now - decided_at < PERIOD_SECONDS - _EARLY_SECONDS:
        # The last measurement still tells data workers whether they wait for this group.
        return Verdict(inference={name: memory}) + look_again(PERIOD_SECONDS - now + decided_at)
    answer, memory = decide_inference(memory, _build_sample(situation, group), _build_rules(group))
    why = _explain(answer)
    reasons = (*memory.reasons, why.reason)[-_SETTLED_DECISIONS:]
    verdict = Verdict(inference={name: replace(memory, reasons=reasons)})
    verdict += look_again(PERIOD_SECONDS)
    situation = situation.after(verdict)
    if disabled := _find_disabled(situation, group):
        return verdict + _report(situation, group, disabled)
    if situation.will(Patch):
        return verdict
    if withdrawn := _withdraw(situation, group):
        return verdict + withdrawn
    if _is_refused_lately(memory, now) and answer.desired > count_wanted(situation, group):
        return verdict
    if answer.desired != count_wanted(situation, group):
        why = replace(why, workers=answer.desired)
        return verdict + _carry_out(situation, group, why, warns=_is_short(group, why))
    is_settled = reasons == (why.reason,) * _SETTLED_DECISIONS
    return verdict + (_report(situation, group, why) if is_settled else NOTHING)


def _find_disabled(situation: Situation, group: Group) -> Recommendation | None:
    """Return why the number is fixed; None if the policy chooses it."""
    bounds, number = group.pods.bounds, count_wanted(situation, group)
    if not situation.settings.autoscale:
        message = "the operator's settings turn scaling off (autoscale: false)"
    elif bounds.least == bounds.most:
        message = f"{_locate(group)}.minReplicas and maxReplicas are both {bounds.least}"
    else:
        return None
    return Recommendation(workers=number, reason=SCALING_DISABLED, message=message)


def _withdraw(situation: Situation, group: Group) -> Verdict | None:
    """Withdraw the request for pods that cannot be created, as with a quota.

    KubeRay 1.6 changes no group behind one whose pods it cannot create, so that the drained pods of
    another group would keep the quota (controllers/ray/raycluster_controller.go, reconcilePods).
    """
    wanted = count_wanted(situation, group)
    there = max(count_pods(situation, group), group.pods.bounds.least)
    if there >= wanted or not are_refused(situation, group, stuck_after_seconds(None)):
        return None
    message = (
        f"{wanted - there} of {wanted} pods cannot be created: their request is withdrawn for "
        f"{_RETRY_SECONDS / 60.0:.0f} minutes"
    )
    why = Recommendation(workers=there, reason=UNSCHEDULABLE, message=message)
    name, now = group.pods.name, situation.now.timestamp()
    memory = replace(situation.inference[name], refused_at=now)
    return _carry_out(situation, group, why, warns=True) + Verdict(inference={name: memory})


def _is_refused_lately(memory: InferenceMemory, now: float) -> bool:
    """Return whether pods could not be created a short time ago."""
    return memory.refused_at is not None and 0.0 <= now - memory.refused_at < _RETRY_SECONDS


def _explain(answer: Answer) -> Recommendation:
    """Return the reason for the number: that the signals are unknown, a limit, or the signals."""
    if answer.active.reason == METRICS_UNKNOWN:
        return answer.active
    if answer.limited is None:
        return answer.recommended
    message = f"{answer.limited.message}; {answer.recommended.message}"
    return replace(answer.limited, message=message)


def _build_sample(situation: Situation, group: Group) -> InferenceSample:
    progress = situation.observed.progress or Progress()
    assert situation.submission is not None  # scale_groups
    began = parse_time(situation.submission.time)
    return InferenceSample(
        at=situation.now.timestamp(),
        attempt=situation.attempt,
        desired=count_wanted(situation, group),
        elapsed_seconds=(situation.now - began).total_seconds(),
        counters=progress.inference.get(group.pods.name),
        done=progress.ratio if progress.read_ratio is None else progress.read_ratio,
    )


def _build_rules(group: Group) -> InferenceRules:
    bounds = group.pods.bounds
    return InferenceRules(
        bounds=Rules(min_workers=bounds.least, max_workers=bounds.most, field=_locate(group)),
        processes=max(1, group.pods.gpus),
        target_seconds=_find_target(group),
    )


def _find_target(group: Group) -> int | None:
    assert isinstance(group.pods.section, InferenceWorkers)
    return group.pods.section.target_completion_seconds


def _locate(group: Group) -> str:
    return f"{group.kind.spec_field}[{group.pods.name}]"


# --- changes of the number, and their reasons -----------------------------------------------------


def _carry_out(situation: Situation, group: Group, why: Recommendation, *, warns: bool) -> Verdict:
    """Bring the cluster closer to a number of pods, and report it."""
    before, wanted = count_wanted(situation, group), why.workers
    if wanted > before:
        staying, verdict = wanted, request_workers(situation, group, wanted)
    else:
        staying, verdict = remove_workers(situation, group, wanted)
    if staying == before:
        return verdict
    decided = situation.after(verdict)
    verdict += change(**group.mark_scaled(decided.status, decided.stamp))
    verdict += _record(situation.after(verdict), group, why)
    message = f"{before} → {staying} inference workers {group.pods.name}: {why.message}"
    return verdict + record_event(SCALED, message, warns=warns, is_outcome=True)


def _report(situation: Situation, group: Group, why: Recommendation) -> Verdict:
    """Record a new reason for an unchanged number; warn if the target will be missed.

    A message is not updated as long as its reason stays, since its numbers change all the time.
    """
    numbers = group.find_numbers(situation.status)
    assert isinstance(numbers, InferenceWorkerStatus)
    if numbers.reason == why.reason:
        return NOTHING
    verdict = _record(situation, group, why)
    if _is_short(group, why):
        message = f"inference workers {group.pods.name}: {why.message}"
        verdict += record_event(SCALING_LIMITED, message, warns=True)
    return verdict


def _is_short(group: Group, why: Recommendation) -> bool:
    """Return whether the target will be missed, about which a user can do something."""
    return why.reason == TOO_MANY_REPLICAS and _find_target(group) is not None


def _record(situation: Situation, group: Group, why: Recommendation) -> Verdict:
    message = fit_message(why.message)[:MAX_MESSAGE_CHARS]
    numbers = group.find_numbers(situation.status).change(reason=why.reason, message=message)
    return change(**group.write_numbers(situation.status, numbers))
