"""Look up the events and pods of a cluster that is about to be deleted, and its history's pod.

A namespace may have many and large events: they are listed page by page, and cut to the kept part.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from dataset_operator.api import HISTORY_LABEL, ROLE_LABEL
from dataset_operator.documents import Document
from dataset_operator.errors import KubeRefused
from dataset_operator.kube.client import Kube
from dataset_operator.kube.pods import cut, shrink_pod
from dataset_operator.names import Owner
from dataset_operator.observed import Happened, HistoryPod
from dataset_operator.shapes import fit_object
from pipeline_runtime.config import ExperimentStatus

_LOG = logging.getLogger(__name__)
_EVENT_FIELDS = ("type", "reason", "message", "count", "firstTimestamp", "lastTimestamp")
# Some 300 fit into a history's 128 KiB.
_MAX_EVENTS = 1000
_CONTAINER_FIELDS = ("name", "ready", "restartCount", "state", "lastState")


async def find_history_pod(kube: Kube, owner: Owner, status: ExperimentStatus) -> HistoryPod | None:
    """Find the pod that the status names. It is listed: the operator has no right to get a pod."""
    name = status.history.pod_name if status.history else None
    if name is None:
        return None
    selector = f"{HISTORY_LABEL}={owner.ray_cluster}"

    def keep(listed: Document) -> Document | None:
        pod = fit_object("Pod", listed)
        return shrink_pod(pod) if pod is not None and pod["metadata"]["name"] == name else None

    found = await kube.list_objects("Pod", owner.namespace, selector, keep)
    return parse_history_pod(found[0]) if found else None


def parse_history_pod(pod: Document) -> HistoryPod:
    """Parse a history pod."""
    metadata, status = pod["metadata"], pod.get("status", {})
    return HistoryPod(
        name=metadata["name"],
        uid=metadata["uid"],
        phase=status.get("phase", "Pending"),
        message=_find_message(status),
        is_going="deletionTimestamp" in metadata,
    )


def _find_message(status: Mapping[str, Any]) -> str:
    """Return why it ended or waits: its last message, the kubelet's or the scheduler's."""
    for container in status.get("containerStatuses") or ():
        for state in (container.get("state") or {}).values():
            message = (state or {}).get("message") or (state or {}).get("reason")
            if message and message != "Completed":
                return str(message).strip()
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", "not scheduled"))
    return str(status.get("message") or status.get("reason") or "")


async def look_back(kube: Kube, owner: Owner, pods: Sequence[Document]) -> Happened:
    """Look up the events of an experiment; trim them and its pods for its history."""
    events: list[Document] = []

    def keep(listed: Document) -> None:
        event = fit_object("Event", listed)
        if event is not None and len(events) < _MAX_EVENTS and _is_about(event, owner):
            events.append(cut(_trim_event(event)))

    try:
        await kube.list_objects("Event", owner.namespace, "", keep)
    except KubeRefused as error:  # an older role; keep the rest of the history
        _LOG.warning("listing events for the history failed: %s", error)
    events.sort(key=lambda event: str(event.get("lastTimestamp") or ""))
    return Happened(events=tuple(events), pods=tuple(map(_trim_pod, pods)))


def _is_about(event: Mapping[str, Any], owner: Owner) -> bool:
    about = event.get("involvedObject") or {}
    name = about.get("name") or ""
    is_child = name == owner.ray_cluster or name.startswith(f"{owner.ray_cluster}-")
    return about.get("uid") == owner.uid or is_child


def _trim_event(event: Mapping[str, Any]) -> Document:
    metadata, about = event["metadata"], event.get("involvedObject") or {}
    # A component that writes events.k8s.io/v1 sets `eventTime` instead of `lastTimestamp`.
    when = event.get("lastTimestamp") or event.get("eventTime") or metadata["creationTimestamp"]
    kept = {name: event[name] for name in _EVENT_FIELDS if event.get(name) is not None}
    return {
        **kept,
        "lastTimestamp": when,
        "metadata": {
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "creationTimestamp": metadata["creationTimestamp"],
        },
        "involvedObject": {name: about.get(name, "") for name in ("kind", "name", "uid")},
    }


def _trim_pod(pod: Mapping[str, Any]) -> Document:
    metadata, status = pod["metadata"], pod.get("status") or {}
    role = (metadata.get("labels") or {}).get(ROLE_LABEL, "")
    containers = ("initContainerStatuses", "containerStatuses")
    return {
        "metadata": {
            **{f: metadata[f] for f in ("name", "uid", "creationTimestamp") if f in metadata},
            "labels": {ROLE_LABEL: role},
        },
        "status": {
            **{field: status[field] for field in ("phase", "reason", "message") if field in status},
            "conditions": [
                {"type": c["type"], "status": c["status"]} for c in status.get("conditions") or ()
            ],
            **{
                field: [
                    {name: c[name] for name in _CONTAINER_FIELDS if name in c}
                    for c in status.get(field) or ()
                ]
                for field in containers
            },
        },
    }
