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
from dataclasses import dataclass, field
from datetime import UTC, datetime

from dataset_operator.api import DATA_WORKERS, NODE_LOST
from dataset_operator.autoscaling.interface import PERIOD_SECONDS
from dataset_operator.documents import Document, parse_time
from dataset_operator.observed import Pod
from dataset_operator.plan.draft import Draft
from dataset_operator.plan.outcome import Drain
from dataset_operator.plan.ray_cluster import LOST_SECONDS
from dataset_operator.plan.scaling_log import list_decisions

# Ray's drain ends with the running tasks; this bounds it (one chunk is a few seconds of work).
DRAIN_SECONDS = 120
# They take a quarter of the status' 20 KiB; further victims follow in a later drain.
MAX_DRAINING = 32
LOOK_SECONDS = PERIOD_SECONDS / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Victims:
    """The recorded victims, by their state.

    Attributes:
        going: the pod exists and is not listed.
        lost: the pod exists and is never listed, since its node does not answer.
        leaving: the pod exists and is listed, on a node that answers.
        gone: the pod does not exist, or is listed and on a lost node.
    """

    going: list[Document] = field(default_factory=list)
    lost: list[Document] = field(default_factory=list)
    leaving: list[Document] = field(default_factory=list)
    gone: list[Document] = field(default_factory=list)


# --- observed state -------------------------------------------------------------------------------


def find_group(draft: Draft) -> Document | None:
    """Return the data workers' group of the RayCluster; None if it or its `replicas` is missing."""
    cluster = draft.observed.ray_cluster
    groups: Sequence[Document] = cluster["spec"].get("workerGroupSpecs") or () if cluster else ()
    mine = (g for g in groups if g["groupName"] == DATA_WORKERS and g.get("replicas") is not None)
    return next(mine, None)


def count_wanted(draft: Draft) -> int:
    """Return the wanted number of data workers, without victims."""
    staying: int | None = _workers_status(draft).get("drainingTo")
    return staying if _victims(draft) and staying is not None else _get_replicas(draft)


def count_pods(draft: Draft) -> int:
    """Return the number of data worker pods, terminating pods included, without victims."""
    going = {victim["name"] for victim in _victims(draft)} | set(_listed(draft))
    return sum(pod.name not in going for pod in _pods(draft))


def find_staying(draft: Draft) -> list[Pod]:
    """Return the pods of data workers that neither terminate nor are victims."""
    going = {victim["name"] for victim in _victims(draft)} | set(_listed(draft))
    return [pod for pod in _pods(draft) if pod.ends is None and pod.name not in going]


def is_leaving(draft: Draft) -> bool:
    """Return whether data workers are being drained; those on lost nodes do not count."""
    return any(not victim.get("lost") for victim in _victims(draft))


def choose_victims(pods: Sequence[Pod], number: int) -> list[Pod]:
    """Choose the pods to remove: pods that are not ready first, then the youngest."""

    def order(pod: Pod) -> tuple[bool, datetime, str]:
        return not pod.ready, pod.created or datetime.min.replace(tzinfo=UTC), pod.name

    return sorted(pods, key=order, reverse=True)[:number]


# --- rules and requests ---------------------------------------------------------------------------


def ask_for(draft: Draft, wanted: int) -> None:
    """Set the number of staying data workers; victims that are being drained come on top."""
    victims = _sort(draft)
    if _victims(draft):
        wanted = _leave_room(draft, wanted)
        _note_workers(draft, drainingTo=wanted)
    _patch(draft, wanted + len(victims.going) + len(victims.lost), _listed(draft))


def begin_draining(draft: Draft, pods: Sequence[Pod], staying: int) -> int:
    """Record the victims and the number of staying workers, and have Ray drain the victims.

    Returns the number of staying workers, which is higher than wanted if the status has no room for
    all victims.
    """
    room = MAX_DRAINING - len(_victims(draft))
    noted = [_note(draft, pod) for pod in pods[:room]]
    staying += len(pods) - len(noted)
    if noted:
        _note_workers(draft, draining=[*_victims(draft), *noted], drainingTo=staying)
        _ask_ray(draft, noted)
    return staying


def forget_lost_cluster(draft: Draft) -> bool:
    """Forget draining workers if the cluster is gone; the next starts with the staying count."""
    if draft.observed.ray_cluster is None:
        draft.forget_drain()
    return False


def go_on_draining(draft: Draft) -> bool:
    """Take the next step of a drain that was begun; never end the pass."""
    if find_group(draft) is None:
        return False
    _heed_hand(draft)
    _take_in_lost(draft)
    _keep_above_least(draft)
    if draft.patches:
        return False
    victims = _sort(draft)
    due = _find_due(draft, victims.going)
    if victims.going and not due:
        _ask_ray(draft, victims.going)
    elif victims.leaving or len(due) < len(victims.going):
        draft.look_again(LOOK_SECONDS)
    _write(draft, victims, due)
    return False


def _write(draft: Draft, victims: _Victims, due: Sequence[Document]) -> None:
    """Patch `replicas` and `workersToDelete`, and forget victims that are gone."""
    there = {pod.name for pod in _pods(draft)}
    kept = [name for name in _listed(draft) if name in there]
    noted = _victims(draft)
    replicas = _get_replicas(draft)
    if noted:
        replicas = count_wanted(draft) + len(victims.lost) + len(victims.going) - len(due)
    stand_ins: Sequence[Document] = ()
    ending: Sequence[Document] = ()
    if replicas < _get_replicas(draft):
        stand_ins = _find_stand_ins(draft, victims)
        noted = [victim for victim in noted if not stand_ins or victim not in victims.gone]
        counted = len(there) - len(kept) - len(due) - len(stand_ins)
        room = MAX_DRAINING - len(noted) - len(stand_ins)
        ending = _find_ending(draft, min(counted - replicas, room))
        replicas += len(ending)
    names = [*kept, *(victim["name"] for victim in (*due, *stand_ins))]
    if stand_ins or ending:
        _note_workers(draft, draining=[*noted, *stand_ins, *ending])
    if replicas == _get_replicas(draft):
        _forget(draft, victims.gone)
    if (replicas, names) != (_get_replicas(draft), list(_listed(draft))):
        _patch(draft, replicas, names)


def _find_stand_ins(draft: Draft, victims: _Victims) -> list[Document]:
    """Find the pods that KubeRay created in place of victims that ended by themselves."""
    if not victims.gone:
        return []
    began = min(parse_time(victim["time"]) for victim in victims.gone)
    pods = find_staying(draft)
    younger = [pod for pod in pods if pod.created is not None and pod.created >= began]
    extra = max(0, len(pods) - count_wanted(draft))
    room = MAX_DRAINING - len(_victims(draft)) + len(victims.gone)
    return [_note(draft, pod) for pod in choose_victims(younger, min(extra, room))]


def _find_ending(draft: Draft, number: int) -> list[Document]:
    """Find terminating pods that are no victims, which KubeRay would count as staying workers.

    Their node may be lost, which is not known yet, so they are replaced as if it was.
    """
    known = {victim["name"] for victim in _victims(draft)} | set(_listed(draft))
    pods = [pod for pod in _pods(draft) if pod.ends is not None and pod.name not in known]
    return [{**_note(draft, pod), "lost": True} for pod in pods[: max(0, number)]]


def _forget(draft: Draft, gone: Sequence[Document]) -> None:
    if not gone:
        return
    for victim in gone:
        if any(pod.name == victim["name"] for pod in _pods(draft)):
            _tell_lost(draft, victim["name"], "no data workers are added or removed until it does")
    left = [victim for victim in _victims(draft) if victim not in gone]
    if left:
        _note_workers(draft, draining=left)
    else:
        draft.forget_drain()


# --- changes by others ----------------------------------------------------------------------------


def _heed_hand(draft: Draft) -> None:
    """Adopt a number in `replicas` that somebody else wrote as the number of staying workers.

    The operator's own number follows from the victims in the status, or it is that of the last pass
    and no victim has been listed since.
    """
    replicas, before = _get_replicas(draft), _workers_status(draft).get("desiredReplicas")
    noted = _victims(draft)
    if not noted:
        decided = {decision["after"] for decision in list_decisions(draft.status)[-1:]}
        if before is not None and replicas not in {before, *decided}:
            draft.status["lastScaleTime"] = draft.stamp()
        return
    victims, staying = _sort(draft), count_wanted(draft)
    unlisted = sum(victim["name"] not in _listed(draft) for victim in noted)
    if replicas in {staying + unlisted, staying + len(victims.going) + len(victims.lost)}:
        return
    if replicas == before and not victims.leaving:
        return
    _note_workers(draft, drainingTo=max(0, replicas - len(victims.lost)))
    draft.status["lastScaleTime"] = draft.stamp()


def _take_in_lost(draft: Draft) -> None:
    """Record pods on lost nodes as victims: KubeRay counts them, but they do not work."""
    noted, listed = list(_victims(draft)), _listed(draft)
    known = {victim["name"]: i for i, victim in enumerate(noted)}
    staying = count_wanted(draft)
    is_new = False
    for pod in _pods(draft):
        index = known.get(pod.name)
        if not _is_lost(draft, pod) or pod.name in listed:
            continue
        if index is not None and noted[index].get("lost"):
            continue
        if index is not None:
            noted[index] = {**noted[index], "lost": True}
        elif len(noted) < MAX_DRAINING:
            noted.append({**_note(draft, pod), "lost": True})
        else:
            continue
        is_new = True
        _tell_lost(draft, pod.name, "another data worker replaces it")
    if is_new:
        _note_workers(draft, draining=noted, drainingTo=staying)


def _tell_lost(draft: Draft, name: str, then: str) -> None:
    command = f"kubectl delete pod {name} -n {draft.owner.namespace} --force"
    message = f"{name} does not end and its node does not answer; {then}"
    draft.tell(NODE_LOST, f"{message}; if the node is gone, run {command}", warns=True)


def _keep_above_least(draft: Draft) -> None:
    """Raise the number of staying workers to minReplicas, as far as maxReplicas leaves room."""
    if _victims(draft):
        least = _leave_room(draft, draft.cluster_spec.data_workers.min_replicas)
        if count_wanted(draft) < least:
            _note_workers(draft, drainingTo=least)


def _leave_room(draft: Draft, wanted: int) -> int:
    """Lower a wanted number to what victims leave of maxReplicas, but not below the present one."""
    room = draft.cluster_spec.data_workers.max_replicas - len(_sort(draft).going)
    return max(min(wanted, room), min(wanted, count_wanted(draft)))


# --- Ray and KubeRay ------------------------------------------------------------------------------


def _ask_ray(draft: Draft, victims: Sequence[Document]) -> None:
    """Have Ray give the victims no more work; a repeated request has the same id."""
    draft.look_again(LOOK_SECONDS)
    if draft.submission is None:
        return  # no driver, so no work
    began = min(parse_time(victim["time"]) for victim in victims)
    addresses = (_find_address(draft, victim) for victim in victims)
    draft.drain = Drain(
        submission_id=f"drain-{draft.owner.uid[:8]}-{began.timestamp():.0f}",
        addresses=tuple(address for address in addresses if address),
        deadline_seconds=DRAIN_SECONDS,
        why="fewer data workers are needed",
    )


def _patch(draft: Draft, replicas: int, names: Sequence[str]) -> None:
    """Patch the group; the patch replaces the list of groups and fails after another write."""
    cluster, mine = draft.observed.ray_cluster, find_group(draft)
    assert cluster is not None
    assert mine is not None
    change: Document = {
        "replicas": replicas,
        # KubeRay creates no more pods than this, whatever `replicas` is.
        "maxReplicas": max(draft.cluster_spec.data_workers.max_replicas, replicas),
    }
    if names or _listed(draft):
        change["scaleStrategy"] = {"workersToDelete": list(names)}
    groups = [
        {**group, **change} if group is mine else group
        for group in cluster["spec"]["workerGroupSpecs"]
    ]
    version = cluster["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version}, "spec": {"workerGroupSpecs": groups}}
    draft.patches.append(("RayCluster", draft.owner.ray_cluster, patch))


def _find_due(draft: Draft, going: Sequence[Document]) -> list[Document]:
    """Find the victims to list, once all are due.

    A pod that exists after its grace period may be on a lost node, which is not known yet.
    """
    if not _is_due(draft, going):
        return []
    overdue = {pod.name for pod in _pods(draft) if _is_overdue(draft, pod, 0)}
    return [victim for victim in going if victim["name"] not in overdue]


def _is_due(draft: Draft, going: Sequence[Document]) -> bool:
    """Return whether the victims can be deleted: drained, past the deadline, or without work."""
    if not going or draft.submission is None:
        return bool(going)  # without a driver there is no work
    began = min(parse_time(victim["time"]) for victim in going)
    is_late = draft.until(began, DRAIN_SECONDS) <= 0
    return is_late or all(_is_drained(draft, victim) for victim in going)


def _is_drained(draft: Draft, victim: Document) -> bool:
    drained, address = draft.observed.scaling.drained, _find_address(draft, victim)
    return not address or (drained is not None and address in drained)


# --- records in the status ------------------------------------------------------------------------


def _sort(draft: Draft) -> _Victims:
    pods = {pod.name: pod for pod in _pods(draft)}
    listed = _listed(draft)
    victims = _Victims()
    for victim in _victims(draft):
        pod = pods.get(victim["name"])
        if pod is None or (victim["name"] in listed and _is_lost(draft, pod)):
            victims.gone.append(victim)
        elif victim["name"] in listed:
            victims.leaving.append(victim)
        elif victim.get("lost"):
            victims.lost.append(victim)
        else:
            victims.going.append(victim)
    return victims


def _find_address(draft: Draft, victim: Document) -> str:
    """Return the IP address of a victim's pod, which may have had none when it was chosen."""
    pod = next((pod for pod in _pods(draft) if pod.name == victim["name"]), None)
    address: str = victim.get("ip", "")
    return address or (pod.ip if pod is not None else "")


def _note(draft: Draft, pod: Pod) -> Document:
    return {"name": pod.name, "time": draft.stamp(), **({"ip": pod.ip} if pod.ip else {})}


def _note_workers(draft: Draft, **known: object) -> None:
    draft.status["dataWorkers"] = {**_workers_status(draft), **known}


def _workers_status(draft: Draft) -> Document:
    status: Document = draft.status.get("dataWorkers") or {}
    return status


def _victims(draft: Draft) -> Sequence[Document]:
    """Return the recorded victims, each as {name, time, ip if known, lost if its node is}."""
    victims: Sequence[Document] = _workers_status(draft).get("draining") or ()
    return victims


def _pods(draft: Draft) -> list[Pod]:
    return [pod for pod in draft.observed.pods if pod.role == DATA_WORKERS]


def _get_replicas(draft: Draft) -> int:
    group = find_group(draft)
    return 0 if group is None else int(group["replicas"])


def _listed(draft: Draft) -> Sequence[str]:
    group = find_group(draft) or {}
    return (group.get("scaleStrategy") or {}).get("workersToDelete") or ()


def _is_lost(draft: Draft, pod: Pod) -> bool:
    """Return whether a pod is on a lost node: its grace period ended long ago."""
    return _is_overdue(draft, pod, LOST_SECONDS)


def _is_overdue(draft: Draft, pod: Pod, seconds: float) -> bool:
    """Return whether a pod still exists so many seconds after the end of its grace period."""
    return pod.ends is not None and draft.until(pod.ends, seconds) <= 0
