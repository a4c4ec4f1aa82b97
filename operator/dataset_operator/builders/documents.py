"""Metadata that all owned objects share: name, owner, labels."""

from __future__ import annotations

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
