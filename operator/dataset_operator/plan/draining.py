"""Taking data workers away so that no row is lost.

    begin     victims, and how many stay, are written down; Ray gives the victims no more work
    go on     once their nodes are gone, or the deadline has passed, one patch lowers `replicas` and
              lists them in `workersToDelete`
    end       a name leaves the list once no pod bears it, and what was written down goes

What is under way stands in the status before Ray hears of it, every patch carries the observed
resourceVersion, and each step is found by what is there: the operator may be killed anywhere.

KubeRay counts every pod of the group, also one that is ending, but for those on the list; so
`replicas` is how many stay and one for each victim that is not listed.

- A victim that goes by itself before it is listed is replaced: its stand-in goes in its place.
- A pod on a node that is lost is never taken off the node by us. It becomes a victim that is not
  listed, so that another takes its place: KubeRay 1.6 leaves a group as it is for as long as a pod
  that it deleted is still there (controllers/ray/expectations/scale_expectations.go).
- A number that somebody wrote meanwhile is how many are to stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from dataset_operator.api import DATA_WORKERS, NODE_LOST
from dataset_operator.autoscaling.decision import PERIOD_SECONDS
from dataset_operator.observed import Document, Pod, parse_time
from dataset_operator.plan.cluster import LOST_SECONDS
from dataset_operator.plan.decision import Drain
from dataset_operator.plan.decisions import list_decisions
from dataset_operator.plan.draft import Draft

# Ray's drain ends with the running tasks; this bounds it (one piece is a few seconds of work).
DRAIN_SECONDS = 120
# Of the status' 16 KiB they take a quarter; the rest goes next.
MAX_DRAINING = 32
LOOK_SECONDS = PERIOD_SECONDS / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Victims:
    """Those that were written down, by what has become of them.

    Attributes:
        going: there, not listed.
        lost: there, not listed, and never to be: their node does not answer.
        leaving: there and listed, on a node that answers.
        gone: not there, or listed and on a node that is lost.
    """

    going: list[Document] = field(default_factory=list)
    lost: list[Document] = field(default_factory=list)
    leaving: list[Document] = field(default_factory=list)
    gone: list[Document] = field(default_factory=list)


# --- what is there --------------------------------------------------------------------------------


def find_group(draft: Draft) -> Document | None:
    """The data workers' group of the RayCluster; None if it, or its number, was taken out."""
    cluster = draft.observed.ray_cluster
    groups: Sequence[Document] = cluster["spec"].get("workerGroupSpecs") or () if cluster else ()
    mine = (g for g in groups if g["groupName"] == DATA_WORKERS and g.get("replicas") is not None)
    return next(mine, None)


def count_wanted(draft: Draft) -> int:
    """Data workers that are asked for, those that are on their way out left out."""
    staying: int | None = _workers_status(draft).get("drainingTo")
    return staying if _victims(draft) and staying is not None else _get_replicas(draft)


def count_pods(draft: Draft) -> int:
    """Data workers as KubeRay counts them: those that are ending too, victims left out."""
    going = {victim["name"] for victim in _victims(draft)} | set(_listed(draft))
    return sum(pod.name not in going for pod in _pods(draft))


def find_staying(draft: Draft) -> list[Pod]:
    """Data workers that are there and are to stay."""
    going = {victim["name"] for victim in _victims(draft)} | set(_listed(draft))
    return [pod for pod in _pods(draft) if pod.ends is None and pod.name not in going]


def is_leaving(draft: Draft) -> bool:
    """Whether data workers are on their way out, of which those on lost nodes are not."""
    return any(not victim.get("lost") for victim in _victims(draft))


def choose_victims(pods: Sequence[Pod], number: int) -> list[Pod]:
    """Pods to take away: those that do not work yet first, then the youngest."""

    def order(pod: Pod) -> tuple[bool, datetime, str]:
        return not pod.ready, pod.created or datetime.min.replace(tzinfo=UTC), pod.name

    return sorted(pods, key=order, reverse=True)[:number]


# --- what is asked for ----------------------------------------------------------------------------


def ask_for(draft: Draft, wanted: int) -> None:
    """So many that stay, beside those that go."""
    victims = _sort(draft)
    if _victims(draft):
        wanted = _leave_room(draft, wanted)
        _note_workers(draft, drainingTo=wanted)
    _patch(draft, wanted + len(victims.going) + len(victims.lost), _listed(draft))


def begin_draining(draft: Draft, pods: Sequence[Pod], staying: int) -> int:
    """Write down who goes and how many stay, and have Ray give the victims no more work.

    Returns how many stay: no more go at a time than a status holds.
    """
    room = MAX_DRAINING - len(_victims(draft))
    noted = [_note(draft, pod) for pod in pods[:room]]
    staying += len(pods) - len(noted)
    if noted:
        _note_workers(draft, draining=[*_victims(draft), *noted], drainingTo=staying)
        _ask_ray(draft, noted)
    return staying


def forget_lost_cluster(draft: Draft) -> bool:
    """Of a cluster that is gone nobody is on his way out; the next begins with those that stay."""
    if draft.observed.ray_cluster is None:
        draft.forget_drain()
    return False


def go_on_draining(draft: Draft) -> bool:
    """The next step of what was begun, whatever is wanted meanwhile; it never ends the pass."""
    if find_group(draft) is None:
        return False
    _heed_hand(draft)
    _take_in_lost(draft)
    _keep_above_least(draft)
    if draft.patches:
        return False
    victims = _sort(draft)
    due: Sequence[Document] = victims.going if _is_due(draft, victims.going) else ()
    if victims.going and not due:
        _ask_ray(draft, victims.going)
    elif victims.leaving:
        draft.look_again(LOOK_SECONDS)
    _write(draft, victims, due)
    return False


def _write(draft: Draft, victims: _Victims, due: Sequence[Document]) -> None:
    """The number and the list as they should be; once the number is, what is over is forgotten."""
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
    """Whom KubeRay made in place of victims that went by themselves."""
    if not victims.gone:
        return []
    began = min(parse_time(victim["time"]) for victim in victims.gone)
    pods = find_staying(draft)
    younger = [pod for pod in pods if pod.created is not None and pod.created >= began]
    extra = max(0, len(pods) - count_wanted(draft))
    room = MAX_DRAINING - len(_victims(draft)) + len(victims.gone)
    return [_note(draft, pod) for pod in choose_victims(younger, min(extra, room))]


def _find_ending(draft: Draft, number: int) -> list[Document]:
    """Pods that end by themselves, which KubeRay would count in place of some that are to stay.

    Whether their node is lost nobody knows yet, so they are made up for as if it was.
    """
    known = {victim["name"] for victim in _victims(draft)} | set(_listed(draft))
    pods = [pod for pod in _pods(draft) if pod.ends is not None and pod.name not in known]
    return [{**_note(draft, pod), "lost": True} for pod in pods[: max(0, number)]]


def _forget(draft: Draft, gone: Sequence[Document]) -> None:
    if not gone:
        return
    for victim in gone:
        if any(pod.name == victim["name"] for pod in _pods(draft)):
            _tell_lost(draft, victim["name"], "no data workers come or go until it does")
    left = [victim for victim in _victims(draft) if victim not in gone]
    if left:
        _note_workers(draft, draining=left)
    else:
        draft.forget_drain()


# --- what others do -------------------------------------------------------------------------------


def _heed_hand(draft: Draft) -> None:
    """A number that is not ours is somebody's: it is how many are to stay.

    Ours are the one of the last pass, if nothing was written since, and one that goes with what
    stands in the status: nobody lists victims but with it.
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
    """Pods whose node does not answer for long are counted by KubeRay, but work no more."""
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
        _tell_lost(draft, pod.name, "another is to take its place")
    if is_new:
        _note_workers(draft, draining=noted, drainingTo=staying)


def _tell_lost(draft: Draft, name: str, then: str) -> None:
    command = f"kubectl delete pod {name} -n {draft.owner.namespace} --force"
    message = f"{name} does not end, its node does not answer; {then}; if that is gone, {command}"
    draft.tell(NODE_LOST, message, warns=True)


def _keep_above_least(draft: Draft) -> None:
    """What stays, as the spec wants it now; if it is too many, they are drained next."""
    if _victims(draft):
        least = _leave_room(draft, draft.cluster_spec.data_workers.min_replicas)
        if count_wanted(draft) < least:
            _note_workers(draft, drainingTo=least)


def _leave_room(draft: Draft, wanted: int) -> int:
    """So many, as far as those that still go leave room below the most that there may be."""
    room = draft.cluster_spec.data_workers.max_replicas - len(_sort(draft).going)
    return max(min(wanted, room), min(wanted, count_wanted(draft)))


# --- Ray and KubeRay ------------------------------------------------------------------------------


def _ask_ray(draft: Draft, victims: Sequence[Document]) -> None:
    """Have Ray give them no more work; asked again it knows of it by its name."""
    draft.look_again(LOOK_SECONDS)
    if draft.submission is None:
        return  # there is none
    began = min(parse_time(victim["time"]) for victim in victims)
    addresses = (_find_address(draft, victim) for victim in victims)
    draft.drain = Drain(
        submission_id=f"drain-{draft.owner.uid[:8]}-{began.timestamp():.0f}",
        addresses=tuple(address for address in addresses if address),
        deadline_seconds=DRAIN_SECONDS,
        why="fewer data workers are needed",
    )


def _patch(draft: Draft, replicas: int, names: Sequence[str]) -> None:
    """One patch of the group, which replaces the list of groups, if nobody wrote meanwhile."""
    cluster, mine = draft.observed.ray_cluster, find_group(draft)
    assert cluster is not None
    assert mine is not None
    change: Document = {
        "replicas": replicas,
        # KubeRay keeps to it, whatever `replicas` says.
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


def _is_due(draft: Draft, going: Sequence[Document]) -> bool:
    """Whether they hold nothing any more that would be lost, or had their time."""
    if not going or draft.submission is None:
        return bool(going)  # without a driver there is no work
    began = min(parse_time(victim["time"]) for victim in going)
    is_late = draft.until(began, DRAIN_SECONDS) <= 0
    return is_late or all(_is_drained(draft, victim) for victim in going)


def _is_drained(draft: Draft, victim: Document) -> bool:
    drained, address = draft.observed.scaling.drained, _find_address(draft, victim)
    return not address or (drained is not None and address in drained)


# --- what was written down ------------------------------------------------------------------------


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
    """Of its pod, which may have had none yet as it was chosen."""
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
    """{name, time, ip if it has one, lost if it is} of those that are on their way out."""
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
    """Whether it should be gone for long: its node does not answer, and nobody waits for it."""
    return pod.ends is not None and draft.until(pod.ends, LOST_SECONDS) <= 0
