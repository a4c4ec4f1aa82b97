"""The rule that scales data workers: the law's number, carried out so that no row is lost.

    more    one patch that raises `replicas`
    fewer   victims are chosen and drained by Ray; once their nodes are gone, or the deadline has
            passed, one patch lowers `replicas` and lists them in `workersToDelete`; once the pods
            are gone another one empties the list

What is under way stands in the status before Ray hears of it, every patch carries the observed
resourceVersion, and each step is found by what is there: the operator may be killed anywhere.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from dataset_operator.api import (
    BOTTLENECK_ELSEWHERE,
    DATA_WORKERS,
    SCALED,
    SCALING_ACTIVE,
    SCALING_DISABLED,
    SCALING_LIMITED,
)
from dataset_operator.autoscaling import Memory, Rules, Sample, decide
from dataset_operator.autoscaling.decision import (
    DOWN,
    METRICS_UNKNOWN,
    PERIOD_SECONDS,
    TOO_MANY_REPLICAS,
    UNSCHEDULABLE,
    UP,
    Direction,
    RateLimit,
)
from dataset_operator.autoscaling.decision import Decision as Answer
from dataset_operator.autoscaling.saved import restore, save
from dataset_operator.autoscaling.signals import (
    Counters,
    Pods,
    WorkerCounters,
    stuck_after_seconds,
)
from dataset_operator.observed import Document, Pod, Progress, parse_time
from dataset_operator.plan.cluster import LOST_SECONDS
from dataset_operator.plan.decision import Drain
from dataset_operator.plan.draft import Draft
from dataset_operator.status import find_condition
from pipeline_runtime.config import ExperimentSpec, ScalingRules

# A pass that comes a little early counts as the one that was due.
_EARLY_SECONDS = 2.0
# Ray's drain ends with the running tasks; this bounds it (one piece is a few seconds of work).
DRAIN_SECONDS = 120
# Of the status' 16 KiB they take a quarter; the rest goes next.
MAX_DRAINING = 32
# Signals that were not there for so long are told as unknown: three scrapes (design, «Signals»).
UNKNOWN_SECONDS = 3 * PERIOD_SECONDS


def scale_workers(draft: Draft) -> bool:
    """Ask the law once a period, and carry out what it said; it never ends the pass."""
    job, cluster = draft.observed.job, draft.observed.ray_cluster
    if job is None or job.status != "RUNNING" or cluster is None or draft.patches:
        return False
    if _is_draining(draft):  # whatever is wanted meanwhile: what was begun is ended
        _go_on_draining(draft)
        return False
    if _has_list(draft):
        _patch_group(draft, {"scaleStrategy": {"workersToDelete": []}})
        return False
    if not draft.settings.autoscale:
        return False
    workers = draft.cluster_spec.data_workers
    if workers.min_replicas == workers.max_replicas:
        message = f"dataWorkers.minReplicas and maxReplicas are both {workers.min_replicas}"
        draft.condition(SCALING_ACTIVE, False, SCALING_DISABLED, message)
        draft.clear(SCALING_LIMITED)
        return False
    _ask_the_law(draft)
    return False


def _ask_the_law(draft: Draft) -> None:
    known, now = draft.observed.scaling, draft.now.timestamp()
    memory = known.memory or _remember(draft, now)
    if memory.last is not None and now - memory.last.at < PERIOD_SECONDS - _EARLY_SECONDS:
        draft.look_again(PERIOD_SECONDS - (now - memory.last.at))
        return
    sample = build_sample(draft)
    answer, draft.memory = decide(memory, sample, build_rules(draft.cluster_spec))
    draft.status["scaling"] = save(draft.memory)
    draft.look_again(PERIOD_SECONDS)
    _say(draft, answer)
    if answer.desired == sample.desired:
        return
    draft.status["lastScaleTime"] = draft.stamp()
    message = f"{sample.desired} → {answer.desired} data workers: {answer.recommended.message}"
    draft.tell(SCALED, message)
    if answer.desired > sample.desired:
        _patch_group(draft, {"replicas": answer.desired})
        return
    there = _workers(draft)
    if len(there) < sample.desired:  # first those that are not even there
        _patch_group(draft, {"replicas": max(answer.desired, len(there))})
        return
    victims = choose_victims(there, min(len(there) - answer.desired, MAX_DRAINING))
    _note_victims(draft, victims)
    _drain(draft)


def _remember(draft: Draft, now: float) -> Memory:
    """What an operator before this one wrote down of the run, or nothing."""
    saved = draft.status.get("scaling")
    return restore(saved, now) if saved else Memory(since=now)


def build_sample(draft: Draft) -> Sample:
    """What is known now, of the pods from the API server and of the rest from the driver."""
    progress = draft.observed.progress or Progress()
    pods = _workers(draft)
    ready = sum(pod.ready for pod in pods)
    return Sample(
        at=draft.now.timestamp(),
        attempt=draft.attempt,
        desired=_group(draft)["replicas"],
        pods=Pods(ready=ready, stuck=_count_stuck(draft, pods), start_seconds=_start_seconds(pods)),
        trainer=progress.counters.trainer,
        workers=_with_readers(progress.counters, ready),
        gpu_utilization=progress.gpu_utilization_ratio,
    )


def build_rules(spec: ExperimentSpec) -> Rules:
    """The law's rules as a spec sets them; what it leaves open is the law's default."""
    return Rules(
        min_workers=spec.data_workers.min_replicas,
        max_workers=spec.data_workers.max_replicas,
        target_utilization=spec.autoscaling.target_gpu_utilization_percent / 100.0,
        up=_build_direction(spec.autoscaling.scale_up, UP),
        down=_build_direction(spec.autoscaling.scale_down, DOWN),
        is_ordered=spec.pipeline_options.preserve_order,
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


def choose_victims(pods: Sequence[Pod], number: int) -> list[Pod]:
    """Pods to take away: those that do not work yet first, then the youngest."""

    def order(pod: Pod) -> tuple[bool, datetime, str]:
        return not pod.ready, pod.created or datetime.min.replace(tzinfo=UTC), pod.name

    return sorted(pods, key=order, reverse=True)[:number]


def _with_readers(counters: Counters, ready: int) -> WorkerCounters | None:
    workers, readers = counters.workers, counters.readers
    if workers is None or not readers or not ready:
        return None
    return WorkerCounters(
        rows=workers.rows,
        read_seconds=workers.read_seconds,
        compute_seconds=workers.compute_seconds,
        blocked_seconds=workers.blocked_seconds,
        idle_seconds=workers.idle_seconds,
        readers_per_worker=readers / ready,
    )


# --- pods and the group of the RayCluster ---------------------------------------------------------


def _group(draft: Draft) -> Document:
    assert draft.observed.ray_cluster is not None
    groups: Sequence[Document] = draft.observed.ray_cluster["spec"]["workerGroupSpecs"]
    return next(group for group in groups if group["groupName"] == DATA_WORKERS)


def _workers(draft: Draft) -> list[Pod]:
    """Data workers that are to stay."""
    going = {victim["name"] for victim in _victims(draft)}
    return [
        pod
        for pod in draft.observed.pods
        if pod.role == DATA_WORKERS and pod.ends is None and pod.name not in going
    ]


def _start_seconds(pods: Sequence[Pod]) -> float | None:
    """From made to ready, the median."""
    taken = [
        (pod.ready_since - pod.created).total_seconds()
        for pod in pods
        if pod.ready_since is not None and pod.created is not None
    ]
    return statistics.median(taken) if taken else None


def _count_stuck(draft: Draft, pods: Sequence[Pod]) -> int:
    limit = stuck_after_seconds(_start_seconds(pods))
    asked = draft.status.get("lastScaleTime")
    is_late = asked is not None and draft.until(parse_time(asked), limit) <= 0
    missing = max(0, _group(draft)["replicas"] - len(pods)) if is_late else 0  # refused by a quota
    return missing + sum(
        not pod.ready and pod.created is not None and draft.until(pod.created, limit) <= 0
        for pod in pods
    )


def _patch_group(draft: Draft, change: Document) -> None:
    """One patch of the group, which replaces the list of groups, if nobody wrote meanwhile."""
    cluster = draft.observed.ray_cluster
    assert cluster is not None
    mine = _group(draft)
    groups = [
        {**group, **change} if group is mine else group
        for group in cluster["spec"]["workerGroupSpecs"]
    ]
    version = cluster["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version}, "spec": {"workerGroupSpecs": groups}}
    draft.patches.append(("RayCluster", draft.owner.ray_cluster, patch))


# --- draining -------------------------------------------------------------------------------------


def _victims(draft: Draft) -> Sequence[Document]:
    """{name, time, ip if it has one} of those that are being drained."""
    victims: Sequence[Document] = draft.status.get("dataWorkers", {}).get("draining") or ()
    return victims


def _is_draining(draft: Draft) -> bool:
    return bool(_victims(draft))


def _has_list(draft: Draft) -> bool:
    return bool((_group(draft).get("scaleStrategy") or {}).get("workersToDelete"))


def _note_victims(draft: Draft, victims: Sequence[Pod]) -> None:
    noted = [
        {"name": pod.name, "time": draft.stamp(), **({"ip": pod.ip} if pod.ip else {})}
        for pod in victims
    ]
    draft.status["dataWorkers"] = {**draft.status.get("dataWorkers", {}), "draining": noted}


def _drain(draft: Draft) -> None:
    """Have Ray give them no more work; asked again it knows of it by its name."""
    victims = _victims(draft)
    began = parse_time(victims[0]["time"])
    draft.drain = Drain(
        submission_id=f"drain-{draft.owner.uid[:8]}-{began.timestamp():.0f}",
        addresses=tuple(victim["ip"] for victim in victims if "ip" in victim),
        deadline_seconds=DRAIN_SECONDS,
        why="fewer data workers are needed",
    )
    draft.look_again(PERIOD_SECONDS / 3)


def _go_on_draining(draft: Draft) -> None:
    """Once they are drained, or the deadline has passed, they are taken away."""
    there = {pod.name for pod in draft.observed.pods if not _is_lost(draft, pod)}
    left = [victim for victim in _victims(draft) if victim["name"] in there]
    if not left:
        _end_draining(draft)
        return
    if _is_listed(draft, left):
        draft.look_again(PERIOD_SECONDS / 3)
        return
    late = draft.until(parse_time(left[0]["time"]), DRAIN_SECONDS) <= 0
    if late or all(_is_drained(draft, victim) for victim in left):
        group = _group(draft)
        lowest = draft.cluster_spec.data_workers.min_replicas
        _patch_group(
            draft,
            {
                "replicas": max(lowest, group["replicas"] - len(left)),
                "scaleStrategy": {"workersToDelete": [victim["name"] for victim in left]},
            },
        )
        return
    _drain(draft)


def _is_lost(draft: Draft, pod: Pod) -> bool:
    """Whether it should be gone for long: its node does not answer, and nobody waits for it."""
    return pod.ends is not None and draft.until(pod.ends, LOST_SECONDS) <= 0


def _is_drained(draft: Draft, victim: Document) -> bool:
    drained = draft.observed.scaling.drained
    return "ip" not in victim or (drained is not None and victim["ip"] in drained)


def _is_listed(draft: Draft, left: Sequence[Document]) -> bool:
    listed = (_group(draft).get("scaleStrategy") or {}).get("workersToDelete") or ()
    return all(victim["name"] in listed for victim in left)


def _end_draining(draft: Draft) -> None:
    workers: dict[str, Any] = dict(draft.status.get("dataWorkers", {}))
    workers.pop("draining", None)
    draft.status["dataWorkers"] = workers
    if _has_list(draft):
        _patch_group(draft, {"scaleStrategy": {"workersToDelete": []}})


# --- words ----------------------------------------------------------------------------------------


def _say(draft: Draft, answer: Answer) -> None:
    if answer.active.reason == METRICS_UNKNOWN:
        _say_unknown(draft, answer)
        return
    draft.condition(SCALING_ACTIVE, True, answer.active.reason, answer.active.message)
    limits = list(_limits(answer))
    if limits:
        reason, message, warns = limits[0]
        _say_limited(draft, answer, True, reason, message, warns=warns)
    else:
        reason, message = answer.recommended.reason, answer.recommended.message
        _say_limited(draft, answer, False, reason, message)


def _say_limited(
    draft: Draft, answer: Answer, status: bool, reason: str, message: str, *, warns: bool = False
) -> None:
    """The numbers are those of the last decision that changed something: they move all the time."""
    before = find_condition(draft.status, SCALING_LIMITED)
    is_same = before is not None and (before["status"] == "True", before["reason"]) == (
        status,
        reason,
    )
    if is_same and before is not None and answer.desired == _group(draft)["replicas"]:
        message = before["message"]
    draft.condition(SCALING_LIMITED, status, reason, message, warns=warns)


def _say_unknown(draft: Draft, answer: Answer) -> None:
    """Once it has lasted: a driver that starts, or one scrape that fails, is nothing to tell."""
    assert draft.memory is not None
    last = draft.memory.last
    since = last.at if last is not None else draft.memory.since
    if draft.now.timestamp() - since > UNKNOWN_SECONDS:
        draft.condition(SCALING_ACTIVE, False, METRICS_UNKNOWN, answer.active.message)


def _limits(answer: Answer) -> Iterator[tuple[str, str, bool]]:
    """What keeps the number from being another, what counts most first."""
    if answer.limited is not None:
        warns = answer.limited.reason in (TOO_MANY_REPLICAS, UNSCHEDULABLE)
        yield answer.limited.reason, answer.limited.message, warns
    if answer.bottleneck is not None:
        message = f"{answer.bottleneck.stage}: {answer.bottleneck.message}"
        yield BOTTLENECK_ELSEWHERE, message, False
