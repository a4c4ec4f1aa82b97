"""Taking data workers away so that no row is lost.

    begin     victims, and how many stay, are written down; Ray gives the victims no more work
    go on     once their nodes are gone, or the deadline has passed, one patch lowers `replicas` and
              lists them in `workersToDelete`
    end       once the pods are gone another patch empties the list, and what was written down goes

What is under way stands in the status before Ray hears of it, every patch carries the observed
resourceVersion, and each step is found by what is there: the operator may be killed anywhere. A
victim that goes by itself before it is listed is replaced by KubeRay, which still counts it: its
stand-in is listed in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from dataset_operator.api import DATA_WORKERS
from dataset_operator.autoscaling.decision import PERIOD_SECONDS
from dataset_operator.observed import Document, Pod, parse_time
from dataset_operator.plan.cluster import LOST_SECONDS
from dataset_operator.plan.decision import Drain
from dataset_operator.plan.draft import Draft

# Ray's drain ends with the running tasks; this bounds it (one piece is a few seconds of work).
DRAIN_SECONDS = 120
# Of the status' 16 KiB they take a quarter; the rest goes next.
MAX_DRAINING = 32
_LOOK_SECONDS = PERIOD_SECONDS / 3


def get_group(draft: Draft) -> Document:
    """The data workers' group of the RayCluster, which there is."""
    assert draft.observed.ray_cluster is not None
    groups: Sequence[Document] = draft.observed.ray_cluster["spec"]["workerGroupSpecs"]
    return next(group for group in groups if group["groupName"] == DATA_WORKERS)


def patch_group(draft: Draft, change: Document) -> None:
    """One patch of the group, which replaces the list of groups, if nobody wrote meanwhile."""
    cluster = draft.observed.ray_cluster
    assert cluster is not None
    mine = get_group(draft)
    groups = [
        {**group, **change} if group is mine else group
        for group in cluster["spec"]["workerGroupSpecs"]
    ]
    version = cluster["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version}, "spec": {"workerGroupSpecs": groups}}
    draft.patches.append(("RayCluster", draft.owner.ray_cluster, patch))


def count_wanted(draft: Draft) -> int:
    """Data workers that are asked for, those that are on their way out left out."""
    staying: int | None = _workers_status(draft).get("drainingTo")
    wanted: int = get_group(draft)["replicas"]
    return staying if is_draining(draft) and staying is not None else wanted


def count_pods(draft: Draft) -> int:
    """Data workers as KubeRay counts them: those that are ending too, victims left out."""
    going = {victim["name"] for victim in _victims(draft)}
    pods = (pod for pod in draft.observed.pods if pod.role == DATA_WORKERS)
    return sum(pod.name not in going for pod in pods)


def find_staying(draft: Draft) -> list[Pod]:
    """Data workers that are there and are to stay."""
    going = {victim["name"] for victim in _victims(draft)}
    return [
        pod
        for pod in draft.observed.pods
        if pod.role == DATA_WORKERS and pod.ends is None and pod.name not in going
    ]


def choose_victims(pods: Sequence[Pod], number: int) -> list[Pod]:
    """Pods to take away: those that do not work yet first, then the youngest."""

    def order(pod: Pod) -> tuple[bool, datetime, str]:
        return not pod.ready, pod.created or datetime.min.replace(tzinfo=UTC), pod.name

    return sorted(pods, key=order, reverse=True)[:number]


def is_draining(draft: Draft) -> bool:
    """Whether data workers are on their way out."""
    return bool(_victims(draft))


def begin_draining(draft: Draft, victims: Sequence[Pod], staying: int) -> None:
    """Write down who goes and how many stay, and have Ray give the victims no more work."""
    noted = [_note(draft, pod) for pod in victims]
    draft.status["dataWorkers"] = {
        **_workers_status(draft),
        "draining": noted,
        "drainingTo": staying,
    }
    _ask_ray(draft)


def raise_while_draining(draft: Draft, wanted: int) -> None:
    """More are asked for beside those that go."""
    going = 0 if _has_list(draft) else len(_victims(draft))
    draft.status["dataWorkers"] = {**_workers_status(draft), "drainingTo": wanted}
    patch_group(draft, {"replicas": wanted + going})


def go_on_draining(draft: Draft) -> None:
    """The next step of what was begun, whatever is wanted meanwhile."""
    if not is_draining(draft):
        if _has_list(draft):  # nothing is known of it any more
            patch_group(draft, {"scaleStrategy": {"workersToDelete": []}})
        return
    _keep_within_bounds(draft)
    there = {pod.name for pod in draft.observed.pods if not _is_lost(draft, pod)}
    left = [victim for victim in _victims(draft) if victim["name"] in there]
    if not left and get_group(draft)["replicas"] <= count_wanted(draft):
        _end(draft)
    elif left and _is_listed(draft, left):
        draft.look_again(_LOOK_SECONDS)
    elif _is_late(draft) or all(_is_drained(draft, victim) for victim in left):
        _list(draft, left)
    else:
        _ask_ray(draft)


def _keep_within_bounds(draft: Draft) -> None:
    """What stays, as the spec allows it now: its bounds may have been edited meanwhile."""
    bounds, staying = draft.cluster_spec.data_workers, count_wanted(draft)
    within = min(max(staying, bounds.min_replicas), bounds.max_replicas)
    if within != staying:
        draft.status["dataWorkers"] = {**_workers_status(draft), "drainingTo": within}


def _list(draft: Draft, left: Sequence[Document]) -> None:
    """Lower the number, and say who goes: victims, and what KubeRay made in place of some."""
    staying = count_wanted(draft)
    began = parse_time(_victims(draft)[0]["time"])
    pods = find_staying(draft)
    younger = [pod for pod in pods if pod.created is not None and pod.created > began]
    stand_ins = choose_victims(younger, max(0, len(pods) - staying))
    noted = [*left, *(_note(draft, pod) for pod in stand_ins)][:MAX_DRAINING]
    names = [victim["name"] for victim in noted]
    if noted:
        draft.status["dataWorkers"] = {**_workers_status(draft), "draining": noted}
    patch_group(draft, {"replicas": staying, "scaleStrategy": {"workersToDelete": names}})


def _end(draft: Draft) -> None:
    kept = _workers_status(draft)
    left_out = ("draining", "drainingTo")
    draft.status["dataWorkers"] = {n: value for n, value in kept.items() if n not in left_out}
    if _has_list(draft):
        patch_group(draft, {"scaleStrategy": {"workersToDelete": []}})


def _ask_ray(draft: Draft) -> None:
    """Have Ray give them no more work; asked again it knows of it by its name."""
    victims = _victims(draft)
    began = parse_time(victims[0]["time"])
    draft.drain = Drain(
        submission_id=f"drain-{draft.owner.uid[:8]}-{began.timestamp():.0f}",
        addresses=tuple(victim["ip"] for victim in victims if "ip" in victim),
        deadline_seconds=DRAIN_SECONDS,
        why="fewer data workers are needed",
    )
    draft.look_again(_LOOK_SECONDS)


def _note(draft: Draft, pod: Pod) -> Document:
    return {"name": pod.name, "time": draft.stamp(), **({"ip": pod.ip} if pod.ip else {})}


def _workers_status(draft: Draft) -> Document:
    status: Document = draft.status.get("dataWorkers") or {}
    return status


def _victims(draft: Draft) -> Sequence[Document]:
    """{name, time, ip if it has one} of those that are being drained."""
    victims: Sequence[Document] = _workers_status(draft).get("draining") or ()
    return victims


def _has_list(draft: Draft) -> bool:
    return bool(_listed(draft))


def _listed(draft: Draft) -> Sequence[str]:
    return (get_group(draft).get("scaleStrategy") or {}).get("workersToDelete") or ()


def _is_listed(draft: Draft, left: Sequence[Document]) -> bool:
    listed = _listed(draft)
    return all(victim["name"] in listed for victim in left)


def _is_late(draft: Draft) -> bool:
    return draft.until(parse_time(_victims(draft)[0]["time"]), DRAIN_SECONDS) <= 0


def _is_lost(draft: Draft, pod: Pod) -> bool:
    """Whether it should be gone for long: its node does not answer, and nobody waits for it."""
    return pod.ends is not None and draft.until(pod.ends, LOST_SECONDS) <= 0


def _is_drained(draft: Draft, victim: Document) -> bool:
    drained = draft.observed.scaling.drained
    return "ip" not in victim or (drained is not None and victim["ip"] in drained)
