"""Find the pod of a cluster's Ray head. The operator sends the cluster's token to its address.

The address of a Service is not used: a tenant may turn the Service into an ExternalName, and the
token would go to a host of theirs. Only the kubelet writes the address of a pod. `observe` lists
the pods before; `ray.endpoints` checks the address.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dataset_operator.api import HEAD, ROLE_LABEL
from dataset_operator.documents import Document


def find_head_address(cluster: Mapping[str, Any], pods: Iterable[Document]) -> str:
    """Return the address of the head that belongs to a RayCluster; "" if there is none now.

    Args:
        pods: pods with the cluster's label, even of an earlier cluster of that name.
    """
    uid = cluster["metadata"]["uid"]
    heads = [pod for pod in pods if _is_head(pod, uid)]
    newest = max(heads, key=lambda pod: str(pod["metadata"].get("creationTimestamp")), default=None)
    return "" if newest is None else str(newest["status"]["podIP"])


def _is_head(pod: Document, cluster_uid: str) -> bool:
    """Return whether a pod is a live head of the cluster, and has a network of its own."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    owners = metadata.get("ownerReferences") or ()
    return (
        (metadata.get("labels") or {}).get(ROLE_LABEL) == HEAD
        and any(each.get("kind") == "RayCluster" and each["uid"] == cluster_uid for each in owners)
        and bool(status.get("podIP"))
        and status.get("phase") not in ("Succeeded", "Failed")
        and "deletionTimestamp" not in metadata
        and not spec.get("hostNetwork")
    )
