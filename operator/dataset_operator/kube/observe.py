"""One look at an experiment and everything that belongs to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dataset_operator.api import CONFIG_KEY, RAY_CLUSTER_LABEL, ROLE_LABEL
from dataset_operator.errors import RayUnreachable
from dataset_operator.kube.client import Kube
from dataset_operator.names import Owner
from dataset_operator.observed import Document, Job, Observed, Pod
from dataset_operator.ray.jobs import RayJobs

# Pods that wait for these are about to be well; other reasons are worth telling.
_USUAL_REASONS = frozenset({"ContainerCreating", "PodInitializing"})


async def observe(kube: Kube, jobs: RayJobs | None, document: Document) -> Observed:
    """Look at the children of an experiment, and ask Ray of its job.

    Args:
        jobs: the cluster's Jobs API; None while there is no ready head.

    Raises:
        KubeUnavailable: the API server did not answer.
    """
    metadata, status = document["metadata"], document.get("status") or {}
    owner = Owner(name=metadata["name"], namespace=metadata["namespace"], uid=metadata["uid"])
    cluster = await kube.get("RayCluster", owner.namespace, owner.ray_cluster)
    selector = f"{RAY_CLUSTER_LABEL}={owner.ray_cluster}"
    pods = await kube.list_objects("Pod", owner.namespace, selector) if cluster else []
    accepted, missing = await _look_beside(kube, owner, status)
    reachable, job = await _ask(jobs, status)
    return Observed(
        document=document,
        accepted=accepted,
        ray_cluster=cluster,
        has_token=await kube.get("Secret", owner.namespace, owner.token_secret) is not None,
        pods=tuple(_parse_pod(pod) for pod in pods if ROLE_LABEL in _labels(pod)),
        ray_reachable=reachable,
        job=job,
        missing_children=missing,
    )


async def _look_beside(
    kube: Kube, owner: Owner, status: Mapping[str, Any]
) -> tuple[Document | None, frozenset[str]]:
    """The accepted config of the present run, and names of children that are not there."""
    accepted, missing = None, set()
    if run_hash := status.get("runHash"):
        name = owner.config_map(run_hash)
        config = await kube.get("ConfigMap", owner.namespace, name)
        accepted = json.loads(config["data"][CONFIG_KEY]) if config else None
        missing |= set() if config else {name}
    for kind, name in owner.guards:
        if await kube.get(kind, owner.namespace, name) is None:
            missing.add(name)
    return accepted, frozenset(missing)


async def _ask(jobs: RayJobs | None, status: Mapping[str, Any]) -> tuple[bool, Job | None]:
    if jobs is None:
        return False, None
    submission = status.get("submission")
    try:
        # Without an attempt any id tells whether Ray answers.
        job = await jobs.get(submission["id"] if submission else "none")
    except RayUnreachable:
        return False, None
    return True, job if submission else None


def _labels(pod: Document) -> Mapping[str, str]:
    labels: Mapping[str, str] = pod["metadata"].get("labels") or {}
    return labels


def _parse_pod(pod: Document) -> Pod:
    status = pod.get("status", {})
    conditions = {c["type"]: c for c in status.get("conditions", ())}
    going = "deletionTimestamp" in pod["metadata"]
    ready = conditions.get("Ready", {}).get("status") == "True" and not going
    role: Any = _labels(pod)[ROLE_LABEL]
    return Pod(
        name=pod["metadata"]["name"],
        uid=pod["metadata"]["uid"],
        role=role,
        ready=ready,
        waiting="" if ready else _waits_for(pod, conditions),
    )


def _waits_for(pod: Document, conditions: Mapping[str, Mapping[str, str]]) -> str:
    """Why a pod is not ready, in the words of the scheduler or the kubelet."""
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
