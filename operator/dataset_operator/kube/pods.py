"""The part of a pod that the operator uses: at most some kilobytes, whatever the pod has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dataset_operator.api import ROLE_LABEL
from dataset_operator.documents import Document
from dataset_operator.shapes import fit_object

_METADATA: Final = ("name", "uid", "creationTimestamp", "deletionTimestamp", "ownerReferences")
_SPEC: Final = ("hostNetwork",)
_STATUS: Final = ("phase", "reason", "message", "podIP", "conditions")
_CONTAINERS: Final = ("initContainerStatuses", "containerStatuses")
_CONTAINER: Final = ("name", "ready", "restartCount", "state", "lastState")
# A status of an experiment has messages of 1 KiB at most, and a pod has few containers.
_MAX_CHARACTERS: Final = 1024
_MAX_ITEMS: Final = 32


def keep_member(listed: Document) -> Document | None:
    """Return the used part of a pod of a cluster; None if the pod has no role there."""
    pod = fit_object("Pod", listed)
    has_role = pod is not None and ROLE_LABEL in (pod["metadata"].get("labels") or {})
    return shrink_pod(pod) if pod is not None and has_role else None


def shrink_pod(pod: Document) -> Document:
    """Return the used part of a pod."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels = metadata.get("labels") or {}
    small = _pick(status, _STATUS)
    for field in _CONTAINERS:
        found = (status.get(field) or ())[:_MAX_ITEMS]
        small[field] = [_pick(container, _CONTAINER) for container in found]
    return {
        "metadata": {
            **_pick(metadata, _METADATA),
            "labels": {ROLE_LABEL: labels[ROLE_LABEL]} if ROLE_LABEL in labels else {},
        },
        "spec": _pick(pod.get("spec") or {}, _SPEC),
        "status": small,
    }


def cut(value: Any) -> Any:
    """Return a value with long texts and lists cut."""
    if isinstance(value, str):
        return value[:_MAX_CHARACTERS]
    if isinstance(value, list):
        return [cut(item) for item in value[:_MAX_ITEMS]]
    if isinstance(value, dict):
        return {name: cut(value[name]) for name in list(value)[:_MAX_ITEMS]}
    return value


def _pick(document: Mapping[str, Any], names: tuple[str, ...]) -> Document:
    return {name: cut(document[name]) for name in names if document.get(name) is not None}
