"""Removes data workers without losing a row: victims are drained before their pods are deleted.

    begin     record the victims and the number of staying workers; Ray gives victims no more work
    go on     once their nodes are drained, or the deadline has passed, one patch lowers `replicas`
              and lists the victims in `workersToDelete`
    end       remove a name from the list, and its record, once the pod is gone

The status records a drain before Ray is asked, every patch carries the observed resourceVersion,
and each step follows from the observed state. So the operator may be killed at any point.

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

from dataset_operator.api import DATA_WORKERS, NODE_LOST
from dataset_operator.autoscaling.interface import PERIOD_SECONDS
from dataset_operator.builders.frozen import resize_group
from dataset_operator.documents import parse_time
from dataset_operator.observed import ObservedGroup, Pod
from dataset_operator.plan.cluster_objects import forget_drain
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
# They take a quarter of the status' 20 KiB; further victims follow in a later drain.
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


def find_group(situation: Situation) -> ObservedGroup | None:
    """Return the data workers' group of the RayCluster; None if it or its `replicas` is missing."""
    cluster = situation.observed.cluster
    group = cluster.find_group(DATA_WORKERS) if cluster else None
    return group if group and group.replicas is not None else None


def count_wanted(situation: Situation) -> int:
    """Return the wanted number of data workers, without victims."""
    workers = _workers(situation)
    if workers.draining and workers.draining_to is not None:
        return workers.draining_to
    return _get_replicas(situation)


def count_pods(situation: Situation) -> int:
    """Return the number of data worker pods, terminating pods included, without victims."""
    going = _name_going(situation)
    return sum(pod.name not in going for pod in _pods(situation))


def find_staying(situation: Situation) -> list[Pod]:
    """Return the pods of data workers that neither terminate nor are victims."""
    going = _name_going(situation)
    return [pod for pod in _pods(situation) if pod.ends is None and pod.name not in going]


def is_leaving(situation: Situation) -> bool:
    """Return whether data workers are being drained; those on lost nodes do not count."""
    return any(not victim.lost for victim in _workers(situation).draining)


def choose_victims(pods: Sequence[Pod], number: int) -> list[Pod]:
    """Choose the pods to remove: pods that are not ready first, then the youngest."""

    def order(pod: Pod) -> tuple[bool, datetime, str]:
        return not pod.ready, pod.created or datetime.min.replace(tzinfo=UTC), pod.name

    return sorted(pods, key=order, reverse=True)[:number]


# --- rules and requests ---------------------------------------------------------------------------


def request_workers(situation: Situation, wanted: int) -> Verdict:
    """Set the number of staying data workers; victims that are being drained come on top."""
    victims, workers = _sort(situation), _workers(situation)
    verdict = NOTHING
    if workers.draining:
        wanted = _leave_room(situation, wanted)
        verdict = change(data_workers=workers.change(draining_to=wanted))
    replicas = wanted + len(victims.going) + len(victims.lost)
    return verdict + _patch(situation, replicas, _listed(situation))


def begin_draining(situation: Situation, pods: Sequence[Pod], staying: int) -> tuple[int, Verdict]:
    """Record the victims and the number of staying workers, and have Ray drain the victims.

    Returns:
        The number of staying workers, which is higher than wanted if the status has no room for all
        victims, and the verdict.
    """
    workers = _workers(situation)
    room = MAX_DRAINING - len(workers.draining)
    added = tuple(_build_victim(situation, pod) for pod in pods[:room])
    staying += len(pods) - len(added)
    if not added:
        return staying, NOTHING
    recorded = workers.change(draining=(*workers.draining, *added), draining_to=staying)
    return staying, change(data_workers=recorded) + _drain(situation, added)


def forget_lost_cluster(situation: Situation) -> Verdict | None:
    """Forget draining workers if the cluster is gone; the next starts with the staying count."""
    workers = situation.status.data_workers
    if situation.observed.cluster is not None or workers is None:
        return None
    return change(data_workers=forget_drain(workers))


def go_on_draining(situation: Situation) -> Verdict | None:
    """Take the next step of a drain that was begun; never end the pass."""
    if find_group(situation) is None:
        return None
    # The victims are known only after the changes by others, so the step comes last.
    return follow(situation, _adopt_replicas, _record_lost, _keep_above_least, _take_step)


def _take_step(situation: Situation) -> Verdict | None:
    if situation.will(Patch):
        return None
    victims = _sort(situation)
    due = _find_due(situation, victims.going)
    verdict = NOTHING
    if victims.going and not due:
        verdict = _drain(situation, victims.going)
    elif victims.leaving or len(due) < len(victims.going):
        verdict = look_again(LOOK_SECONDS)
    return verdict + _write(situation, victims, due)


def _write(situation: Situation, victims: _Sorted, due: Victims) -> Verdict:
    """Patch `replicas` and `workersToDelete`, and forget victims that are gone."""
    workers, present = _workers(situation), _get_replicas(situation)
    there = {pod.name for pod in _pods(situation)}
    kept = [name for name in _listed(situation) if name in there]
    recorded, replicas = workers.draining, present
    if recorded:
        replicas = count_wanted(situation) + len(victims.lost) + len(victims.going) - len(due)
    stand_ins: Victims = ()
    ending: Victims = ()
    if replicas < present:
        stand_ins = _find_stand_ins(situation, victims)
        if stand_ins:
            recorded = tuple(victim for victim in recorded if victim not in victims.gone)
        counted = len(there) - len(kept) - len(due) - len(stand_ins)
        room = MAX_DRAINING - len(recorded) - len(stand_ins)
        ending = _find_ending(situation, min(counted - replicas, room))
        replicas += len(ending)
    names = [*kept, *(victim.name for victim in (*due, *stand_ins))]
    verdict = NOTHING
    if stand_ins or ending:
        workers = workers.change(draining=(*recorded, *stand_ins, *ending))
        verdict += change(data_workers=workers)
    if replicas == present and victims.gone:
        verdict += _forget(situation, workers, victims.gone)
    if (replicas, names) != (present, list(_listed(situation))):
        verdict += _patch(situation, replicas, names)
    return verdict


def _find_stand_ins(situation: Situation, victims: _Sorted) -> Victims:
    """Find the pods that KubeRay created in place of victims that ended by themselves."""
    if not victims.gone:
        return ()
    began = min(parse_time(victim.time) for victim in victims.gone)
    pods = find_staying(situation)
    younger = [pod for pod in pods if pod.created is not None and pod.created >= began]
    extra = max(0, len(pods) - count_wanted(situation))
    room = MAX_DRAINING - len(_workers(situation).draining) + len(victims.gone)
    chosen = choose_victims(younger, min(extra, room))
    return tuple(_build_victim(situation, pod) for pod in chosen)


def _find_ending(situation: Situation, number: int) -> Victims:
    """Find terminating pods that are no victims, which KubeRay would count as staying workers.

    Their node may be lost, which is not known yet, so they are replaced as if it was.
    """
    known = _name_going(situation)
    pods = [pod for pod in _pods(situation) if pod.ends is not None and pod.name not in known]
    return tuple(_build_victim(situation, pod, lost=True) for pod in pods[: max(0, number)])


def _forget(situation: Situation, workers: WorkerStatus, gone: Victims) -> Verdict:
    """Forget victims that are gone; report those whose pod still exists on a lost node."""
    there = {pod.name for pod in _pods(situation)}
    verdict = NOTHING
    for victim in gone:
        if victim.name in there:
            then = "no data workers are added or removed until it does"
            verdict += _report_lost(situation, victim.name, then)
    left = tuple(victim for victim in workers.draining if victim not in gone)
    workers = workers.change(draining=left) if left else forget_drain(workers)
    return verdict + change(data_workers=workers)


# --- changes by others ----------------------------------------------------------------------------


def _adopt_replicas(situation: Situation) -> Verdict | None:
    """Adopt a number in `replicas` that somebody else wrote as the number of staying workers.

    The operator's own number follows from the victims in the status, or it is that of the last pass
    and no victim has been listed since.
    """
    workers, replicas = _workers(situation), _get_replicas(situation)
    is_known = "desired_replicas" in workers.model_fields_set
    before = workers.desired_replicas if is_known else None
    if not workers.draining:
        decided = {decision.after for decision in list_decisions(situation.status)[-1:]}
        if before is None or replicas in {before, *decided}:
            return None
        return change(last_scale_time=situation.stamp)
    victims, staying, listed = _sort(situation), count_wanted(situation), _listed(situation)
    unlisted = sum(victim.name not in listed for victim in workers.draining)
    if replicas in {staying + unlisted, staying + len(victims.going) + len(victims.lost)}:
        return None
    if replicas == before and not victims.leaving:
        return None
    adopted = workers.change(draining_to=max(0, replicas - len(victims.lost)))
    return change(data_workers=adopted, last_scale_time=situation.stamp)


def _record_lost(situation: Situation) -> Verdict | None:
    """Record pods on lost nodes as victims: KubeRay counts them, but they do not work."""
    workers, listed = _workers(situation), _listed(situation)
    recorded = {victim.name: victim for victim in workers.draining}
    events = NOTHING
    for pod in _pods(situation):
        victim = recorded.get(pod.name)
        if pod.name in listed or not _is_lost(situation, pod) or (victim and victim.lost):
            continue
        if victim is None and len(recorded) >= MAX_DRAINING:
            continue
        victim = victim or _build_victim(situation, pod)
        recorded[pod.name] = victim.change(lost=True)
        events += _report_lost(situation, pod.name, "another data worker replaces it")
    if events is NOTHING:
        return None
    staying = count_wanted(situation)
    workers = workers.change(draining=tuple(recorded.values()), draining_to=staying)
    return events + change(data_workers=workers)


def _report_lost(situation: Situation, name: str, then: str) -> Verdict:
    command = f"kubectl delete pod {name} -n {situation.owner.namespace} --force"
    message = f"{name} does not end and its node does not answer; {then}"
    return record_event(NODE_LOST, f"{message}; if the node is gone, run {command}", warns=True)


def _keep_above_least(situation: Situation) -> Verdict | None:
    """Raise the number of staying workers to minReplicas, as far as maxReplicas leaves room."""
    workers = _workers(situation)
    if not workers.draining:
        return None
    least = _leave_room(situation, situation.cluster_spec.data_workers.min_replicas)
    if count_wanted(situation) >= least:
        return None
    return change(data_workers=workers.change(draining_to=least))


def _leave_room(situation: Situation, wanted: int) -> int:
    """Lower a wanted number to what victims leave of maxReplicas, but not below the present one."""
    room = situation.cluster_spec.data_workers.max_replicas - len(_sort(situation).going)
    return max(min(wanted, room), min(wanted, count_wanted(situation)))


# --- Ray and KubeRay ------------------------------------------------------------------------------


def _drain(situation: Situation, victims: Victims) -> Verdict:
    """Have Ray give the victims no more work; a repeated request has the same id."""
    verdict = look_again(LOOK_SECONDS)
    if situation.submission is None:
        return verdict  # no driver, so no work
    began = min(parse_time(victim.time) for victim in victims)
    addresses = (_find_address(situation, victim) for victim in victims)
    drain = Drain(
        submission_id=f"drain-{situation.owner.uid[:8]}-{began.timestamp():.0f}",
        addresses=tuple(address for address in addresses if address),
        deadline_seconds=DRAIN_SECONDS,
        why="fewer data workers are needed",
    )
    return verdict + act(drain)


def _patch(situation: Situation, replicas: int, names: Sequence[str]) -> Verdict:
    """Patch the group; the patch replaces the list of groups and fails after another write."""
    cluster, most = situation.observed.cluster, situation.cluster_spec.data_workers.max_replicas
    assert cluster is not None
    to_delete = list(names) if names or _listed(situation) else None
    patch = resize_group(cluster.document, DATA_WORKERS, (replicas, most), to_delete)
    return act(Patch("RayCluster", situation.owner.ray_cluster, patch))


def _find_due(situation: Situation, going: Victims) -> Victims:
    """Find the victims to list, once all are due.

    A pod that exists after its grace period may be on a lost node, which is not known yet.
    """
    if not _is_due(situation, going):
        return ()
    overdue = {pod.name for pod in _pods(situation) if _is_overdue(situation, pod, 0)}
    return tuple(victim for victim in going if victim.name not in overdue)


def _is_due(situation: Situation, going: Victims) -> bool:
    """Return whether the victims can be deleted: drained, past the deadline, or without work."""
    if not going or situation.submission is None:
        return bool(going)  # without a driver there is no work
    began = min(parse_time(victim.time) for victim in going)
    is_late = situation.until(began, DRAIN_SECONDS) <= 0
    return is_late or all(_is_drained(situation, victim) for victim in going)


def _is_drained(situation: Situation, victim: DrainingStatus) -> bool:
    drained = situation.observed.scaling.drained
    address = _find_address(situation, victim)
    return not address or (drained is not None and address in drained)


# --- records in the status ------------------------------------------------------------------------


def _sort(situation: Situation) -> _Sorted:
    pods = {pod.name: pod for pod in _pods(situation)}
    listed = _listed(situation)

    def sort(victim: DrainingStatus) -> str:
        pod = pods.get(victim.name)
        if pod is None or (victim.name in listed and _is_lost(situation, pod)):
            return "gone"
        if victim.name in listed:
            return "leaving"
        return "lost" if victim.lost else "going"

    states = [(sort(victim), victim) for victim in _workers(situation).draining]
    return _Sorted(
        going=tuple(victim for state, victim in states if state == "going"),
        lost=tuple(victim for state, victim in states if state == "lost"),
        leaving=tuple(victim for state, victim in states if state == "leaving"),
        gone=tuple(victim for state, victim in states if state == "gone"),
    )


def _find_address(situation: Situation, victim: DrainingStatus) -> str:
    """Return the IP address of a victim's pod, which may have had none when it was chosen."""
    pod = next((pod for pod in _pods(situation) if pod.name == victim.name), None)
    return victim.ip or (pod.ip if pod is not None else "")


def _build_victim(situation: Situation, pod: Pod, *, lost: bool = False) -> DrainingStatus:
    victim = DrainingStatus(name=pod.name, time=situation.stamp)
    return victim.change(ip=pod.ip or None, lost=lost or None)


def _name_going(situation: Situation) -> set[str]:
    """Return the names of all pods that are victims or listed."""
    return {victim.name for victim in _workers(situation).draining} | set(_listed(situation))


def _workers(situation: Situation) -> WorkerStatus:
    return situation.status.data_workers or WorkerStatus()


def _pods(situation: Situation) -> list[Pod]:
    return [pod for pod in situation.observed.pods if pod.role == DATA_WORKERS]


def _get_replicas(situation: Situation) -> int:
    group = find_group(situation)
    return group.replicas or 0 if group else 0


def _listed(situation: Situation) -> Sequence[str]:
    group = find_group(situation)
    return group.to_delete if group else ()


def _is_lost(situation: Situation, pod: Pod) -> bool:
    """Return whether a pod is on a lost node: its grace period ended long ago."""
    return _is_overdue(situation, pod, LOST_SECONDS)


def _is_overdue(situation: Situation, pod: Pod, seconds: float) -> bool:
    """Return whether a pod still exists so many seconds after the end of its grace period."""
    return pod.ends is not None and situation.until(pod.ends, seconds) <= 0
