"""Translates run configs of version 1 into the words of today's manifests.

Checkpoints that were written before the API had its present words carry such a config.
`run_hash.upgrade_config` calls this before it parses a config. A config comes from a store, so it
may be any JSON: parts that have another shape are returned as they are, for the parser to refuse.
Iceberg tables need no translation: no run of version 1 could read one, so no checkpoint names one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline_runtime.config.decimals import format_decimal

Constants = Mapping[str, Mapping[str, str]]

# By field, the constants that have new names.
_TRAINING_CONSTANTS: Constants = {"lastBatch": {"pad": "Pad", "drop": "Drop"}}
_SHUFFLE_CONSTANTS: Constants = {"unit": {"none": "None", "row": "Row", "request": "Request"}}
_STEP_CONSTANTS: Mapping[str, Constants] = {
    "join": {"how": {"inner": "Inner", "left": "Left"}},
    "truncate": {"keep": {"head": "Head", "tail": "Tail"}},
    "map": {"format": {"arrow": "Arrow", "numpy": "Numpy", "torch": "Torch"}},
}
# By kind of step, the mapping that is a list of objects now, and the field for its values.
_NAMED_LISTS: Mapping[str, tuple[str, str]] = {
    "derive": ("columns", "expression"),
    "rename": ("columns", "newName"),
    "cast": ("columns", "type"),
    "fillNull": ("columns", "value"),
    "map": ("outputColumns", "type"),
}


def translate(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run config of version 1 in today's words."""
    translated = dict(config)
    if isinstance(steps := config.get("pipeline"), list):
        translated["pipeline"] = [_translate_step(step) for step in steps]
    if isinstance(training := config.get("training"), dict):
        translated["training"] = _translate_training(training)
    return translated


def _translate_step(step: Any) -> Any:
    if not isinstance(step, dict):
        return step
    return {kind: _translate_body(kind, body) for kind, body in step.items()}


def _translate_body(kind: str, body: Any) -> Any:
    if not isinstance(body, dict):
        return body
    translated = _rename_constants(body, _STEP_CONSTANTS.get(kind, {}))
    if kind in ("antiJoin", "join"):
        return _translate_keys(translated)
    field, value_name = _NAMED_LISTS.get(kind, ("", ""))
    if isinstance(columns := body.get(field), dict):
        translated[field] = [{"name": n, value_name: _number(v)} for n, v in columns.items()]
    if kind == "padSequence" and "value" in body:
        translated["value"] = _number(body["value"])
    return translated


def _number(value: Any) -> Any:
    """Return a number as a manifest has it now, and any other value as it is."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return format_decimal(value) if is_number else value


def _translate_keys(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a join with `keys` instead of `on`, or of `leftOn` and `rightOn`."""
    others = {n: value for n, value in body.items() if n not in ("on", "leftOn", "rightOn")}
    left, right = body.get("leftOn"), body.get("rightOn")
    if "on" in body:
        return others | {"keys": body["on"]}
    if isinstance(left, list) and isinstance(right, list):
        pairs = zip(left, right, strict=False)
        return others | {"keys": [{"left": one, "right": other} for one, other in pairs]}
    return body


def _translate_training(training: dict[str, Any]) -> dict[str, Any]:
    translated = _rename_constants(training, _TRAINING_CONSTANTS)
    if isinstance(shuffle := training.get("shuffle"), dict):
        translated["shuffle"] = _rename_constants(shuffle, _SHUFFLE_CONSTANTS)
    return translated


def _rename_constants(body: dict[str, Any], constants: Constants) -> dict[str, Any]:
    def rename(field: str, value: Any) -> Any:
        return constants.get(field, {}).get(value, value) if isinstance(value, str) else value

    return {field: rename(field, value) for field, value in body.items()}
