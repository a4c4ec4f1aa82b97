"""Merges a user's pod template into ours, the way Kubernetes' strategic merge patch does.

Maps merge key by key; lists that the API declares as keyed merge item by item; other lists and
scalars are replaced; null removes. `$patch: delete` removes a keyed item, `$patch: replace` takes a
map or keyed item as it is. Source of the keys: the `patchMergeKey` tags of k8s.io/api/core/v1.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

Document = dict[str, Any]

# Field of a pod template → the key that identifies its items.
_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
_DIRECTIVE = "$patch"
_REMOVED = object()


def merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> Document:
    """Return `base` merged with `patch`; neither is changed."""
    if patch.get(_DIRECTIVE) == "replace":
        return {key: value for key, value in patch.items() if key != _DIRECTIVE}
    merged = dict(base)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif key != _DIRECTIVE:
            merged[key] = _merge_value(key, merged.get(key), value)
    return merged


def _merge_value(key: str, base: Any, patch: Any) -> Any:
    if isinstance(patch, Mapping):
        return merge(base if isinstance(base, Mapping) else {}, patch)
    merge_key = _MERGE_KEYS.get(key)
    if merge_key and isinstance(patch, list) and _is_keyed(patch, merge_key):
        return _merge_items(merge_key, base if isinstance(base, list) else [], patch)
    return patch


def _is_keyed(items: Sequence[Any], key: str) -> bool:
    return all(isinstance(item, Mapping) and key in item for item in items)


def _merge_items(key: str, base: Sequence[Any], patch: Sequence[Document]) -> list[Any]:
    """Merge keyed items: those of `base` in their order, changed or removed, then the new ones.

    An item that is not a mapping stays, for the API server to refuse. The work grows with the
    number of items, not with its square: a template can hold thousands.
    """
    merged: list[Any] = list(base)
    places: dict[Hashable, list[int]] = defaultdict(list)
    for index, item in enumerate(merged):
        if isinstance(item, Mapping):
            places[_identify(item.get(key))].append(index)
    for item in patch:
        found = places[_identify(item[key])]
        if item.get(_DIRECTIVE) == "delete":
            for index in found:
                merged[index] = _REMOVED
            found.clear()
        elif found:
            merged[found[0]] = merge(merged[found[0]], item)
        else:
            found.append(len(merged))
            merged.append(merge({}, item))
    return [item for item in merged if item is not _REMOVED]


def _identify(value: Any) -> Hashable:
    """Return a hashable form of an item's key, which may have any type in a user's template."""
    if isinstance(value, Mapping | list):
        return (type(value).__name__, json.dumps(value, sort_keys=True))
    key: Hashable = value
    return key
