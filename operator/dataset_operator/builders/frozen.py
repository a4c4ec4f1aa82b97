"""A running cluster is frozen: what it was rendered as goes with it, and is what it is held to.

The RayCluster carries three annotations: the hash of the part of the spec that it was made from, so
that an edit of that part is seen whatever an operator of another version would render; the rendered
spec itself, so that what was changed by hand can be put back; and the trainers that the spec asked
for, whose ranks an attempt on this cluster has. The number of data workers is in none: it lives in
the RayCluster's `replicas`, within the bounds of the experiment's spec.
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
    DATA_WORKERS,
    RENDERED_ANNOTATION,
    TRAINERS_ANNOTATION,
)
from dataset_operator.builders.documents import Document
from pipeline_runtime.config import DataWorkers, ExperimentSpec, Trainers

_HASH_CHARS = 16
# All annotations together may have 256 KiB. What is larger is not put back when edited by hand.
MAX_RENDERED_CHARS = 200_000
_WHOLE_FIELDS = ("image", "imagePullSecrets", "env", "envFrom", "storage", "head", "trainers")
_WORKER_FIELDS = ("resources", "template")


def hash_cluster_side(spec: ExperimentSpec) -> str:
    """16 hexadecimal digits of what a cluster is made from, its number of data workers apart.

    Defaults are left out, so that a field that a later version adds changes no hash.
    """
    document = spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    workers = document.get("dataWorkers", {})
    part = {field: document[field] for field in _WHOLE_FIELDS if field in document}
    part["dataWorkers"] = {field: workers[field] for field in _WORKER_FIELDS if field in workers}
    text = json.dumps(part, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARS]


def freeze(cluster: Document, spec: ExperimentSpec) -> Document:
    """A rendered RayCluster with the annotations of what it came from and as what."""
    text = json.dumps(cluster["spec"], sort_keys=True, separators=(",", ":"))
    rendered = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    annotations = {
        CLUSTER_HASH_ANNOTATION: hash_cluster_side(spec),
        TRAINERS_ANNOTATION: f"{spec.trainers.replicas}x{spec.trainers.gpus_per_replica}",
    }
    if len(rendered) <= MAX_RENDERED_CHARS:
        annotations[RENDERED_ANNOTATION] = rendered
    metadata = cluster["metadata"]
    frozen = {**metadata, "annotations": {**metadata.get("annotations", {}), **annotations}}
    return {**cluster, "metadata": frozen}


def thaw_trainers(cluster: Mapping[str, Any], wanted: Trainers) -> Trainers:
    """The wanted trainers, as many and with as many GPUs as a cluster was made with.

    As they are wanted if it does not say: one that an older operator made, or that was edited.
    """
    numbers = read_trainers(cluster)
    if numbers is None:
        return wanted
    made = dict(zip(("replicas", "gpus_per_replica"), numbers, strict=True))
    changed = {field: number for field, number in made.items() if getattr(wanted, field) != number}
    return wanted.model_copy(update=changed)


def read_trainers(cluster: Mapping[str, Any]) -> tuple[int, int] | None:
    """Trainers that a cluster was made with, and GPUs of each; None if it does not say."""
    text = (cluster["metadata"].get("annotations") or {}).get(TRAINERS_ANNOTATION) or ""
    found = re.fullmatch(r"(\d+)x(\d+)", text)
    return None if found is None else (int(found[1]), int(found[2]))


def correct(cluster: Mapping[str, Any], workers: DataWorkers) -> Document | None:
    """The merge patch that makes an observed RayCluster what it should be; None if it is.

    What was rendered is put back; the wanted number of data workers is what was observed, and the
    spec's least at least. Those that are beyond its most stay for now: KubeRay takes at once, and
    whom it likes, what is beyond `maxReplicas`; `plan.scaling` has them drained before. The patch
    carries the observed resourceVersion, since it replaces the list of groups, in which somebody
    else may have written a number meanwhile.
    """
    there = cluster["spec"].get("workerGroupSpecs") or []
    spec = _thaw(cluster) or {"workerGroupSpecs": there}
    observed = {group["groupName"]: group for group in there}
    groups = []
    for rendered in spec["workerGroupSpecs"]:
        seen = observed.get(rendered["groupName"], rendered)
        is_sized = rendered["groupName"] == DATA_WORKERS
        group = _size(rendered, seen, workers) if is_sized else rendered
        groups.append(_keep_additions(group, seen))
    wanted = {**spec, "workerGroupSpecs": groups}
    if head := spec.get("headGroupSpec"):
        wanted["headGroupSpec"] = _keep_additions(head, cluster["spec"].get("headGroupSpec") or {})
    if _holds(cluster["spec"], wanted):
        return None
    version = cluster["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version}, "spec": wanted}


def _keep_additions(group: Document, seen: Mapping[str, Any]) -> Document:
    """A group with what a queue put into its template beside ours: nodes and tolerations."""
    template = seen.get("template")
    return {**group, "template": template} if _holds(template, group.get("template")) else group


def _size(group: Document, observed: Mapping[str, Any], workers: DataWorkers) -> Document:
    lowest, highest = workers.min_replicas, workers.max_replicas
    wanted = observed.get("replicas", lowest)
    made = min(wanted, observed.get("maxReplicas", highest))  # as KubeRay takes them
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


def _thaw(cluster: Mapping[str, Any]) -> Document | None:
    rendered = (cluster["metadata"].get("annotations") or {}).get(RENDERED_ANNOTATION)
    try:
        spec = json.loads(zlib.decompress(base64.b64decode(rendered))) if rendered else None
    except (ValueError, zlib.error):  # edited by hand
        return None
    return spec if isinstance(spec, dict) else None


def _holds(observed: Any, wanted: Any) -> bool:
    """Whether what was wanted is there; the API server's defaults may be there too."""
    if not wanted and isinstance(wanted, Mapping | list):
        return not observed  # the API server leaves empty ones out
    if isinstance(wanted, Mapping):
        return isinstance(observed, Mapping) and all(
            _holds_each(observed.get(key), value)
            if key == "tolerations"
            else _holds(observed.get(key), value)
            for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(observed, list)
            and len(observed) == len(wanted)
            and all(_holds(*pair) for pair in zip(observed, wanted, strict=True))
        )
    return bool(observed == wanted)


def _holds_each(observed: Any, wanted: Any) -> bool:
    """Of what a queue may add to: whether each is there, in whatever order."""
    if not isinstance(wanted, list) or not isinstance(observed, list):
        return _holds(observed, wanted)
    return all(any(_holds(there, one) for there in observed) for one in wanted)


def is_as_built(observed: Mapping[str, Any] | None, built: Mapping[str, Any]) -> bool:
    """Whether a child is there and still says what it was built to say.

    Of its metadata that is the labels, by which it is watched; others may have added some.
    """
    rest = {key: value for key, value in built.items() if key != "metadata"}
    labels = built["metadata"]["labels"]
    return (
        observed is not None
        and _holds(observed, rest)
        and _holds(observed["metadata"].get("labels", {}), labels)
    )
