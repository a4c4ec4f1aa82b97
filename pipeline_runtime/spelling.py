"""Translates the options of the fluent API into the words of a manifest.

Python code follows the habits of PyTorch and pandas: `last_batch="drop"`, `feed="ray_data"`. A
manifest follows Kubernetes: `lastBatch: Drop`, `feed: RayData`. `pipeline` calls this before it
validates a document, which reports the names and values that neither spelling has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline_runtime.config.base import SpecModel
from pipeline_runtime.config.decimals import format_decimal
from pipeline_runtime.config.introspect import (
    field_names,
    find_constants,
    find_model,
    is_list,
    takes_text,
)
from pipeline_runtime.config.steps import DebugOptions, PipelineOptions


def to_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `pipelineOptions` of a manifest from options that may be switches of `debug`."""
    names = field_names(DebugOptions)
    switches = {n: on for n, on in options.items() if n in names or n in names.values()}
    others = {name: option for name, option in options.items() if name not in switches}
    debug = {"debug": {**(others.get("debug") or {}), **switches}} if switches else {}
    return to_manifest(PipelineOptions, others | debug)


def to_manifest(model: type[SpecModel], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a model as a manifest has them; options that are None are left out.

    A list of named objects may be given as a mapping: `columns={"x": "float32"}`. Numbers that a
    manifest has as texts may be given as numbers.

    Args:
        model: the model that reads them.
        options: values by field, each field in snake_case or camelCase.
    """
    names = field_names(model)
    aliases = {name: alias for alias, name in names.items()}
    document = {}
    for option, value in options.items():
        field = aliases.get(option, option)
        if value is not None:
            annotation = model.model_fields[names[field]].annotation if field in names else None
            document[field] = _translate(annotation, value)
    return document


def _list_items(model: type[SpecModel], value: Any) -> Any:
    """Return a mapping of names to values as the list of objects that a manifest has instead."""
    if not isinstance(value, Mapping):
        return value
    name_field, value_field = field_names(model)
    return [{name_field: name, value_field: item} for name, item in value.items()]


def _translate(annotation: Any, value: Any) -> Any:
    below = find_model(annotation)
    if below and is_list(annotation):
        value = _list_items(below, value)
        return [_translate(below, v) for v in value] if isinstance(value, list | tuple) else value
    if below and isinstance(value, Mapping):
        return to_manifest(below, value)
    if isinstance(value, int | float) and takes_text(annotation):
        # Booleans are integers in Python, and no number to write.
        return value if isinstance(value, bool) else format_decimal(value)
    if isinstance(value, str):
        constants = {constant.lower(): constant for constant in find_constants(annotation)}
        return constants.get(value.lower().replace("_", ""), value)
    return value
