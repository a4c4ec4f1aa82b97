"""Parts that owned objects share: their metadata, and the peers of network policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dataset_operator.names import Owner
from pipeline_runtime.config import API_VERSION, KIND

Document = dict[str, Any]


def build_metadata(owner: Owner, name: str) -> Document:
    """Build the metadata of an owned object, which is garbage-collected after its experiment."""
    return {
        "name": name,
        "namespace": owner.namespace,
        "labels": owner.labels(),
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "name": owner.name,
                "uid": owner.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }


def build_peer(namespace: str, labels: Mapping[str, str]) -> Document:
    """Build the peer of a NetworkPolicy that selects pods of another namespace."""
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "podSelector": {"matchLabels": dict(labels)},
    }
