"""What an observed document says beside, or instead of, what was written: drift, and its mending.

An API server and the clients that write a document back whole add to it: the schema's defaults, and
fields that are empty. That is no drift; everything else is, since a field that somebody added to a
pod's template can open as much as one that was changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dataset_operator.builders.documents import Document

# Every default that KubeRay's CRD gives to a field of a RayCluster (v1, KubeRay 1.6) and that is
# not empty, by the field's name; a policy's ports have the first alone.
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
    """Whether a document says what was wanted and nothing more, but for defaults and empty fields.

    Args:
        empty_counts: whether an empty field that nobody wanted is something more, as where it is a
            selector, of which the empty one is the widest.

    Example:
        >>> is_same({"port": 80, "protocol": "TCP", "env": []}, {"port": 80})
        True
        >>> is_same({"port": 80, "hostPort": 80}, {"port": 80})
        False
    """
    if not wanted and isinstance(wanted, Mapping | list):
        return not observed  # the API server leaves empty ones out
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
    """A JSON merge patch (RFC 7386) that makes of what was observed what is wanted."""
    if not isinstance(wanted, Mapping) or not isinstance(observed, Mapping):
        return wanted
    removed: Document = dict.fromkeys(_find_additions(observed, wanted) if wanted else observed)
    merged = {name: build_merge_patch(observed.get(name), value) for name, value in wanted.items()}
    return merged | removed


def _find_additions(
    observed: Mapping[str, Any], wanted: Mapping[str, Any], *, empty_counts: bool = False
) -> list[str]:
    """Names of what nobody wanted, and no schema and no client adds by itself."""
    return [
        name
        for name, value in observed.items()
        if name not in wanted
        and (empty_counts or not _is_empty(value))
        and value not in DEFAULTS.get(name, ())
    ]


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping | list | str) and not value)
