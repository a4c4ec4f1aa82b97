"""The shapes of objects that users can write, and the parts of an object that have its shape.

Whoever may edit a namespace may write anything into a RayCluster, a pod's labels, a ConfigMap or a
status. `kube` reads objects through these functions, so the rules of a pass meet known types alone:
a part of another type counts as absent, and an object that is not even named as foreign.

A shape is one of these:
    a type or a predicate     the value must be of it, or satisfy it
    {"name": shape}           a mapping; "name!" is required, "*" stands for every other field
    [shape]                   a list; items of another shape are dropped
Fields that a shape does not name are kept: `builders.drift` compares whole documents.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from dataset_operator.documents import Document, parse_time
from dataset_operator.groups import list_scaled
from pipeline_runtime.config import KIND, ExperimentStatus

Mappings = dict[str, Any]  # of shapes by the names of fields
Shape = type | Callable[[Any], bool] | Mappings | list[Any]
_ABSENT: Any = object()
_MAX_COUNT = 2**31 - 1  # Kubernetes' int32
# Arithmetic with times of other years fails: `datetime` ends at 9999.
_YEARS = range(1970, 9000)
_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def is_time(value: Any) -> bool:
    """Return whether a value is a time with its zone."""
    try:
        moment = parse_time(value) if isinstance(value, str) else None
    except ValueError:
        return False
    return moment is not None and moment.tzinfo is not None and moment.year in _YEARS


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX_COUNT


def _is_address(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(ipaddress.ip_address(value))
    except ValueError:
        return False


def _is_service(value: Any) -> bool:
    """Return whether a value can be a Service's name, which becomes a part of a URL."""
    return isinstance(value, str) and _DNS_LABEL.fullmatch(value) is not None


_METADATA: Mappings = {
    "name!": str,
    "namespace": str,
    "uid": str,
    "resourceVersion": str,
    "creationTimestamp": is_time,
    "deletionTimestamp": is_time,
    "labels": {"*": str},
    "annotations": {"*": str},
    "ownerReferences": [{"uid!": str}],
}
_CONDITION: Mappings = {
    "type!": str,
    "status!": str,
    "reason": str,
    "message": str,
    "lastTransitionTime": is_time,
}
_STATE: Shape = {"startedAt": is_time, "finishedAt": is_time, "reason": str, "message": str}
_CONTAINER: Shape = {
    "name": str,
    "restartCount": _is_count,
    "state": {"*": _STATE},
    "lastState": {"*": _STATE},
}
_BOUNDS: Shape = {"minReplicas": _is_count, "maxReplicas": _is_count}
# The parts of an experiment that `telemetry` reports, besides the status (`read_status`).
_EXPERIMENT: Shape = {
    "metadata!": {"name!": str},
    "spec": {kind.spec_field: [_BOUNDS] if kind.is_list else _BOUNDS for kind in list_scaled()},
}
_TEMPLATE: Shape = {"metadata": dict, "spec": dict}
_SHAPES: Mapping[str, Shape] = {
    KIND: _EXPERIMENT,
    "Pod": {
        "metadata!": {**_METADATA, "uid!": str},
        "spec": dict,
        "status": {
            "phase": str,
            "reason": str,
            "message": str,
            "podIP": _is_address,
            "conditions": [_CONDITION],
            "containerStatuses": [_CONTAINER],
            "initContainerStatuses": [_CONTAINER],
        },
    },
    "RayCluster": {
        "metadata!": {**_METADATA, "uid!": str, "resourceVersion!": str},
        "spec": {
            "headGroupSpec": {"template": _TEMPLATE},
            "workerGroupSpecs": [
                {
                    "groupName!": str,
                    "replicas": _is_count,
                    "minReplicas": _is_count,
                    "maxReplicas": _is_count,
                    "scaleStrategy": {"workersToDelete": [str]},
                    "template": _TEMPLATE,
                }
            ],
        },
        "status": {"conditions": [_CONDITION], "head": {"serviceName": _is_service}},
    },
    "Event": {
        "metadata!": {"uid!": str, "resourceVersion!": str, "creationTimestamp!": is_time},
        "involvedObject": {"kind": str, "name": str, "uid": str},
        "type": str,
        "reason": str,
        "message": str,
        "count": _is_count,
        "firstTimestamp": is_time,
        "lastTimestamp": is_time,
        "eventTime": is_time,
    },
    "ConfigMap": {"metadata!": _METADATA, "data": {"*": str}},
    "Secret": {"metadata!": _METADATA, "data": {"*": str}},
}
_ANY_OBJECT: Shape = {"metadata!": _METADATA}
# Fields of a status that a run needs; a status without one of them has no run.
_RUN_FIELDS = ("run", "run_hash", "start_time")
_TIMES = re.compile(r"(time|.*Time)")


def fit_object(kind: str, document: Any) -> Document | None:
    """Return an object with the parts that have their kind's shape; None if it has no metadata."""
    fitted = _fit(document, _SHAPES.get(kind, _ANY_OBJECT))
    if fitted is _ABSENT:
        return None
    parts: Document = {"spec": {}} if kind == "RayCluster" else {}
    return {**parts, **fitted, "kind": kind}


def parse_status(status: Any) -> ExperimentStatus:
    """Parse the status of an experiment for a pass: a run without a necessary field is none."""
    parsed = read_status(status)
    absent = [name for name in _RUN_FIELDS if getattr(parsed, name) is None]
    if not absent or (len(absent) == len(_RUN_FIELDS) and parsed.submission is None):
        return parsed
    return parsed.change(**dict.fromkeys((*_RUN_FIELDS, "submission")))


def read_status(status: Any) -> ExperimentStatus:
    """Parse the status of an experiment: those of its fields that have their shape."""
    if not isinstance(status, Mapping):
        return ExperimentStatus()
    known = {n: value for n, value in status.items() if value is not None and _has_times(value, n)}
    while known:
        try:
            return _validate(known)
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            wrong = {place["loc"][0] for place in found if place["loc"]} or set(known)
            known = {name: value for name, value in known.items() if name not in wrong}
    return ExperimentStatus()


def _validate(status: Mapping[str, Any]) -> ExperimentStatus:
    return ExperimentStatus.model_validate_json(json.dumps(status), by_alias=True, by_name=False)


def _has_times(value: Any, name: str) -> bool:
    """Return whether every field in a part of a status whose name means a time is a time."""
    if isinstance(value, Mapping):
        return all(_has_times(below, key) for key, below in value.items())
    if isinstance(value, list):
        return all(_has_times(item, "") for item in value)
    return not _TIMES.fullmatch(name) or is_time(value)


def _fit(value: Any, shape: Shape) -> Any:
    """Return the part of a value that has a shape; _ABSENT if there is none."""
    if isinstance(shape, dict):
        return _fit_mapping(value, shape) if isinstance(value, Mapping) else _ABSENT
    if isinstance(shape, list):
        fitted = [_fit(item, shape[0]) for item in value] if isinstance(value, list) else _ABSENT
        return fitted if fitted is _ABSENT else [item for item in fitted if item is not _ABSENT]
    is_right = isinstance(value, shape) if isinstance(shape, type) else shape(value)
    return value if is_right else _ABSENT


def _fit_mapping(value: Mapping[str, Any], shape: dict[str, Any]) -> Any:
    shapes = {name.removesuffix("!"): below for name, below in shape.items()}
    others = shapes.pop("*", None)
    fitted = {}
    for name, part in value.items():
        below = shapes.get(name, others)
        kept = part if below is None else _fit(part, below)
        if kept is not _ABSENT:
            fitted[name] = kept
    is_whole = all(name[:-1] in fitted for name in shape if name.endswith("!"))
    return fitted if is_whole else _ABSENT
