"""The free-form fields of a spec, which may hold any JSON, and the bound on their size.

These are `training.config`, the pod templates, and each mapping that a step or a source declares,
such as `map.options`. No schema describes them, so neither the API server nor a model bounds their
content: a megabyte of empty lists costs seconds of CPU wherever it is validated, hashed or
compared. `validation` checks their size before it validates.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import get_origin

from pydantic import JsonValue

from pipeline_runtime.config.base import SpecModel
from pipeline_runtime.config.cluster import PodGroup
from pipeline_runtime.config.dataset import Dataset
from pipeline_runtime.config.experiment import ExperimentSpec
from pipeline_runtime.config.introspect import field_names, find_members, find_model, is_list
from pipeline_runtime.config.step_registry import load_models
from pipeline_runtime.config.texts.yaml_documents import Path

# All free-form fields of a spec together, as JSON without spaces. Kubernetes allows 1.5 MiB in an
# object and 256 KiB in its annotations, which hold the input that a RayCluster was rendered from.
MAX_FREE_BYTES = 65_536


def find_free_fields(document: JsonValue) -> Iterator[tuple[Path, JsonValue]]:
    """Yield the path and value of each free-form field that a document of any shape sets."""
    places: list[Path] = [("spec", "training", "config")]
    steps = _get(document, ("spec", "pipeline"))
    num_steps = len(steps) if isinstance(steps, list) else 0
    places += [("spec", "dataset", *field) for field in _find_dataset_fields()]
    places += [
        ("spec", "pipeline", index, *field)
        for index in range(num_steps)
        for field in _find_step_fields()
    ]
    places += [(*path, "template") for path in _find_pods(document)]
    for path in places:
        if value := _get(document, path):
            yield path, value


def _find_pods(document: JsonValue) -> Iterator[Path]:
    """Yield the path of each section that describes pods; a field may hold a list of them."""
    for field, has_many in _find_pod_fields():
        sections = _get(document, ("spec", field))
        if not has_many:
            yield "spec", field
        elif isinstance(sections, list):
            yield from (("spec", field, index) for index in range(len(sections)))


@cache
def _find_pod_fields() -> tuple[tuple[str, bool], ...]:
    """Return the fields of a spec that describe pods, and whether each holds a list."""
    annotations = {
        field: ExperimentSpec.model_fields[name].annotation
        for field, name in field_names(ExperimentSpec).items()
    }
    return tuple(
        (field, is_list(annotation))
        for field, annotation in annotations.items()
        if issubclass(find_model(annotation) or SpecModel, PodGroup)
    )


@cache
def _find_dataset_fields() -> tuple[Path, ...]:
    return tuple(find_mappings(Dataset))


@cache
def _find_step_fields() -> tuple[Path, ...]:
    """Return the path of each free-form field of a step, from the step's kind on."""
    models = load_models().values()
    return tuple((model.kind(), *path) for model in models for path in find_mappings(model))


def find_mappings(model: type[SpecModel]) -> Iterator[Path]:
    """Yield the path of each field, at any depth outside of lists, that holds a mapping."""
    for alias, name in field_names(model).items():
        annotation = model.model_fields[name].annotation
        if any(get_origin(member) is dict for member in find_members(annotation)):
            yield (alias,)
        elif (below := find_model(annotation)) and not is_list(annotation):
            yield from ((alias, *path) for path in find_mappings(below))


def check_size(document: JsonValue) -> tuple[Path, str] | None:
    """Return the largest field's path and the broken rule if the fields are too large together.

    Raises:
        RecursionError: a field is nested too deep to be written as JSON.
    """
    sizes = {path: _count_bytes(value) for path, value in find_free_fields(document)}
    total = sum(sizes.values())
    if total <= MAX_FREE_BYTES:
        return None
    largest = max(sizes, key=lambda path: sizes[path])
    others = f"; all free-form fields have {total:,}" if len(sizes) > 1 else ""
    return largest, (
        f"must have at most {MAX_FREE_BYTES:,} bytes as JSON, together with the other free-form "
        f"fields (training.config, map.options, template), got {sizes[largest]:,}{others}; "
        "shorten it, or read it from a file in code.workingDir"
    )


def is_too_large(document: JsonValue) -> bool:
    """Return whether the free-form fields of a document are too large together."""
    try:
        return check_size(document) is not None
    except RecursionError:  # nested too deep, which is another rule
        return False


def has_same_free_fields(document: JsonValue, other: JsonValue) -> bool:
    """Return whether two documents have the same values in their free-form fields, in order."""
    try:
        return _write(document) == _write(other)
    except RecursionError:
        return False


def _write(document: JsonValue) -> list[str]:
    return [json.dumps(value, sort_keys=True) for _, value in find_free_fields(document)]


def _count_bytes(value: JsonValue) -> int:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return len(text.encode("utf-8", "surrogatepass"))


def _get(value: JsonValue, path: Path) -> JsonValue:
    """Return the value at a path; None if there is none."""
    for part in path:
        if isinstance(value, dict) and isinstance(part, str):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int):
            value = value[part]
        else:
            return None
    return value
