"""Finds the pod of a cluster's Ray head, to whose address the operator sends the cluster's token.

A Service would do as well if nobody else could write to it: a tenant may turn it into an
ExternalName, and the token would go to a host of theirs. A pod's address is the kubelet's to write.
`observe` lists the pods before; `ray.endpoints` judges the address.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dataset_operator.api import HEAD, ROLE_LABEL
from dataset_operator.observed import Document


def find_head_address(cluster: Mapping[str, Any], pods: Iterable[Document]) -> str:
    """Return the address of the head that belongs to a RayCluster; "" if there is none now.

    Args:
        pods: with the cluster's label, of an earlier cluster of that name too.
    """
    uid = cluster["metadata"]["uid"]
    heads = [pod for pod in pods if _is_head(pod, uid)]
    newest = max(heads, key=lambda pod: str(pod["metadata"].get("creationTimestamp")), default=None)
    return "" if newest is None else str(newest["status"]["podIP"])


def _is_head(pod: Document, cluster_uid: str) -> bool:
    """Return whether a pod is a head of the cluster that runs on a network of its own."""
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
