"""Parses the RayCluster of an experiment, which anybody in its namespace may have written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dataset_operator.api import (
    CLUSTER_HASH_ANNOTATION,
    KUEUE_QUEUE_LABEL,
    REPLICA_FAILURE,
)
from dataset_operator.builders.frozen import read_trainers
from dataset_operator.documents import parse_time
from dataset_operator.observed import Cluster, ObservedGroup, ReplicaFailure


def parse_cluster(document: Mapping[str, Any]) -> Cluster:
    """Parse a RayCluster with the parts that have its shape (`shapes.fit_object`)."""
    metadata, spec, status = document["metadata"], document["spec"], document.get("status") or {}
    created = metadata.get("creationTimestamp")
    return Cluster(
        document=document,
        uid=metadata["uid"],
        created=parse_time(created) if created else None,
        is_going="deletionTimestamp" in metadata,
        is_suspended=bool(spec.get("suspend")),
        queue=(metadata.get("labels") or {}).get(KUEUE_QUEUE_LABEL),
        made_from=(metadata.get("annotations") or {}).get(CLUSTER_HASH_ANNOTATION),
        trainers=read_trainers(document),
        groups=tuple(map(_parse_group, spec.get("workerGroupSpecs") or ())),
        is_handled=bool(status),
        failure=_find_failure(status),
        service=(status.get("head") or {}).get("serviceName"),
    )


def _parse_group(group: Mapping[str, Any]) -> ObservedGroup:
    listed = (group.get("scaleStrategy") or {}).get("workersToDelete") or ()
    return ObservedGroup(
        name=group["groupName"], replicas=group.get("replicas"), to_delete=tuple(listed)
    )


def _find_failure(status: Mapping[str, Any]) -> ReplicaFailure | None:
    """Return why KubeRay cannot create pods; None if it can."""
    for condition in status.get("conditions") or ():
        if condition["type"] == REPLICA_FAILURE and condition["status"] == "True":
            since = condition.get("lastTransitionTime")
            return ReplicaFailure(
                message=condition.get("message", ""), since=parse_time(since) if since else None
            )
    return None
