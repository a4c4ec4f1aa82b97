"""The small part of an object's metadata that the operator keeps: its identity and two digests.

Labels, annotations, owner references and finalisers of an object may have a megabyte. A watch only
has to know that they changed, and digests show that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from dataset_operator.api import EXPERIMENT_LABEL, RAY_CLUSTER_LABEL, ROLE_LABEL
from dataset_operator.documents import Document

# Accept headers of requests for metadata alone.
ONE: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
# Fields that identify an object and its version.
_KEPT: Final = ("name", "namespace", "uid", "resourceVersion", "generation")
_LABELS: Final = (EXPERIMENT_LABEL, ROLE_LABEL, RAY_CLUSTER_LABEL)
# Fields that every write changes, including a write of the status.
_OF_A_WRITE: Final = frozenset({"resourceVersion", "managedFields"})
# Kubernetes has no field of this name, and the API server drops unknown fields.
_DIGESTS: Final = "lastmileDigests"


def shrink(metadata: Mapping[str, Any]) -> Document:
    """Return the metadata with digests in place of its large parts."""
    if _DIGESTS in metadata:
        return dict(metadata)
    labels = metadata.get("labels") or {}
    edited = {
        name: value
        for name, value in metadata.items()
        if name not in _OF_A_WRITE and name != "finalizers"
    }
    return {
        **{name: metadata[name] for name in _KEPT if name in metadata},
        "labels": {name: labels[name] for name in _LABELS if name in labels},
        _DIGESTS: {"edited": _digest(edited), "finalizers": _digest(metadata.get("finalizers"))},
    }


def find_edit(metadata: Mapping[str, Any]) -> int:
    """Return a digest of the parts that users write: the metadata, with the spec's generation."""
    digest: int = shrink(metadata)[_DIGESTS]["edited"]
    return digest


def find_finalizers(metadata: Mapping[str, Any]) -> int:
    """Return a digest of the finalisers."""
    digest: int = shrink(metadata)[_DIGESTS]["finalizers"]
    return digest


def _digest(content: object) -> int:
    """Return a number that is the same for equal content, in this process."""
    return hash(json.dumps(content, sort_keys=True))
