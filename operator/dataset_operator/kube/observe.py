"""Observe an experiment and everything that belongs to it."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import chain
from typing import Any

from pydantic_core import from_json

from dataset_operator.api import (
    CONFIG_KEY,
    RAY_CLUSTER_LABEL,
    ROLE_LABEL,
    RUN_KEY,
    TOKEN_KEY,
    WRITING,
)
from dataset_operator.builders.frozen import thaw
from dataset_operator.documents import Document, parse_time
from dataset_operator.errors import RayUnreachable
from dataset_operator.groups import GROUPS
from dataset_operator.kube.client import Kube
from dataset_operator.kube.clusters import parse_cluster
from dataset_operator.kube.head_pods import find_head_address
from dataset_operator.kube.past import find_history_pod, look_back
from dataset_operator.kube.pods import keep_member
from dataset_operator.names import Owner
from dataset_operator.observed import (
    CatalogTables,
    Cluster,
    Happened,
    Job,
    Observed,
    Pod,
    WrittenTable,
)
from dataset_operator.plan.keeping_history import PENDING
from dataset_operator.plan.scaling_log import find_log_job
from dataset_operator.ray.endpoints import Connect
from dataset_operator.ray.jobs import RayJobs
from dataset_operator.sealing import BROKEN, VALID, Seal, compute_digest
from dataset_operator.shapes import fit_object
from dataset_operator.sources.base import MetricsSource, Reading, Run
from pipeline_runtime.config import ExperimentStatus

# A pod that waits for one of these starts soon; other reasons are reported.
_USUAL_REASONS = frozenset({"ContainerCreating", "PodInitializing"})


async def observe(
    kube: Kube, connect: Connect, source: MetricsSource, known: Observed, seal: Seal
) -> tuple[Observed, RayJobs | None]:
    """Fetch the owned objects of an experiment, its job from Ray, and the metrics of its run.

    Args:
        known: the experiment alone, with the operator's own part of the observation.

    Returns:
        The observed state, and the cluster's Jobs API; None without a cluster or its token.

    Raises:
        KubeUnavailable: the API server did not answer.
    """
    owner, status = known.owner, known.status
    cluster = await _get(kube, owner, "RayCluster", owner.ray_cluster)
    secret = await _get(kube, owner, "Secret", owner.token_secret)
    token = _read_token(secret)
    children = await _look_beside(kube, owner, status)
    # List the pods before asking Ray, and ask at the observed address: a head that replaces this
    # one has another address, so its answer is not taken for the answer of the observed pod.
    selector = f"{RAY_CLUSTER_LABEL}={owner.ray_cluster}"
    found = await kube.list_objects("Pod", owner.namespace, selector, keep_member)
    pods = [parse_pod(pod) for pod in found]
    ours = parse_cluster(cluster) if cluster and _is_owned(cluster, owner) else None
    jobs = _reach(connect, owner, ours, token, found)
    job, failure = await _ask(jobs, known)
    is_running = job is not None and job.status == "RUNNING"
    history_pod = await find_history_pod(kube, owner, status)
    is_pending = status.history is not None and status.history.state == PENDING
    is_to_be_kept = is_pending and history_pod is None
    reading = Reading()
    if is_running and jobs is not None and ours is not None:
        reading = await source.read(_build_run(jobs, owner, ours, pods, status))
    there = [child for child in (cluster, secret, *children.values()) if child is not None]
    foreign = {_name(child) for child in there if not _is_owned(child, owner)}
    if secret is not None and token is None:
        foreign.add(_name(secret))  # the operator's own Secret has a token, and is immutable
    accepted, is_accepted_sealed = find_accepted(owner, status, children, seal)
    observed = replace(
        known,
        accepted=accepted,
        is_accepted_sealed=is_accepted_sealed,
        cluster=ours,
        rendered=thaw(cluster, owner.uid, seal) if cluster else None,
        broken_seals=find_broken_seals(owner, (cluster, children.get(owner.accepted)), seal),
        has_token=token is not None,
        pods=tuple(pods),
        ray_reachable=jobs is not None and not failure,
        ray_failure=failure,
        job=job,
        progress=reading.progress,
        children=drop_unsealed(owner, children, seal),
        foreign=tuple(sorted(foreign)),
        scaling=replace(
            known.scaling,
            drained=await _ask_drained(jobs, status) if is_running else None,
            log_job=await _ask_log_job(jobs, owner, status) if is_running else None,
            unknown=reading.unknown,
        ),
        history_pod=history_pod,
        happened=await look_back(kube, owner, found) if is_to_be_kept else Happened(),
    )
    return observed, jobs


def _build_run(
    jobs: RayJobs, owner: Owner, cluster: Cluster, pods: list[Pod], status: ExperimentStatus
) -> Run:
    trainers, gpus = cluster.trainers or (None, 0)
    assert status.submission is not None  # its job runs
    return Run(
        owner=owner,
        jobs=jobs,
        pods=tuple(pods),
        trainers=trainers,
        gpus_per_trainer=gpus,
        since=parse_time(status.submission.time),
    )


async def _ask_log_job(jobs: RayJobs | None, owner: Owner, status: ExperimentStatus) -> Job | None:
    """Return the job that writes decisions to the artifacts, if there is one."""
    name = find_log_job(owner, status)
    if jobs is None or name is None:
        return None
    try:
        return await jobs.get(name)
    except RayUnreachable:
        return None


async def _ask_drained(jobs: RayJobs | None, status: ExperimentStatus) -> frozenset[str] | None:
    """Return the addresses of nodes that are gone, if workers are being drained."""
    drained = (kind.list_numbers(status) for kind in GROUPS if kind.drains == "ByRay")
    if jobs is None or not any(workers.draining for workers in chain.from_iterable(drained)):
        return None
    try:
        nodes = await jobs.nodes()
    except RayUnreachable:
        return None
    alive = {node.ip for node in nodes if node.is_alive}
    return frozenset(node.ip for node in nodes if node.ip not in alive)


async def _get(kube: Kube, owner: Owner, kind: str, name: str) -> Document | None:
    """Return an object of the namespace; without valid metadata it has no owner, so is foreign."""
    document = await kube.get(kind, owner.namespace, name)
    if document is None:
        return None
    return fit_object(kind, document) or {"kind": kind, "metadata": {"name": name}}


def _read_token(secret: Document | None) -> str | None:
    """Return Ray's token, which goes into a header; None if the Secret holds none."""
    try:
        encoded = (secret or {}).get("data", {}).get(TOKEN_KEY, "")
        token = base64.b64decode(encoded, validate=True).decode("ascii")
    except ValueError:
        return None
    return token if token and token.isprintable() else None


def _reach(
    connect: Connect,
    owner: Owner,
    cluster: Cluster | None,
    token: str | None,
    pods: list[Document],
) -> RayJobs | None:
    if token is None or cluster is None:
        return None
    return connect(owner, token, cluster.service, find_head_address(cluster.document, pods))


async def _look_beside(
    kube: Kube, owner: Owner, status: ExperimentStatus
) -> dict[str, Document | None]:
    """Return the configs of the present run and the guards, by name; None if one is absent."""
    configs = [("ConfigMap", name) for name in (_config_name(owner, status), owner.accepted)]
    wanted = [*configs, *owner.list_guards()]
    return {name: await _get(kube, owner, kind, name) for kind, name in wanted if name}


def _config_name(owner: Owner, status: ExperimentStatus) -> str:
    if status.run is None or not status.run_hash:
        return ""
    return owner.config_map(status.run, status.run_hash)


def find_accepted(
    owner: Owner,
    status: ExperimentStatus,
    children: Mapping[str, Mapping[str, Any] | None],
    seal: Seal,
) -> tuple[Document | None, bool]:
    """Return the experiment as the present run last took it; as it began if only that is known.

    Returns:
        The experiment, and whether the operator has sealed it. Without a seal it is from an older
        operator, or forged. The plan then uses it only if it is of this run and breaks no rule.
        If the status holds digests of the accepted spec, any other spec is ignored. The status of
        an older release holds none.
    """
    unsealed, digests = None, status.accepted_digests
    for name in (owner.accepted, _config_name(owner, status)):
        config_map = children.get(name)
        config = _read_config(config_map) if config_map is not None else None
        if config_map is None or config is None:
            continue
        is_last = name == owner.accepted
        if is_last and config_map["data"].get(RUN_KEY) != str(status.run):
            continue  # it belongs to the run before
        if digests and compute_digest(config) not in digests:
            continue
        if seal.judge(config_map, owner.uid) == VALID:
            return config, True
        unsealed = unsealed or config
    return unsealed, False


def _read_config(config_map: Mapping[str, Any]) -> Document | None:
    """Return the experiment in a ConfigMap, which a tenant may have written; None if it has none.

    The API server refuses a ConfigMap of more than 1 MiB, so the text is bounded.
    """
    try:
        config = from_json((config_map.get("data") or {}).get(CONFIG_KEY) or "")
    except ValueError:
        return None
    return config if isinstance(config, dict) else None


def drop_unsealed(
    owner: Owner, children: Mapping[str, Mapping[str, Any] | None], seal: Seal
) -> dict[str, Mapping[str, Any]]:
    """Return the existing objects, without the accepted ConfigMap if its seal is not valid.

    The plan then writes it again, with a seal.
    """
    there = {name: child for name, child in children.items() if child is not None}
    accepted = there.get(owner.accepted)
    if accepted is not None and seal.judge(accepted, owner.uid) != VALID:
        del there[owner.accepted]
    return there


def find_broken_seals(
    owner: Owner, objects: Iterable[Mapping[str, Any] | None], seal: Seal
) -> tuple[str, ...]:
    """Return the objects whose seal is broken, as «Kind name»; a missing seal is not broken."""
    there = [found for found in objects if found is not None]
    return tuple(_name(found) for found in there if seal.judge(found, owner.uid) == BROKEN)


def _is_owned(child: Mapping[str, Any], owner: Owner) -> bool:
    references = child["metadata"].get("ownerReferences") or ()
    return any(reference["uid"] == owner.uid for reference in references)


def _name(child: Mapping[str, Any]) -> str:
    return f"{child['kind']} {child['metadata']['name']}"


async def _ask(jobs: RayJobs | None, known: Observed) -> tuple[Job | None, str]:
    """Return the attempt's job, and the reason if Ray did not answer."""
    if jobs is None:
        return None, ""
    submission = known.status.submission
    try:
        # Without an attempt, any id shows whether Ray answers.
        job = await jobs.get(submission.id if submission else "none")
    except RayUnreachable as error:
        return None, str(error) or "no answer"
    if not submission or job is None:
        return None, ""
    has_catalogs = bool(known.document["spec"].get("catalogs"))
    has_tables = has_catalogs or known.status.find(WRITING) is not None
    if job.status == "SUCCEEDED" and has_tables:
        table, tables = await _ask_tables(jobs, submission.id)
        job = replace(job, table=table, tables=tables)
    return job, ""


async def _ask_tables(
    jobs: RayJobs, submission_id: str
) -> tuple[WrittenTable | None, CatalogTables]:
    """Return the tables of a driver that has ended; the last metrics are older than its end."""
    try:
        return await jobs.tables(submission_id)
    except RayUnreachable:
        return None, CatalogTables()


def _labels(pod: Document) -> Mapping[str, str]:
    labels: Mapping[str, str] = pod["metadata"].get("labels") or {}
    return labels


def parse_pod(pod: Document) -> Pod:
    """Parse a pod of a cluster, which has its role as a label."""
    status = pod.get("status", {})
    conditions = {c["type"]: c for c in status.get("conditions", ())}
    going = "deletionTimestamp" in pod["metadata"]
    ready = conditions.get("Ready", {}).get("status") == "True" and not going
    changed = _parse_optional(conditions.get("Ready", {}).get("lastTransitionTime"))
    return Pod(
        name=pod["metadata"]["name"],
        uid=pod["metadata"]["uid"],
        role=_labels(pod)[ROLE_LABEL],
        ready=ready,
        waiting="" if ready else _waits_for(pod, conditions),
        created=_parse_optional(pod["metadata"].get("creationTimestamp")),
        scheduled=_find_placement(conditions),
        over=_find_end(status, conditions),
        started=_find_start(status),
        ready_since=changed if ready else None,
        unready_since=None if ready or going else changed,
        ip=status.get("podIP") or "",
        ends=_parse_optional(pod["metadata"].get("deletionTimestamp")),
        out_of_memory=_find_out_of_memory(status),
        lost=_find_loss(pod, status, conditions),
    )


def _parse_optional(text: str | None) -> datetime | None:
    return parse_time(text) if text else None


def _find_placement(conditions: Mapping[str, Mapping[str, str]]) -> datetime | None:
    """Return the time at which the pod was assigned to a node."""
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") != "True":
        return None
    return _parse_optional(scheduled.get("lastTransitionTime"))


def _find_end(
    status: Mapping[str, Any], conditions: Mapping[str, Mapping[str, str]]
) -> datetime | None:
    """Return the time at which all containers of a pod had ended; None if some still run."""
    if status.get("phase") not in ("Succeeded", "Failed"):
        return None
    states = [container.get("state") or {} for container in status.get("containerStatuses") or ()]
    times = [(state.get("terminated") or {}).get("finishedAt") for state in states]
    # The containers of an evicted pod may be missing; it was not ready from its eviction on.
    known = [time for time in times if time] or [
        conditions.get("Ready", {}).get("lastTransitionTime")
    ]
    return max((parse_time(time) for time in known if time), default=None)


def _find_start(status: Mapping[str, Any]) -> datetime | None:
    """Return the start of the pod's last container; None after a restart, or if some wait."""
    containers = status.get("containerStatuses") or ()
    running = [(c.get("state") or {}).get("running") or {} for c in containers]
    starts = [parse_time(state["startedAt"]) for state in running if state.get("startedAt")]
    if len(starts) < len(containers) or any(c.get("restartCount") for c in containers):
        return None
    return max(starts, default=None)


def _find_out_of_memory(status: Mapping[str, Any]) -> datetime | None:
    """Return the last time at which the kubelet reported a container as OOMKilled."""
    ended = [
        terminated
        for container in status.get("containerStatuses") or ()
        for state in ("state", "lastState")
        if (terminated := (container.get(state) or {}).get("terminated"))
    ]
    times = [t.get("finishedAt") for t in ended if t.get("reason") == "OOMKilled"]
    return max((parse_time(time) for time in times if time), default=None)


def _find_loss(
    pod: Mapping[str, Any], status: Mapping[str, Any], conditions: Mapping[str, Mapping[str, str]]
) -> str:
    """Return why the cluster lost a pod: evicted, preempted, its node gone; "" if it did not."""
    disrupted = conditions.get("DisruptionTarget", {})
    if disrupted.get("status") == "True":
        return disrupted.get("message") or disrupted.get("reason") or "disrupted"
    reason = status.get("reason")  # Evicted, NodeLost, Shutdown, Terminated, Preempting …
    if reason and status.get("phase") == "Failed":
        return f"{reason}: {status.get('message', '')}".rstrip(": ")
    return "it was deleted" if "deletionTimestamp" in pod["metadata"] else ""


def _waits_for(pod: Document, conditions: Mapping[str, Mapping[str, str]]) -> str:
    """Return why a pod is not ready, in the words of the scheduler or the kubelet."""
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return f"{pod['metadata']['name']}: {scheduled.get('message', 'not scheduled')}"
    status = pod.get("status", {})
    containers = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    for container in containers:
        waiting = container.get("state", {}).get("waiting") or {}
        reason = waiting.get("reason")
        if reason and reason not in _USUAL_REASONS:
            return f"{pod['metadata']['name']}: {reason}: {waiting.get('message', '')}".rstrip(": ")
    return ""
