"""Freezes a running cluster: it stays as it was rendered, and edits by hand are undone.

The RayCluster has three annotations:

- the hash of the part of the spec that it was made from. An edit of that part is detected by it,
  even if another version of the operator would render the cluster differently;
- the rendered spec, so that an edit by hand can be undone;
- the number of trainers and GPUs in the spec, which gives the ranks of an attempt on this cluster;
  a cluster without trainers does not have this annotation.

`sealing` seals the three, and the rendered spec is used only if its seal is valid. The number of
data workers is in none of them: it is in the RayCluster's `replicas`, within the bounds of the
experiment's spec.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from typing import Any

from dataset_operator.api import (
    CLUSTER_HASH_ANNOTATION,
    RENDERED_ANNOTATION,
    TRAINERS_ANNOTATION,
    Role,
)
from dataset_operator.builders.drift import build_merge_patch, is_same
from dataset_operator.builders.shared_parts import Document
from dataset_operator.groups import GROUPS, Bounds, Groups
from dataset_operator.sealing import VALID, Seal
from pipeline_runtime.config import (
    ExperimentSpec,
    Trainers,
    check_template_security,
)

_HASH_CHARS = 16
# All annotations together may have 256 KiB. Edits by hand of a larger cluster are not undone.
MAX_RENDERED_CHARS = 200_000
# etcd refuses objects of more than 1.5 MiB, so no RayCluster's spec is larger.
MAX_RENDERED_BYTES = 3 << 19
# A spec can have at most 1,024 trainers with 16 GPUs each.
_TRAINERS = re.compile(r"([1-9][0-9]{0,3})x([0-9]{1,2})")
_WHOLE_FIELDS = ("image", "imagePullSecrets", "env", "envFrom", "storage", "head")
# Whoever may edit a RayCluster can make its lists long. Each item of ours that was changed is
# compared with each added item; if that takes more comparisons, all additions are dropped.
_MAX_COMPARISONS = 10_000
# Fields that a queue writes into a RayCluster (Kueue's integration), and into its pod templates.
_OF_A_QUEUE = ("suspend", "managedBy")
_QUEUES_PLACES = {
    "metadata": ("labels", "annotations"),
    "spec": ("nodeSelector", "tolerations", "schedulingGates"),
}


def hash_cluster_side(spec: ExperimentSpec, groups: Groups = GROUPS) -> str:
    """Hash the part of a spec that a cluster is made from, without the numbers that policies scale.

    Returns 16 hexadecimal digits. Defaults are left out, so that a field that a later version adds
    does not change the hash.
    """
    document = spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    part: Document = {"dataWorkers": {}}  # every hash has it, also for workers by default
    part |= {field: document[field] for field in _WHOLE_FIELDS if field in document}
    secrets = {c.name: c.secret_ref.name for c in spec.used_catalogs if c.secret_ref}
    if secrets:
        part["catalogSecrets"] = secrets
    for kind in groups:
        if kind.spec_field in document:
            part[kind.spec_field] = _drop_fields(document[kind.spec_field], kind.live_fields)
        if kind.is_default and not kind.find(spec):
            part[f"has{kind.spec_field[0].upper()}{kind.spec_field[1:]}"] = False
    text = json.dumps(part, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARS]


def _drop_fields(section: Any, names: frozenset[str]) -> Any:
    """Return a section of a spec, or a list of sections, without some fields."""
    if isinstance(section, list):
        return [_drop_fields(item, names) for item in section]
    return {name: value for name, value in section.items() if name not in names}


def freeze(
    cluster: Document, spec: ExperimentSpec, spec_hash: str | None, groups: Groups = GROUPS
) -> Document:
    """Add the annotations of a frozen cluster to a rendered RayCluster."""
    text = json.dumps(cluster["spec"], sort_keys=True, separators=(",", ":"))
    rendered = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    annotations = {CLUSTER_HASH_ANNOTATION: spec_hash or hash_cluster_side(spec, groups)}
    if spec.num_trainers:
        numbers = f"{spec.num_trainers}x{spec.trainers.gpus_per_replica}"
        annotations[TRAINERS_ANNOTATION] = numbers
    if len(rendered) <= MAX_RENDERED_CHARS:
        annotations[RENDERED_ANNOTATION] = rendered
    metadata = cluster["metadata"]
    frozen = {**metadata, "annotations": {**metadata.get("annotations", {}), **annotations}}
    return {**cluster, "metadata": frozen}


def thaw_trainers(numbers: tuple[int, int] | None, wanted: Trainers) -> Trainers:
    """Return the wanted trainers, with the numbers of trainers and GPUs of an existing cluster.

    Args:
        numbers: from `read_trainers`; None: the wanted numbers are kept.
    """
    if numbers is None:
        return wanted
    made = dict(zip(("replicas", "gpus_per_replica"), numbers, strict=True))
    changed = {field: number for field, number in made.items() if getattr(wanted, field) != number}
    return wanted.model_copy(update=changed)


def read_trainers(cluster: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the trainers of a cluster and the GPUs of each; None without a valid annotation.

    A cluster that an older operator made, or that was edited, has none.
    """
    text = (cluster["metadata"].get("annotations") or {}).get(TRAINERS_ANNOTATION) or ""
    found = _TRAINERS.fullmatch(text)
    return None if found is None else (int(found[1]), int(found[2]))


def thaw(cluster: Mapping[str, Any], uid: str, seal: Seal) -> Document | None:
    """Return the spec that a cluster was rendered as; None if the operator did not seal it.

    Nothing is decompressed before the seal is verified, nor more than a RayCluster can hold.

    Args:
        uid: the experiment's uid.
    """
    text = (cluster["metadata"].get("annotations") or {}).get(RENDERED_ANNOTATION)
    if not isinstance(text, str) or seal.judge(cluster, uid) != VALID:
        return None
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(base64.b64decode(text), MAX_RENDERED_BYTES)
        spec = None if inflater.unconsumed_tail else json.loads(plain)
    except (ValueError, zlib.error, RecursionError):
        return None
    return spec if isinstance(spec, dict) else None


def correct(
    cluster: Mapping[str, Any], rendered: Document | None, scaled: Mapping[Role, Bounds]
) -> Document | None:
    """Return the merge patch that makes an observed RayCluster what it should be; None if it is.

    The rendered spec is restored. In a group that a policy scales, the wanted number of pods is the
    observed one, but at least the spec's minimum. Pods beyond its maximum stay for now: KubeRay
    removes at once, and in an order of its own, what is beyond `maxReplicas`; the plan drains them
    first. The patch carries the observed resourceVersion, since it replaces the list of groups, to
    which somebody else may have written another number meanwhile.

    Args:
        rendered: the wanted spec of the cluster; None: correct only the numbers of scaled groups.
        scaled: bounds of the groups that policies scale (`groups.find_scaled_bounds`).
    """
    there = cluster["spec"].get("workerGroupSpecs") or []
    spec = rendered or cluster["spec"]
    observed = {group["groupName"]: group for group in there}
    groups = []
    for made in spec.get("workerGroupSpecs") or ():
        seen = observed.get(made["groupName"], made)
        bounds = scaled.get(made["groupName"])
        group = made if bounds is None else _size(made, seen, bounds)
        groups.append(_keep_additions(group, seen))
    wanted = {**spec, "workerGroupSpecs": groups}
    if head := spec.get("headGroupSpec"):
        wanted["headGroupSpec"] = _keep_additions(head, cluster["spec"].get("headGroupSpec") or {})
    wanted |= {name: cluster["spec"][name] for name in _OF_A_QUEUE if name in cluster["spec"]}
    if is_same(cluster["spec"], wanted):
        return None
    version = cluster["metadata"]["resourceVersion"]
    return {
        "metadata": {"resourceVersion": version},
        "spec": build_merge_patch(cluster["spec"], wanted),
    }


def resize_group(
    cluster: Mapping[str, Any],
    name: str,
    numbers: tuple[int, int],
    to_delete: list[str] | None,
) -> Document:
    """Return the merge patch for another number of workers of a group.

    The patch replaces the list of groups, so it carries the observed resourceVersion, and fails
    after another write.

    Args:
        numbers: the number of workers, and the most that there may be.
        to_delete: names of the pods that KubeRay has to delete; None: it deletes none.
    """
    replicas, most = numbers
    # KubeRay creates no more pods than `maxReplicas`, whatever `replicas` is.
    changed: Document = {"replicas": replicas, "maxReplicas": max(most, replicas)}
    if to_delete is not None:
        changed["scaleStrategy"] = {"workersToDelete": to_delete}
    groups = cluster["spec"]["workerGroupSpecs"]
    first = next(group for group in groups if group["groupName"] == name)
    return {
        "metadata": {"resourceVersion": cluster["metadata"]["resourceVersion"]},
        "spec": {"workerGroupSpecs": [{**g, **changed} if g is first else g for g in groups]},
    }


def _keep_additions(group: Document, seen: Mapping[str, Any]) -> Document:
    """Return a group with what a queue added to its template, and with no other addition.

    A queue adds labels, annotations, nodes and tolerations (Kueue's `podset.Merge`), and the gates
    of its topologies. Annotations that would loosen the pod's security are dropped.
    """
    ours, theirs = group.get("template"), seen.get("template")
    if not isinstance(ours, Mapping) or not isinstance(theirs, Mapping):
        return group
    kept = dict(ours)
    for part, fields in _QUEUES_PLACES.items():
        before, now = ours.get(part) or {}, theirs.get(part)
        if not isinstance(before, Mapping) or not isinstance(now, Mapping):
            continue
        merged = dict(before)
        for field in fields:
            if both := _join(before.get(field), now.get(field)):
                merged[field] = both
        if isinstance(annotations := merged.get("annotations"), Mapping):
            merged["annotations"] = dict(filter(_is_harmless, annotations.items()))
        if merged:
            kept[part] = merged
    return {**group, "template": kept}


def _is_harmless(annotation: tuple[str, Any]) -> bool:
    template: Document = {"metadata": {"annotations": dict([annotation])}}
    return not any(check_template_security("", template))


def _join(ours: Any, theirs: Any) -> Any:
    """Return our mapping or list with the additions of others.

    A list keeps its observed order if all of ours is in it. If either value is of another type,
    which a user's template may contain, ours is returned.
    """
    if isinstance(theirs, Mapping) and isinstance(ours or {}, Mapping):
        return {**theirs, **(ours or {})}
    if not isinstance(theirs, list) or not isinstance(ours or [], list):
        return ours
    ours = ours or []
    same = {_write(one) for one in ours} & {_write(there) for there in theirs}
    changed = [one for one in ours if _write(one) not in same]
    added = [there for there in theirs if _write(there) not in same]
    if len(changed) * len(added) > _MAX_COMPARISONS:
        return ours
    if all(any(_holds(there, one) for there in added) for one in changed):
        return theirs
    return ours + [there for there in added if not any(_holds(there, one) for one in changed)]


def _write(item: Any) -> str:
    return json.dumps(item, sort_keys=True)


def _size(group: Document, observed: Mapping[str, Any], bounds: Bounds) -> Document:
    lowest, highest = bounds.least, bounds.most
    wanted = observed.get("replicas", lowest)
    made = min(wanted, observed.get("maxReplicas", highest))  # as KubeRay limits them
    highest = max(highest, made)
    sized = {
        **group,
        "minReplicas": lowest,
        "replicas": min(max(wanted, lowest), highest),
        "maxReplicas": highest,
    }
    if strategy := observed.get("scaleStrategy"):
        sized["scaleStrategy"] = strategy
    return sized


def _holds(observed: Any, wanted: Any) -> bool:
    """Return whether an observed value equals the wanted one, or contains all of its fields."""
    if not isinstance(observed, Mapping) or not isinstance(wanted, Mapping):
        return bool(observed == wanted)
    return all(observed.get(name) == value for name, value in wanted.items())


def is_as_built(observed: Mapping[str, Any] | None, built: Mapping[str, Any]) -> bool:
    """Return whether an owned object exists and equals the built one.

    Of its metadata only our labels count, by which it is watched; others may have added some.
    """
    if observed is None or not _holds(
        observed["metadata"].get("labels", {}), built["metadata"]["labels"]
    ):
        return False
    said = {name: value for name, value in built.items() if name != "metadata"}
    return all(
        is_same(observed.get(name), value, empty_counts=True) for name, value in said.items()
    )
