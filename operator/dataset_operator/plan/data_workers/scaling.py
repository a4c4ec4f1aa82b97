"""The rule that scales data workers: it runs the autoscaling policy once per period.

More workers are one patch that raises `replicas`. Fewer workers are drained first
(`draining`); the policy does not count draining workers, and may ask for more meanwhile.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dataset_operator.api import (
    BOTTLENECK_ELSEWHERE,
    REPLICA_FAILURE,
    SCALED,
    SCALING_ACTIVE,
    SCALING_DISABLED,
    SCALING_LIMITED,
)
from dataset_operator.autoscaling import Memory, Rules, Sample
from dataset_operator.autoscaling.interface import (
    DOWN,
    METRICS_UNKNOWN,
    PERIOD_SECONDS,
    SATURATION_POINT_REACHED,
    SCALE_UP_LIMIT,
    TOO_MANY_REPLICAS,
    UNSCHEDULABLE,
    UP,
    Direction,
    RateLimit,
    Verdict,
)
from dataset_operator.autoscaling.interface import Decision as Answer
from dataset_operator.autoscaling.signals import (
    Counters,
    Pods,
    WorkerCounters,
    stuck_after_seconds,
)
from dataset_operator.documents import parse_time
from dataset_operator.observed import Pod, Progress
from dataset_operator.plan.data_workers.chosen_policy import decide_by, restore_memory, save_memory
from dataset_operator.plan.data_workers.draining import (
    ask_for,
    begin_draining,
    choose_victims,
    count_pods,
    count_wanted,
    find_group,
    find_staying,
    is_leaving,
)
from dataset_operator.plan.draft import Draft
from dataset_operator.plan.scaling_log import carry_decisions, note_decision
from dataset_operator.status import find_condition
from pipeline_runtime.config import ExperimentSpec, ScalingRules

# A pass that comes this much early counts as the one that is due.
_EARLY_SECONDS = 2.0
# Signals that were missing for this long, which is three scrapes, are reported as unknown.
UNKNOWN_SECONDS = 3 * PERIOD_SECONDS
# A new limit of the number is reported once it has held for so many decisions.
_SETTLED_DECISIONS = 8
# A container's start until Ray answers takes less; a pod that became ready later was ready before.
_READY_SECONDS = 120.0


def scale_workers(draft: Draft) -> bool:
    """Run the autoscaling policy once per period and carry out its number; never end the pass."""
    job, cluster = draft.observed.job, draft.observed.ray_cluster
    if job is None or job.status != "RUNNING" or cluster is None or draft.patches:
        return False
    if find_group(draft) is None or draft.is_scaling_requested:
        return False
    workers = draft.cluster_spec.data_workers
    if not draft.settings.autoscale:
        draft.clear(SCALING_ACTIVE, SCALING_LIMITED)  # they are older than the setting
    elif workers.min_replicas == workers.max_replicas:
        message = f"dataWorkers.minReplicas and maxReplicas are both {workers.min_replicas}"
        draft.condition(SCALING_ACTIVE, False, SCALING_DISABLED, message, tells=False)
        draft.clear(SCALING_LIMITED)
    else:
        _ask_the_law(draft)
    return False


def _ask_the_law(draft: Draft) -> None:
    known, now = draft.observed.scaling, draft.now.timestamp()
    memory = known.memory or _remember(draft, now)
    since = math.inf if memory.decided_at is None else now - memory.decided_at
    if 0.0 <= since < PERIOD_SECONDS - _EARLY_SECONDS:  # negative: a clock was set back
        draft.look_again(PERIOD_SECONDS - since)
        return
    sample = build_sample(draft)
    if draft.is_writing and sample.trainer is not None:
        sample = replace(sample, trainer=replace(sample.trainer, is_unbounded=True))
    signal, rules = draft.cluster_spec.autoscaling.signal, build_rules(draft.cluster_spec)
    answer, draft.memory = decide_by(signal, memory, sample, rules)
    draft.memory = _note_limit(draft.memory, answer)
    draft.status["scaling"] = save_memory(draft.memory) | carry_decisions(draft)
    draft.look_again(PERIOD_SECONDS)
    _say(draft, answer, sample.desired)
    if answer.desired > sample.desired:
        tell_change(draft, answer, sample.desired)
        ask_for(draft, answer.desired)
    elif answer.desired < sample.desired:
        take_away(draft, answer, sample.desired)


def keep_below_most(draft: Draft) -> bool:
    """Remove data workers beyond maxReplicas, with or without metrics; never end the pass."""
    wanted, most = count_wanted(draft), draft.cluster_spec.data_workers.max_replicas
    if wanted > most and not draft.patches:
        why = Verdict(
            workers=most,
            reason=TOO_MANY_REPLICAS,
            message=f"dataWorkers.maxReplicas is {most} now",
        )
        take_away(draft, Answer(desired=most, recommended=why, active=why), wanted)
    return False


def tell_change(draft: Draft, answer: Answer, before: int) -> None:
    """Record a change of the number and report it as an event."""
    draft.status["lastScaleTime"] = draft.stamp()
    if "sinceTime" in (draft.status.get("scaling") or {}):  # else no policy decides
        note_decision(draft, answer, before)
    why = answer.recommended.message
    if answer.limited is not None:
        why = f"{why}; {answer.limited.message}"
    reason = answer.limited.reason if answer.limited is not None else ""
    # A table is written with as many workers as there may be; GPUs must not wait for them.
    warns = reason == UNSCHEDULABLE or (reason == TOO_MANY_REPLICAS and not draft.is_writing)
    draft.tell(
        SCALED, f"{before} → {answer.desired} data workers: {why}", warns=warns, is_outcome=True
    )


def take_away(draft: Draft, answer: Answer, before: int) -> None:
    """Take data workers away: those that cannot be had first, then others, which are drained.

    It does nothing while others are leaving, or while KubeRay may be making pods.
    """
    if is_leaving(draft):
        return
    missing = before - count_pods(draft)
    if missing > 0:
        # If KubeRay is creating pods now, a lower number would make it delete any pods it likes.
        if draft.submission is None or _are_refused(draft, stuck_after_seconds(None)):
            staying = max(answer.desired, before - missing)
            tell_change(draft, replace(answer, desired=staying), before)
            ask_for(draft, staying)
        return
    victims = choose_victims(find_staying(draft), before - answer.desired)
    staying = begin_draining(draft, victims, before - len(victims))
    if staying < before:
        tell_change(draft, replace(answer, desired=staying), before)


def _remember(draft: Draft, now: float) -> Memory:
    """Restore the memory that an earlier operator process stored for the run, or start empty."""
    saved = draft.status.get("scaling")
    if saved is None or "sinceTime" not in saved:
        return Memory(since=now)
    trainer = draft.observed.status.trainer
    seen = trainer.last_update_time if trainer else None
    seen_at = parse_time(seen).timestamp() if seen else -math.inf  # not known
    return restore_memory(saved, now, seen_at, draft.attempt)


def build_sample(draft: Draft) -> Sample:
    """Build the policy's input: pods from the API server, everything else from the driver."""
    progress = draft.observed.progress or Progress()
    pods, counters = find_staying(draft), progress.counters
    ready = sum(pod.ready for pod in pods)
    if counters.data_workers is not None:
        ready = min(ready, int(counters.data_workers))
    return Sample(
        at=draft.now.timestamp(),
        attempt=draft.attempt,
        desired=count_wanted(draft),
        pods=Pods(ready=ready, stuck=_count_stuck(draft, pods), start_seconds=_start_seconds(pods)),
        trainer=counters.trainer,
        workers=_with_readers(counters),
        gpu_utilization=progress.utilization,
        has_gpus=progress.gpu_utilization_ratio is not None,
    )


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


def _count_stuck(draft: Draft, pods: Sequence[Pod]) -> int:
    limit = stuck_after_seconds(_start_seconds(pods))
    is_refused = _are_refused(draft, limit)
    missing = max(0, count_wanted(draft) - count_pods(draft)) if is_refused else 0
    return missing + sum(not pod.ready and _is_waiting(draft, pod, limit) for pod in pods)


def _are_refused(draft: Draft, seconds: float) -> bool:
    """Return whether KubeRay has failed to create pods for so long, as with a quota.

    The last change of the number must be as old: until then, missing pods may be in creation.
    """
    cluster = draft.observed.ray_cluster or {}
    found = find_condition(cluster.get("status") or {}, REPLICA_FAILURE)
    if found is None or found["status"] != "True":
        return False
    asked = draft.status.get("lastScaleTime")
    times = [time for time in (asked, found.get("lastTransitionTime")) if time]
    return bool(times) and all(draft.until(parse_time(time), seconds) <= 0 for time in times)


def _is_waiting(draft: Draft, pod: Pod, seconds: float) -> bool:
    """Return whether a pod has not been ready for so long, since its creation at the most."""
    since = pod.unready_since or pod.created
    return since is not None and draft.until(since, seconds) <= 0


# --- conditions ----------------------------------------------------------------------------------


def _say(draft: Draft, answer: Answer, before: int) -> None:
    """Set the conditions of scaling; only a change of the number is an event too."""
    if answer.active.reason == METRICS_UNKNOWN:
        _say_unknown(draft, answer)
        return
    draft.condition(SCALING_ACTIVE, True, answer.active.reason, answer.active.message, tells=False)
    limit = _find_limit(answer)
    limited = find_condition(draft.status, SCALING_LIMITED)
    if limited is not None and answer.desired == before and not _has_settled(draft, limited, limit):
        return
    verdict = limit or answer.recommended
    is_limited = limit is not None
    draft.condition(SCALING_LIMITED, is_limited, verdict.reason, verdict.message, tells=False)


def _has_settled(draft: Draft, limited: Mapping[str, Any], limit: Verdict | None) -> bool:
    """Return whether another limit than the reported one has held for a while.

    A message is not updated as long as its limit stays, since its numbers change all the time.
    """
    assert draft.memory is not None
    reason = limit.reason if limit is not None else ""
    told = limited["reason"] if limited["status"] == "True" else ""
    return reason != told and all(seen == reason for seen in draft.memory.limits)


def _say_unknown(draft: Draft, answer: Answer) -> None:
    """Report unknown metrics, unless the driver may be starting or a single scrape failed."""
    assert draft.memory is not None
    last = draft.memory.last
    since = last.at if last is not None else draft.memory.since
    if draft.now.timestamp() - since > UNKNOWN_SECONDS:
        said, why = answer.active.message, draft.observed.scaling.unknown
        message = f"{said} ({why})" if why else said
        draft.condition(SCALING_ACTIVE, False, METRICS_UNKNOWN, message, tells=False)


def _note_limit(memory: Memory, answer: Answer) -> Memory:
    limit = _find_limit(answer)
    limits = (*memory.limits, limit.reason if limit is not None else "")
    return replace(memory, limits=limits[-_SETTLED_DECISIONS:])


def _find_limit(answer: Answer) -> Verdict | None:
    """Return the most important limit of the number; None if nothing limits it."""
    if answer.limited is not None:
        return answer.limited
    if answer.recommended.reason in (SCALE_UP_LIMIT, SATURATION_POINT_REACHED):
        return answer.recommended
    if answer.bottleneck is None:
        return None
    message = f"{answer.bottleneck.stage}: {answer.bottleneck.message}"
    return Verdict(workers=answer.desired, reason=BOTTLENECK_ELSEWHERE, message=message)
