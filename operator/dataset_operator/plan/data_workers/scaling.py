"""The rule that scales data workers: it runs the autoscaling policy once per period.

The policy does not count draining workers, and may request more workers meanwhile (`changes`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from dataset_operator.api import (
    BOTTLENECK_ELSEWHERE,
    SCALING_ACTIVE,
    SCALING_DISABLED,
    SCALING_LIMITED,
)
from dataset_operator.autoscaling import Memory, Rules, Sample
from dataset_operator.autoscaling.inference import find_bottleneck
from dataset_operator.autoscaling.interface import (
    DOWN,
    METRICS_UNKNOWN,
    PERIOD_SECONDS,
    SATURATION_POINT_REACHED,
    SCALE_UP_LIMIT,
    TOO_MANY_REPLICAS,
    UP,
    Bottleneck,
    Direction,
    RateLimit,
)
from dataset_operator.autoscaling.interface import Decision as Answer
from dataset_operator.autoscaling.interface import Verdict as Recommendation
from dataset_operator.autoscaling.signals import (
    Counters,
    Pods,
    WorkerCounters,
    stuck_after_seconds,
)
from dataset_operator.documents import parse_time
from dataset_operator.observed import Pod, Progress
from dataset_operator.plan.data_workers.changes import add_workers, remove_workers
from dataset_operator.plan.data_workers.chosen_policy import decide_by, restore_memory, save_memory
from dataset_operator.plan.data_workers.scale_requests import is_scaling_requested
from dataset_operator.plan.draining import (
    are_refused,
    count_pods,
    count_wanted,
    find_data_workers,
    find_group,
    find_staying,
)
from dataset_operator.plan.outcome import Patch
from dataset_operator.plan.scaling_log import list_decisions
from dataset_operator.plan.situation import Situation
from dataset_operator.plan.verdict import (
    NOTHING,
    Verdict,
    change,
    clear_conditions,
    look_again,
    set_condition,
)
from pipeline_runtime.config import Condition, ExperimentSpec, ScalingRules

# A pass that comes this much early counts as the one that is due.
_EARLY_SECONDS = 2.0
# Signals that were missing for this long, which is three scrapes, are reported as unknown.
UNKNOWN_SECONDS = 3 * PERIOD_SECONDS
# A new limit of the number is reported once it has held for so many decisions.
_SETTLED_DECISIONS = 8
# A container's start until Ray answers takes less; a pod that became ready later was ready before.
_READY_SECONDS = 120.0


def scale_workers(situation: Situation) -> Verdict | None:
    """Run the autoscaling policy once per period and carry out its number; never end the pass."""
    job, cluster = situation.observed.job, situation.observed.cluster
    if job is None or job.status != "RUNNING" or cluster is None or situation.will(Patch):
        return None
    is_known = find_group(situation, find_data_workers(situation)) is not None
    if not is_known or is_scaling_requested(situation):
        return None
    workers = situation.cluster_spec.data_workers
    if not situation.settings.autoscale:
        return clear_conditions(SCALING_ACTIVE, SCALING_LIMITED)  # they are older than the setting
    if workers.min_replicas == workers.max_replicas:
        message = f"dataWorkers.minReplicas and maxReplicas are both {workers.min_replicas}"
        disabled = set_condition(
            SCALING_ACTIVE, False, SCALING_DISABLED, message, is_recorded=False
        )
        return disabled + clear_conditions(SCALING_LIMITED)
    return _run_policy(situation)


def _run_policy(situation: Situation) -> Verdict:
    known, now = situation.observed.scaling, situation.now.timestamp()
    memory = known.memory or _restore(situation, now)
    since = math.inf if memory.decided_at is None else now - memory.decided_at
    if 0.0 <= since < PERIOD_SECONDS - _EARLY_SECONDS:  # negative: a clock was set back
        return look_again(PERIOD_SECONDS - since)
    sample = build_sample(situation)
    if situation.is_writing and sample.trainer is not None:
        sample = replace(sample, trainer=replace(sample.trainer, is_unbounded=True))
    signal, rules = situation.cluster_spec.autoscaling.signal, build_rules(situation.cluster_spec)
    answer, memory = decide_by(signal, memory, sample, rules)
    memory = _add_limit(memory, answer)
    scaling = save_memory(memory).change(decisions=list_decisions(situation.status) or None)
    verdict = Verdict(memory=memory) + change(scaling=scaling) + look_again(PERIOD_SECONDS)
    verdict += _report(situation, memory, answer, sample.desired)
    decided = situation.after(verdict)
    if answer.desired > sample.desired:
        verdict += add_workers(decided, answer, sample.desired)
    elif answer.desired < sample.desired:
        verdict += remove_workers(decided, answer, sample.desired)
    return verdict


def keep_below_most(situation: Situation) -> Verdict | None:
    """Remove data workers beyond maxReplicas, with or without metrics; never end the pass."""
    group = find_data_workers(situation)
    wanted, most = count_wanted(situation, group), group.pods.bounds.most
    if wanted <= most or situation.will(Patch):
        return None
    message = f"dataWorkers.maxReplicas is {most} now"
    why = Recommendation(workers=most, reason=TOO_MANY_REPLICAS, message=message)
    answer = Answer(desired=most, recommended=why, active=why)
    return remove_workers(situation, answer, wanted)


def _restore(situation: Situation, now: float) -> Memory:
    """Restore the memory that an earlier operator process stored for the run, or start empty."""
    saved = situation.status.scaling
    if saved is None:
        return Memory(since=now)
    trainer = situation.observed.status.trainer
    seen = trainer.last_update_time if trainer else None
    seen_at = parse_time(seen).timestamp() if seen else -math.inf  # not known
    return restore_memory(saved, now, seen_at, situation.attempt)


def build_sample(situation: Situation) -> Sample:
    """Build the policy's input: pods from the API server, everything else from the driver."""
    progress = situation.observed.progress or Progress()
    group, counters = find_data_workers(situation), progress.counters
    pods = find_staying(situation, group)
    ready = sum(pod.ready for pod in pods)
    if counters.data_workers is not None:
        ready = min(ready, int(counters.data_workers))
    return Sample(
        at=situation.now.timestamp(),
        attempt=situation.attempt,
        desired=count_wanted(situation, group),
        pods=Pods(
            ready=ready, stuck=_count_stuck(situation, pods), start_seconds=_start_seconds(pods)
        ),
        trainer=counters.trainer,
        workers=_with_readers(counters),
        gpu_utilization=progress.utilization,
        has_gpus=progress.gpu_utilization_ratio is not None,
        elsewhere=_find_elsewhere(situation),
    )


def _find_elsewhere(situation: Situation) -> Bottleneck | None:
    """Return the group of inference workers that data workers wait for; None if there is none."""
    found = (find_bottleneck(name, memory) for name, memory in situation.inference.items())
    return next(filter(None, found), None)


def build_rules(spec: ExperimentSpec) -> Rules:
    """Build the policy's rules from a spec; a field that it does not set gets the default."""
    return Rules(
        min_workers=spec.data_workers.min_replicas,
        max_workers=spec.data_workers.max_replicas,
        target_utilization=spec.autoscaling.target_gpu_utilization_percent / 100.0,
        up=_build_direction(spec.autoscaling.scale_up, UP),
        down=_build_direction(spec.autoscaling.scale_down, DOWN),
        is_ordered=spec.pipeline_options.preserve_order is True,  # off on a cluster if absent
    )


def _build_direction(rules: ScalingRules, default: Direction) -> Direction:
    window = rules.stabilization_window_seconds
    limits = tuple(
        RateLimit(type=p.type, value=p.value, period_seconds=float(p.period_seconds))
        for p in rules.policies
    )
    return Direction(
        stabilization_seconds=default.stabilization_seconds if window is None else float(window),
        limits=limits or default.limits,
        select=rules.select_policy,
    )


def _with_readers(counters: Counters) -> WorkerCounters | None:
    workers = counters.workers
    if workers is None or counters.readers is None or counters.data_workers is None:
        return None
    if min(counters.readers, counters.data_workers) < 1.0:
        return None
    return replace(workers, readers_per_worker=counters.readers / counters.data_workers)


# --- pods -----------------------------------------------------------------------------------------


def _start_seconds(pods: Sequence[Pod]) -> float | None:
    """Return the median time from creation to ready; None if no pod shows it.

    A pod that lost its readiness and became ready again does not show how long a start takes.
    """
    taken = [
        (pod.ready_since - pod.created).total_seconds()
        for pod in pods
        if pod.ready_since is not None
        and pod.created is not None
        and pod.started is not None
        and (pod.ready_since - pod.started).total_seconds() <= _READY_SECONDS
    ]
    return statistics.median(taken) if taken else None


def _count_stuck(situation: Situation, pods: Sequence[Pod]) -> int:
    limit, group = stuck_after_seconds(_start_seconds(pods)), find_data_workers(situation)
    wanted = count_wanted(situation, group) if are_refused(situation, group, limit) else 0
    missing = max(0, wanted - count_pods(situation, group))
    return missing + sum(not pod.ready and _is_waiting(situation, pod, limit) for pod in pods)


def _is_waiting(situation: Situation, pod: Pod, seconds: float) -> bool:
    """Return whether a pod has not been ready for so long, since its creation at the most."""
    since = pod.unready_since or pod.created
    return since is not None and situation.until(since, seconds) <= 0


# --- conditions ----------------------------------------------------------------------------------


def _report(situation: Situation, memory: Memory, answer: Answer, before: int) -> Verdict:
    """Set the conditions of scaling; only a change of the number is an event too."""
    if answer.active.reason == METRICS_UNKNOWN:
        return _report_unknown(situation, memory, answer)
    reason, message = answer.active.reason, answer.active.message
    active = set_condition(SCALING_ACTIVE, True, reason, message, is_recorded=False)
    limit = _find_limit(answer)
    limited = situation.status.find(SCALING_LIMITED)
    if (
        limited is not None
        and answer.desired == before
        and not _has_settled(memory, limited, limit)
    ):
        return active
    why = limit or answer.recommended
    is_limited = limit is not None
    return active + set_condition(
        SCALING_LIMITED, is_limited, why.reason, why.message, is_recorded=False
    )


def _has_settled(memory: Memory, limited: Condition, limit: Recommendation | None) -> bool:
    """Return whether another limit than the reported one has held for a while.

    A message is not updated as long as its limit stays, since its numbers change all the time.
    """
    reason = limit.reason if limit is not None else ""
    reported = limited.reason if limited.status == "True" else ""
    return reason != reported and all(seen == reason for seen in memory.limits)


def _report_unknown(situation: Situation, memory: Memory, answer: Answer) -> Verdict:
    """Report unknown metrics, unless the driver may be starting or a single scrape failed."""
    since = memory.last.at if memory.last is not None else memory.since
    if situation.now.timestamp() - since <= UNKNOWN_SECONDS:
        return NOTHING
    message, why = answer.active.message, situation.observed.scaling.unknown
    message = f"{message} ({why})" if why else message
    return set_condition(SCALING_ACTIVE, False, METRICS_UNKNOWN, message, is_recorded=False)


def _add_limit(memory: Memory, answer: Answer) -> Memory:
    limit = _find_limit(answer)
    limits = (*memory.limits, limit.reason if limit is not None else "")
    return replace(memory, limits=limits[-_SETTLED_DECISIONS:])


def _find_limit(answer: Answer) -> Recommendation | None:
    """Return the most important limit of the number; None if nothing limits it."""
    if answer.limited is not None:
        return answer.limited
    if answer.recommended.reason in (SCALE_UP_LIMIT, SATURATION_POINT_REACHED):
        return answer.recommended
    if answer.bottleneck is None:
        return None
    message = f"{answer.bottleneck.stage}: {answer.bottleneck.message}"
    return Recommendation(workers=answer.desired, reason=BOTTLENECK_ELSEWHERE, message=message)
