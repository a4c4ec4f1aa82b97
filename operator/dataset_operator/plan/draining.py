"""Removes workers without losing a row: victims are drained before their pods are deleted.

It does so for each group that Ray drains (`groups.Draining`). Every change of a number of pods goes
through here: more workers are one patch that raises `replicas`, fewer workers are drained first.

    begin     record the victims and the number of staying workers; Ray gives victims no more work
    go on     once their nodes are drained, or the deadline has passed, one patch lowers `replicas`
              and lists the victims in `workersToDelete`
    end       remove a name from the list, and its record, once the pod is gone

The status records a drain before Ray is asked, every patch carries the observed resourceVersion,
and each step follows from the observed state. So the operator may be killed at any point. A pass
patches the RayCluster once, since the patch of one group carries all of them; a group whose turn it
was not is looked at again in the next pass, which the patch triggers.

KubeRay counts every pod of the group that is not on the list, terminating pods included. Therefore
`replicas` is the number of staying workers plus the number of victims that are not listed.

- A victim that ends before it is listed is replaced by KubeRay; the replacement is removed instead.
- A pod on a lost node is never force-deleted by the operator. It becomes a victim that is not
  listed, so that KubeRay creates a replacement: KubeRay 1.6 does not change a group while a pod
  that it deleted is still there (controllers/ray/expectations/scale_expectations.go). If the node
  is lost after the pod was listed, KubeRay waits, and so does every drain, until the pod is gone.
- A number that somebody else wrote into `replicas` becomes the number of staying workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from dataset_operator.api import DATA_WORKERS, NODE_LOST
from dataset_operator.autoscaling.interface import PERIOD_SECONDS
from dataset_operator.autoscaling.signals import stuck_after_seconds
from dataset_operator.builders.frozen import resize_group
from dataset_operator.documents import parse_time
from dataset_operator.groups import Group, list_scaled, resolve_groups
from dataset_operator.observed import ObservedGroup, Pod
from dataset_operator.plan.cluster_objects import change_numbers, forget_drain
from dataset_operator.plan.outcome import Drain, Patch
from dataset_operator.plan.ray_cluster import LOST_SECONDS
from dataset_operator.plan.scaling_log import list_decisions
from dataset_operator.plan.situation import Situation, follow
from dataset_operator.plan.verdict import (
    NOTHING,
    Verdict,
    act,
    change,
    look_again,
    record_event,
)
from pipeline_runtime.config import DrainingStatus, WorkerStatus

# Ray's drain ends with the running tasks; this bounds it (one chunk is a few seconds of work).
DRAIN_SECONDS = 120
# Victims of all groups; they take a quarter of the status' 20 KiB. Others follow in a later drain.
MAX_DRAINING = 32
LOOK_SECONDS = PERIOD_SECONDS / 3

Victims = tuple[DrainingStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sorted:
    """The recorded victims, by their state.

    Attributes:
        going: the pod exists and is not listed.
        lost: the pod exists and is never listed, since its node does not answer.
        leaving: the pod exists and is listed, on a node that answers.
        gone: the pod does not exist, or is listed and on a lost node.
    """

    going: Victims
    lost: Victims
    leaving: Victims
    gone: Victims


# --- observed state -------------------------------------------------------------------------------


def find_group(situation: Situation, group: Group) -> ObservedGroup | None:
    """Return a group of the RayCluster; None if it or its `replicas` is missing."""
    cluster = situation.observed.cluster
    found = cluster.find_group(group.role) if cluster else None
    return found if found and found.replicas is not None else None


def list_draining(situation: Situation) -> list[Group]:
    """Return the groups that Ray drains, data workers first."""
    kinds = [kind for kind in list_scaled(situation.observed.groups) if kind.drains == "ByRay"]
    return list(resolve_groups(situation.cluster_spec, kinds))


def find_data_workers(situation: Situation) -> Group:
    """Return the group of data workers, which every spec has."""
    return next(group for group in list_draining(situation) if group.role == DATA_WORKERS)


def count_wanted(situation: Situation, group: Group) -> int:
    """Return the wanted number of workers, without victims."""
    workers = _workers(situation, group)
    if workers.draining and workers.draining_to is not None:
        return workers.draining_to
    return _get_replicas(situation, group)


def count_pods(situation: Situation, group: Group) -> int:
    """Return the number of pods of a group, terminating pods included, without victims."""
    going = _name_going(situation, group)
    return sum(pod.name not in going for pod in _pods(situation, group))


def find_staying(situation: Situation, group: Group) -> list[Pod]:
    """Return the pods of a group that neither terminate nor are victims."""
    going = _name_going(situation, group)
    return [pod for pod in _pods(situation, group) if pod.ends is None and pod.name not in going]


def is_leaving(situation: Situation, group: Group) -> bool:
    """Return whether workers of a group are being drained; those on lost nodes do not count."""
    return any(not victim.lost for victim in _workers(situation, group).draining)


def choose_victims(pods: Sequence[Pod], number: int) -> list[Pod]:
    """Choose the pods to remove: pods that are not ready first, then the youngest."""

    def order(pod: Pod) -> tuple[bool, datetime, str]:
        return not pod.ready, pod.created or datetime.min.replace(tzinfo=UTC), pod.name

    return sorted(pods, key=order, reverse=True)[:number]


# --- rules and requests ---------------------------------------------------------------------------


def request_workers(situation: Situation, group: Group, wanted: int) -> Verdict:
    """Set the number of staying workers; victims that are being drained come on top."""
    victims, workers = _sort(situation, group), _workers(situation, group)
    verdict = NOTHING
    if workers.draining:
        wanted = _leave_room(situation, group, wanted)
        verdict = _record(situation, group, workers.change(draining_to=wanted))
    replicas = wanted + len(victims.going) + len(victims.lost)
    return verdict + _patch(situation, group, replicas, _listed(situation, group))


def begin_draining(
    situation: Situation, group: Group, pods: Sequence[Pod], staying: int
) -> tuple[int, Verdict]:
    """Record the victims and the number of staying workers, and have Ray drain the victims.

    Returns:
        The number of staying workers, which is higher than wanted if the status has no room for all
        victims, and the verdict.
    """
    workers = _workers(situation, group)
    room = _count_room(situation)
    added = tuple(_build_victim(situation, pod) for pod in pods[:room])
    staying += len(pods) - len(added)
    if not added:
        return staying, NOTHING
    recorded = workers.change(draining=(*workers.draining, *added), draining_to=staying)
    return staying, _record(situation, group, recorded) + _drain(situation, group, added)


def remove_workers(situation: Situation, group: Group, wanted: int) -> tuple[int, Verdict]:
    """Remove workers: those that cannot be had first, then others, which are drained.

    It does nothing while others are leaving, or while KubeRay may be making pods.

    Returns:
        The number of staying workers, which may be higher than wanted, and the verdict.
    """
    before = count_wanted(situation, group)
    if is_leaving(situation, group):
        return before, NOTHING
    missing = before - count_pods(situation, group)
    if missing > 0:
        # If KubeRay is creating pods now, a lower number would make it delete any pods it likes.
        if situation.submission is not None and not are_refused(
            situation, group, stuck_after_seconds(None)
        ):
            return before, NOTHING
        staying = max(wanted, before - missing)
        return staying, request_workers(situation, group, staying)
    victims = choose_victims(find_staying(situation, group), before - wanted)
    return begin_draining(situation, group, victims, before - len(victims))


def are_refused(situation: Situation, group: Group, seconds: float) -> bool:
    """Return whether KubeRay has failed to create pods for so long, as with a quota.

    The last change of the number must be as old: until then, missing pods may be in creation.
    """
    cluster = situation.observed.cluster
    if cluster is None or cluster.failure is None:
        return False
    scaled = group.find_scale_time(situation.status)
    times = [time for time in (scaled, cluster.failure.since) if time]
    return bool(times) and all(situation.until(time, seconds) <= 0 for time in times)


def forget_lost_cluster(situation: Situation) -> Verdict | None:
    """Forget draining workers if the cluster is gone; the next starts with the staying count."""
    if situation.observed.cluster is not None:
        return None
    return change_numbers(situation, forget_drain)


def go_on_draining(situation: Situation) -> Verdict | None:
    """Take the next step of each drain that was begun; never end the pass."""
    # The victims are known only after the changes by others, so the step comes last.
    rules = (_adopt_replicas, _record_lost, _keep_above_least, _take_step)
    groups = [group for group in list_draining(situation) if find_group(situation, group)]
    return follow(situation, *(partial(rule, group=group) for group in groups for rule in rules))


def _take_step(situation: Situation, group: Group) -> Verdict | None:
    if situation.will(Patch):
        return None
    victims = _sort(situation, group)
    due = _find_due(situation, group, victims.going)
    verdict = NOTHING
    if victims.going and not due:
        verdict = _drain(situation, group, victims.going)
    elif victims.leaving or len(due) < len(victims.going):
        verdict = look_again(LOOK_SECONDS)
    return verdict + _write(situation, group, victims, due)


def _write(situation: Situation, group: Group, victims: _Sorted, due: Victims) -> Verdict:
    """Patch `replicas` and `workersToDelete`, and forget victims that are gone."""
    workers, present = _workers(situation, group), _get_replicas(situation, group)
    there = {pod.name for pod in _pods(situation, group)}
    kept = [name for name in _listed(situation, group) if name in there]
    recorded, replicas = workers.draining, present
    if recorded:
        replicas = (
            count_wanted(situation, group) + len(victims.lost) + len(victims.going) - len(due)
        )
    stand_ins: Victims = ()
    ending: Victims = ()
    if replicas < present:
        stand_ins = _find_stand_ins(situation, group, victims)
        if stand_ins:
            recorded = tuple(victim for victim in recorded if victim not in victims.gone)
        counted = len(there) - len(kept) - len(due) - len(stand_ins)
        room = _count_room(situation) + len(workers.draining) - len(recorded) - len(stand_ins)
        ending = _find_ending(situation, group, min(counted - replicas, room))
        replicas += len(ending)
    names = [*kept, *(victim.name for victim in (*due, *stand_ins))]
    verdict = NOTHING
    if stand_ins or ending:
        workers = workers.change(draining=(*recorded, *stand_ins, *ending))
        verdict += _record(situation, group, workers)
    if replicas == present and victims.gone:
        verdict += _forget(situation, group, workers, victims.gone)
    if (replicas, names) != (present, list(_listed(situation, group))):
        verdict += _patch(situation, group, replicas, names)
    return verdict


def _find_stand_ins(situation: Situation, group: Group, victims: _Sorted) -> Victims:
    """Find the pods that KubeRay created in place of victims that ended by themselves."""
    if not victims.gone:
        return ()
    began = min(parse_time(victim.time) for victim in victims.gone)
    pods = find_staying(situation, group)
    younger = [pod for pod in pods if pod.created is not None and pod.created >= began]
    extra = max(0, len(pods) - count_wanted(situation, group))
    room = _count_room(situation) + len(victims.gone)
    chosen = choose_victims(younger, min(extra, room))
    return tuple(_build_victim(situation, pod) for pod in chosen)


def _find_ending(situation: Situation, group: Group, number: int) -> Victims:
    """Find terminating pods that are no victims, which KubeRay would count as staying workers.

    Their node may be lost, which is not known yet, so they are replaced as if it was.
    """
    known = _name_going(situation, group)
    pods = [
        pod for pod in _pods(situation, group) if pod.ends is not None and pod.name not in known
    ]
    return tuple(_build_victim(situation, pod, lost=True) for pod in pods[: max(0, number)])


def _forget(situation: Situation, group: Group, workers: WorkerStatus, gone: Victims) -> Verdict:
    """Forget victims that are gone; report those whose pod still exists on a lost node."""
    there = {pod.name for pod in _pods(situation, group)}
    verdict = NOTHING
    for victim in gone:
        if victim.name in there:
            then = f"no {group.kind.noun}s are added or removed until it does"
            verdict += _report_lost(situation, victim.name, then)
    left = tuple(victim for victim in workers.draining if victim not in gone)
    workers = workers.change(draining=left) if left else forget_drain(workers)
    return verdict + _record(situation, group, workers)


# --- changes by others ----------------------------------------------------------------------------


def _adopt_replicas(situation: Situation, group: Group) -> Verdict | None:
    """Adopt a number in `replicas` that somebody else wrote as the number of staying workers.

    The operator's own number follows from the victims in the status, or it is that of the last pass
    and no victim has been listed since.
    """
    workers, replicas = _workers(situation, group), _get_replicas(situation, group)
    is_known = "desired_replicas" in workers.model_fields_set
    before = workers.desired_replicas if is_known else None
    if not workers.draining:
        # Decisions are recorded for data workers alone; other groups record the time twice.
        latest = () if group.kind.is_list else list_decisions(situation.status)[-1:]
        if before is None or replicas in {before, *(decision.after for decision in latest)}:
            return None
        return _mark_scaled(situation, group)
    victims, staying = _sort(situation, group), count_wanted(situation, group)
    listed = _listed(situation, group)
    unlisted = sum(victim.name not in listed for victim in workers.draining)
    if replicas in {staying + unlisted, staying + len(victims.going) + len(victims.lost)}:
        return None
    if replicas == before and not victims.leaving:
        return None
    adopted = workers.change(draining_to=max(0, replicas - len(victims.lost)))
    recorded = _record(situation, group, adopted)
    return recorded + _mark_scaled(situation.after(recorded), group)


def _mark_scaled(situation: Situation, group: Group) -> Verdict:
    return change(**group.mark_scaled(situation.status, situation.stamp))


def _record_lost(situation: Situation, group: Group) -> Verdict | None:
    """Record pods on lost nodes as victims: KubeRay counts them, but they do not work."""
    workers, listed = _workers(situation, group), _listed(situation, group)
    recorded = {victim.name: victim for victim in workers.draining}
    room = _count_room(situation)
    events = NOTHING
    for pod in _pods(situation, group):
        victim = recorded.get(pod.name)
        if pod.name in listed or not _is_lost(situation, pod) or (victim and victim.lost):
            continue
        if victim is None and room == 0:
            continue
        room -= victim is None
        victim = victim or _build_victim(situation, pod)
        recorded[pod.name] = victim.change(lost=True)
        events += _report_lost(situation, pod.name, f"another {group.kind.noun} replaces it")
    if events is NOTHING:
        return None
    staying = count_wanted(situation, group)
    workers = workers.change(draining=tuple(recorded.values()), draining_to=staying)
    return events + _record(situation, group, workers)


def _report_lost(situation: Situation, name: str, then: str) -> Verdict:
    command = f"kubectl delete pod {name} -n {situation.owner.namespace} --force"
    message = f"{name} does not end and its node does not answer; {then}"
    return record_event(NODE_LOST, f"{message}; if the node is gone, run {command}", warns=True)


def _keep_above_least(situation: Situation, group: Group) -> Verdict | None:
    """Raise the number of staying workers to minReplicas, as far as maxReplicas leaves room."""
    workers = _workers(situation, group)
    if not workers.draining:
        return None
    least = _leave_room(situation, group, group.pods.bounds.least)
    if count_wanted(situation, group) >= least:
        return None
    return _record(situation, group, workers.change(draining_to=least))


def _leave_room(situation: Situation, group: Group, wanted: int) -> int:
    """Lower a wanted number to what victims leave of maxReplicas, but not below the present one."""
    room = group.pods.bounds.most - len(_sort(situation, group).going)
    return max(min(wanted, room), min(wanted, count_wanted(situation, group)))


# --- Ray and KubeRay ------------------------------------------------------------------------------


def _drain(situation: Situation, group: Group, victims: Victims) -> Verdict:
    """Have Ray give the victims no more work; a repeated request has the same id."""
    verdict = look_again(LOOK_SECONDS)
    if situation.submission is None:
        return verdict  # no driver, so no work
    began = min(parse_time(victim.time) for victim in victims)
    addresses = (_find_address(situation, group, victim) for victim in victims)
    drain = Drain(
        submission_id=f"drain-{situation.owner.uid[:8]}-{began.timestamp():.0f}",
        addresses=tuple(address for address in addresses if address),
        deadline_seconds=DRAIN_SECONDS,
        why=f"fewer {group.kind.noun}s are needed",
    )
    return verdict + act(drain)


def _patch(situation: Situation, group: Group, replicas: int, names: Sequence[str]) -> Verdict:
    """Patch the group; the patch replaces the list of groups and fails after another write."""
    cluster, most = situation.observed.cluster, group.pods.bounds.most
    assert cluster is not None
    to_delete = list(names) if names or _listed(situation, group) else None
    patch = resize_group(cluster.document, group.role, (replicas, most), to_delete)
    return act(Patch("RayCluster", situation.owner.ray_cluster, patch))


def _find_due(situation: Situation, group: Group, going: Victims) -> Victims:
    """Find the victims to list, once all are due.

    A pod that exists after its grace period may be on a lost node, which is not known yet.
    """
    if not _is_due(situation, group, going):
        return ()
    overdue = {pod.name for pod in _pods(situation, group) if _is_overdue(situation, pod, 0)}
    return tuple(victim for victim in going if victim.name not in overdue)


def _is_due(situation: Situation, group: Group, going: Victims) -> bool:
    """Return whether the victims can be deleted: drained, past the deadline, or without work."""
    if not going or situation.submission is None:
        return bool(going)  # without a driver there is no work
    began = min(parse_time(victim.time) for victim in going)
    is_late = situation.until(began, DRAIN_SECONDS) <= 0
    return is_late or all(_is_drained(situation, group, victim) for victim in going)


def _is_drained(situation: Situation, group: Group, victim: DrainingStatus) -> bool:
    drained = situation.observed.scaling.drained
    address = _find_address(situation, group, victim)
    return not address or (drained is not None and address in drained)


# --- records in the status ------------------------------------------------------------------------


def _sort(situation: Situation, group: Group) -> _Sorted:
    pods = {pod.name: pod for pod in _pods(situation, group)}
    listed = _listed(situation, group)

    def sort(victim: DrainingStatus) -> str:
        pod = pods.get(victim.name)
        if pod is None or (victim.name in listed and _is_lost(situation, pod)):
            return "gone"
        if victim.name in listed:
            return "leaving"
        return "lost" if victim.lost else "going"

    states = [(sort(victim), victim) for victim in _workers(situation, group).draining]
    return _Sorted(
        going=tuple(victim for state, victim in states if state == "going"),
        lost=tuple(victim for state, victim in states if state == "lost"),
        leaving=tuple(victim for state, victim in states if state == "leaving"),
        gone=tuple(victim for state, victim in states if state == "gone"),
    )


def _find_address(situation: Situation, group: Group, victim: DrainingStatus) -> str:
    """Return the IP address of a victim's pod, which may have had none when it was chosen."""
    pod = next((pod for pod in _pods(situation, group) if pod.name == victim.name), None)
    return victim.ip or (pod.ip if pod is not None else "")


def _build_victim(situation: Situation, pod: Pod, *, lost: bool = False) -> DrainingStatus:
    victim = DrainingStatus(name=pod.name, time=situation.stamp)
    return victim.change(ip=pod.ip or None, lost=lost or None)


def _name_going(situation: Situation, group: Group) -> set[str]:
    """Return the names of all pods that are victims or listed."""
    return {victim.name for victim in _workers(situation, group).draining} | set(
        _listed(situation, group)
    )


def _workers(situation: Situation, group: Group) -> WorkerStatus:
    return group.find_numbers(situation.status)


def _record(situation: Situation, group: Group, workers: WorkerStatus) -> Verdict:
    return change(**group.write_numbers(situation.status, workers))


def _count_room(situation: Situation) -> int:
    """Return the number of further victims that the status has room for."""
    groups = (_workers(situation, group) for group in list_draining(situation))
    return max(0, MAX_DRAINING - sum(len(workers.draining) for workers in groups))


def _pods(situation: Situation, group: Group) -> list[Pod]:
    return [pod for pod in situation.observed.pods if pod.role == group.role]


def _get_replicas(situation: Situation, group: Group) -> int:
    found = find_group(situation, group)
    return found.replicas or 0 if found else 0


def _listed(situation: Situation, group: Group) -> Sequence[str]:
    found = find_group(situation, group)
    return found.to_delete if found else ()


def _is_lost(situation: Situation, pod: Pod) -> bool:
    """Return whether a pod is on a lost node: its grace period ended long ago."""
    return _is_overdue(situation, pod, LOST_SECONDS)


def _is_overdue(situation: Situation, pod: Pod, seconds: float) -> bool:
    """Return whether a pod still exists so many seconds after the end of its grace period."""
    return pod.ends is not None and situation.until(pod.ends, seconds) <= 0
