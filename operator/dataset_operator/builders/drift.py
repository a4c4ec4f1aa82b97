"""Detects drift, which is any difference of an observed document from what was written.

An API server, and clients that write back a whole document, add the schema's defaults and empty
fields. These are no drift. Everything else is, since a field that somebody adds to a pod's template
can do as much harm as one that is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dataset_operator.builders.shared_parts import Document

# All non-empty defaults of KubeRay's CRD for RayCluster (v1, KubeRay 1.6), by the field's name.
# Only the first also occurs in a NetworkPolicy.
DEFAULTS: Mapping[str, tuple[Any, ...]] = {
    "protocol": ("TCP",),
    "numOfHosts": (1,),
    "minReplicas": (0,),
    "replicas": (0,),
    "maxReplicas": (2147483647,),
    "optional": (False,),
    "readOnly": (False,),
    "fsType": ("ext4", "xfs"),
    "iscsiInterface": ("default",),
    "keyring": ("/etc/ceph/keyring",),
    "pool": ("rbd",),
    "storageMode": ("ThinProvisioned",),
    "user": ("admin",),
}


def is_same(observed: Any, wanted: Any, *, empty_counts: bool = False) -> bool:
    """Return whether a document equals the wanted one, apart from defaults and empty fields.

    Args:
        empty_counts: True if an empty field that is not wanted is a difference, as with selectors:
            an empty selector selects everything.

    Example:
        >>> is_same({"port": 80, "protocol": "TCP", "env": []}, {"port": 80})
        True
        >>> is_same({"port": 80, "hostPort": 80}, {"port": 80})
        False
    """
    if not wanted and isinstance(wanted, Mapping | list):
        return not observed  # the API server drops empty fields
    if isinstance(wanted, Mapping):
        return (
            isinstance(observed, Mapping)
            and not _find_additions(observed, wanted, empty_counts=empty_counts)
            and all(
                is_same(observed.get(name), value, empty_counts=empty_counts)
                for name, value in wanted.items()
            )
        )
    if isinstance(wanted, list):
        return (
            isinstance(observed, list)
            and len(observed) == len(wanted)
            and all(
                is_same(*pair, empty_counts=empty_counts)
                for pair in zip(observed, wanted, strict=True)
            )
        )
    return bool(observed == wanted)


def build_merge_patch(observed: Any, wanted: Any) -> Any:
    """Build the JSON merge patch (RFC 7386) that turns the observed value into the wanted one."""
    if not isinstance(wanted, Mapping) or not isinstance(observed, Mapping):
        return wanted
    removed: Document = dict.fromkeys(_find_additions(observed, wanted) if wanted else observed)
    merged = {name: build_merge_patch(observed.get(name), value) for name, value in wanted.items()}
    return merged | removed


def _find_additions(
    observed: Mapping[str, Any], wanted: Mapping[str, Any], *, empty_counts: bool = False
) -> list[str]:
    """Return the names of unwanted fields that no schema and no client adds by itself."""
    return [
        name
        for name, value in observed.items()
        if name not in wanted
        and (empty_counts or not _is_empty(value))
        and value not in DEFAULTS.get(name, ())
    ]


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping | list | str) and not value)
