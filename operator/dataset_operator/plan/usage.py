"""Accounts what a run has used so far, in GPU seconds and data worker seconds.

A pod is held, and paid for, from when it gets a node until it leaves it, ready or not. Existing
pods are counted to the second by their own timestamps, even if no operator ran for a while. A pod
that is gone has no timestamps any more. It counts until the pass that its deletion triggers; after
a gap between passes, only until the gap began.

The status has sums up to `accounted.time`. They are written with every other change, at once when
fewer pods are held, and otherwise once per minute. A pass that is repeated, or whose write is lost,
starts from the sums in the status, so nothing counts twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pydantic.alias_generators import to_snake

from dataset_operator.api import TRAINERS, Role
from dataset_operator.documents import format_time, parse_time
from dataset_operator.groups import (
    GPU_SECONDS,
    Bounds,
    Group,
    PodSet,
    find_kind,
    resolve_groups,
    sum_usage,
)
from dataset_operator.observed import Pod, Progress
from dataset_operator.plan.composing import is_status_new
from dataset_operator.plan.outcome import DeleteSelf
from dataset_operator.plan.situation import Situation
from dataset_operator.plan.verdict import NOTHING, Verdict, change, look_again
from dataset_operator.settings import Prices
from pipeline_runtime.config import (
    MAX_INFERENCE_GROUPS,
    AccountedGroupStatus,
    AccountedStatus,
    PodGroup,
    UsageStatus,
)

UPDATE_SECONDS = 60
# After a longer gap it is not known when missing pods ended, nor how busy the GPUs were: the driver
# reports its last minute, and a pass may be a minute late.
WATCHED_SECONDS = 2 * UPDATE_SECONDS
_HOUR_SECONDS = 3600.0
_REST_DIGITS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """Held pods of a role: their number at the start and end of a span, and their seconds in it."""

    before: int
    now: int
    seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """The time since the last account, and the pods of each group that were held in it."""

    start: datetime
    end: datetime
    groups: tuple[Group, ...]
    held: Mapping[Role, _Held]

    @property
    def is_used(self) -> bool:
        """Return whether any pod was held in the span."""
        return any(held.now or held.before or held.seconds for held in self.held.values())

    @property
    def has_pods(self) -> bool:
        """Return whether any pod is held at the end of the span."""
        return any(held.now for held in self.held.values())

    @property
    def has_fewer(self) -> bool:
        """Return whether fewer pods are held than before; the missing pods count until now."""
        return any(held.now < held.before for held in self.held.values())

    @property
    def is_watched(self) -> bool:
        """Return whether an operator ran during the whole span."""
        return _seconds(self.start, self.end) <= WATCHED_SECONDS


def account(situation: Situation) -> Verdict | None:
    """Add the usage since the last account to the status, if a write is due."""
    is_running = situation.judged.experiment is not None and situation.status.run is not None
    if not is_running or situation.will(DeleteSelf):
        return None
    usage = situation.status.usage or UsageStatus()
    span = _look(situation, usage.accounted)
    if span is None or not span.is_used:
        return None
    left, verdict = situation.until(span.start, UPDATE_SECONDS), NOTHING
    is_new = situation.status.usage is None
    if is_new or left <= 0 or span.has_fewer or is_status_new(situation):
        verdict, left = change(usage=_add(situation, usage, span)), UPDATE_SECONDS
    return verdict + look_again(left) if span.has_pods else verdict


def _look(situation: Situation, before: AccountedStatus | None) -> _Span | None:
    """Measure the span until now; None if the last account lies ahead of this clock."""
    start = parse_time(before.time if before else situation.start_time)
    end = parse_time(situation.stamp)  # whole seconds, like the times of pods
    if end < start:
        return None
    pods = situation.observed.pods
    groups, held = _find_groups(situation, before), {}
    for group in groups:
        mine = [pod for pod in pods if pod.role == group.role]
        held[group.role] = _measure(mine, _recall(before, group), (start, end))
    return _Span(start=start, end=end, groups=groups, held=held)


def _find_groups(situation: Situation, before: AccountedStatus | None) -> tuple[Group, ...]:
    """Return the groups of the cluster; if it is gone, with the GPUs of the last account.

    The groups of a list also have these while the cluster is older than the spec. Groups that the
    spec no longer has are counted until their pods are gone.
    """
    spec = situation.on_cluster.spec
    if situation.observed.cluster is None and before is not None:
        gpus = {"gpus_per_replica": before.gpus_per_trainer}
        spec = spec.model_copy(update={"trainers": spec.trainers.model_copy(update=gpus)})
    groups = resolve_groups(spec, situation.observed.groups)
    groups += _find_former(situation, before, groups)
    is_current = situation.observed.cluster is not None and not situation.is_cluster_changed
    if is_current or before is None:
        return groups
    known = {group.name: group.gpus_per_replica for group in before.groups}
    return tuple(
        replace(g, pods=replace(g.pods, gpus=known[g.role])) if g.role in known else g
        for g in groups
    )


def _find_former(
    situation: Situation, before: AccountedStatus | None, groups: Sequence[Group]
) -> tuple[Group, ...]:
    """Return groups of the last account that had pods, and are not among those of the spec."""
    roles = {group.role for group in groups}
    known = [each for each in before.groups if each.replicas] if before else []
    former = []
    for each in known:
        kind = find_kind(each.name, situation.observed.groups)
        if kind is not None and kind.is_list and each.name not in roles:
            pods = PodSet(
                section=PodGroup(),
                bounds=Bounds(0, 0, 0),
                gpus=each.gpus_per_replica,
                num_needed=0,
                num_kept=0,
                name=each.name.removeprefix(f"{kind.role}-"),
            )
            former.append(Group(kind=kind, pods=pods))
    room = MAX_INFERENCE_GROUPS - sum(group.kind.is_list for group in groups)
    return tuple(former[:room])


def _recall(before: AccountedStatus | None, group: Group) -> int:
    """Return the number of pods in the last account."""
    if before is None:
        return 0
    if group.kind.is_list:
        return sum(each.replicas for each in before.groups if each.name == group.role)
    found: int = getattr(before, group.kind.attribute)
    return found


def _measure(pods: Sequence[Pod], before: int, span: tuple[datetime, datetime]) -> _Held:
    start, end = span
    pods = [pod for pod in pods if pod.scheduled is not None]
    parts = [_seconds(max(start, pod.scheduled or end), _left_at(pod, end)) for pod in pods]
    # A pod of this span may be one of the pods before. A replacement that came within the span is
    # taken for the pod that it replaced, so that both together are not counted twice.
    gone = max(0, before - sum(_left_at(pod, end) > start for pod in pods))
    seconds = sum(max(0, part) for part in parts)
    if _seconds(start, end) <= WATCHED_SECONDS:
        seconds += gone * _seconds(start, end)
    return _Held(before=before, now=sum(_is_held(pod, end) for pod in pods), seconds=seconds)


def _is_held(pod: Pod, now: datetime) -> bool:
    """Return whether a pod is still held."""
    return all(moment is None or moment > now for moment in (pod.over, pod.ends))


def _left_at(pod: Pod, now: datetime) -> datetime:
    """Return when a pod left its node, or now; on a lost node, the end of its grace period."""
    return min([now, *(moment for moment in (pod.over, pod.ends) if moment is not None)])


def _seconds(start: datetime, end: datetime) -> int:
    return int((end - start).total_seconds())


def _add(situation: Situation, usage: UsageStatus, span: _Span) -> UsageStatus:
    seconds = {role: held.seconds for role, held in span.held.items()}
    used = sum_usage(seconds, span.groups)
    kinds = situation.observed.groups
    fields = (GPU_SECONDS, *(kind.usage for kind in kinds if kind.usage))
    sums = {name: getattr(usage, to_snake(name)) + used.get(name, 0) for name in fields}
    # The driver reports how busy the GPUs of the trainers were.
    trainers = [group for group in span.groups if group.role == TRAINERS]
    gpus = sum_usage(seconds, trainers).get(GPU_SECONDS, 0)
    share = _find_idle_share(situation.observed.progress) if span.is_watched else None
    before = float(usage.accounted.gpu_idle_remainder_seconds) if usage.accounted else 0.0
    rest = before + gpus * (share or 0.0)
    idle = math.floor(round(rest, _REST_DIGITS))
    accounted = AccountedStatus(
        time=format_time(span.end),
        gpus_per_trainer=sum(group.pods.gpus for group in trainers),
        gpu_idle_remainder_seconds=f"{max(0.0, rest - idle):.{_REST_DIGITS}f}",
        groups=tuple(
            AccountedGroupStatus(
                name=group.role,
                replicas=span.held[group.role].now,
                gpus_per_replica=group.pods.gpus,
            )
            for group in span.groups
            if group.kind.is_list
        ),
    )
    now = {
        kind.attribute: span.held[kind.role].now if kind.role in span.held else 0
        for kind in kinds
        if not kind.is_list
    }
    summed = usage.change(
        **{to_snake(name): number for name, number in sums.items()},
        gpu_measured_seconds=usage.gpu_measured_seconds + (0 if share is None else gpus),
        gpu_idle_seconds=usage.gpu_idle_seconds + idle,
        cost=None,
        currency=None,
        accounted=accounted.change(**now),
    )
    return _price(summed, situation.settings.prices)


def _find_idle_share(progress: Progress | None) -> float | None:
    """Return the idle share of the GPUs' time, 0 to 1; None if it is not known."""
    if progress is None:
        return None
    if progress.gpu_utilization_ratio is not None:
        return 1.0 - progress.gpu_utilization_ratio
    return progress.production_wait_ratio


def _price(usage: UsageStatus, prices: Prices | None) -> UsageStatus:
    """Add the cost of the sums, by the present prices."""
    if prices is None:
        return usage
    gpus, workers = usage.gpu_seconds, usage.data_worker_seconds
    cost = gpus * prices.gpu_hour + workers * prices.data_worker_hour
    return usage.change(cost=f"{cost / _HOUR_SECONDS:.2f}", currency=prices.currency)
