"""The wording of every problem that validation finds.

`validation` passes pydantic's errors, and gets (path, message) pairs: what is wrong, what was
found, and what to do. Values that look like secrets are never shown.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, get_origin

from pydantic import JsonValue
from pydantic_core import ErrorDetails

from pipeline_runtime.config import base, cluster, dataset, experiment, experiment_status
from pipeline_runtime.config.decimals import format_decimal
from pipeline_runtime.config.experiment import DatasetExperiment
from pipeline_runtime.config.introspect import (
    annotation_at,
    annotation_below,
    field_names,
    find_members,
    find_model,
    is_list,
    model_at,
    walk_fields,
)
from pipeline_runtime.config.texts.credentials import hide_credentials, is_secret_env
from pipeline_runtime.config.texts.yaml_documents import Path, format_path

MAX_GOT_CHARS = 60
# Enough for one reading; a document of 1 MiB can break a hundred thousand rules.
MAX_PROBLEMS = 50
UNKNOWN = "unknown field"
UNKNOWN_TYPE = "extra_forbidden"  # pydantic's name of it

Found = tuple[Path, str]

_PATTERN_WORDS = {
    base.IMPORT_PATH_PATTERN: (
        "must name a function as package.module:function",
        "put a colon between module and function",
    ),
    base.SCRIPT_PATTERN: (
        "must be the path of a Python file",
        "write it like train.py; other arguments go in args",
    ),
    dataset.SNAPSHOT_PATTERN: ("must be a positive number of at most 19 digits", "correct it"),
    dataset.ICEBERG_TABLE_PATTERN: ("must name a table as namespace.table", "add the namespace"),
    experiment.NAME_PATTERN: (
        "must be lower-case letters, digits and '-', begin with a letter, not end with '-'",
        "rename it",
    ),
    base.LABEL_PATTERN: (
        "must be lower-case letters, digits and '-', begin and end with a letter or digit",
        "choose another name",
    ),
    experiment_status.DECIMAL_PATTERN: (
        "must be a decimal number as a text",
        "write it like '0.25'",
    ),
    cluster.OBJECT_NAME_PATTERN: (
        "must be a Kubernetes name of lower-case letters, digits, '-' and '.'",
        "name an existing object",
    ),
    cluster.ENV_NAME_PATTERN: (
        "must be a variable's name of letters, digits, '_', '-' and '.', not begin with a digit",
        "rename it",
    ),
    cluster.DATA_KEY_PATTERN: (
        "must be a key of letters, digits, '_', '-' and '.'",
        "name a key of the object",
    ),
    cluster.IMAGE_PATTERN: (
        "must be an image such as registry/name:tag, without spaces",
        "remove the spaces",
    ),
}


def explain_errors(errors: Iterable[ErrorDetails], document: JsonValue) -> list[Found]:
    """Word pydantic's errors: one (path, message) for every broken rule, unions as one."""
    found: list[Found] = []
    expected: dict[Path, list[str]] = {}
    for error in errors:
        path, is_key = locate_error(error)
        kind = error["type"]
        if kind == "rules":
            found += _flatten_rules(error, path, document)
        elif kind == "too_short" and value_at(document, path):
            continue  # pydantic does not count the items that are wrong, which it reports
        elif kind in _TYPE_WORDS and not is_key:
            expected.setdefault(path, []).append(_TYPE_WORDS[kind])
        else:
            found.append(_explain_one(error, path, is_key))
    for path, words in expected.items():
        found.append((path, _explain_type(words, path, value_at(document, path))))
    return found


def _explain_one(error: ErrorDetails, path: Path, is_key: bool) -> Found:
    explain = _EXPLAIN.get(error["type"], _explain_unforeseen)
    message = explain(error, path)
    return (path[:-1], f"key {show(error['input'])} {message}") if is_key else (path, message)


def _flatten_rules(error: ErrorDetails, path: Path, document: JsonValue) -> Iterator[Found]:
    for field, message in error["ctx"]["broken"][: MAX_PROBLEMS + 1]:
        yield resolve_path(document, path, field), message


def resolve_path(document: JsonValue, path: Path, field: str) -> Path:
    """`path` and the dotted `field` below it; keys that hold dots themselves are recognised."""
    value = value_at(document, path)
    while field := field.removeprefix("."):
        if field.startswith("["):
            digits, _, field = field[1:].partition("]")
            part: str | int = int(digits)
        else:
            part = _first_key(value, field)
            field = field[len(part) :]
        path = (*path, part)
        value = _child(value, part)
    return path


def _first_key(value: JsonValue, field: str) -> str:
    keys = value if isinstance(value, dict) else {}
    fitting = [key for key in keys if field == key or field.startswith((f"{key}.", f"{key}["))]
    shortest = min((field.find(char) for char in ".[" if char in field), default=len(field))
    return max(fitting, key=len, default=field[:shortest])


def value_at(document: JsonValue, path: Path) -> JsonValue:
    """The value at a path, None if there is none."""
    for part in path:
        document = _child(document, part)
    return document


def _child(value: JsonValue, part: str | int) -> JsonValue:
    if isinstance(value, dict) and isinstance(part, str):
        return value.get(part)
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return value[part]
    return None


def locate_error(
    error: ErrorDetails, root: type[base.SpecModel] = DatasetExperiment
) -> tuple[Path, bool]:
    """Return the path of an error in a document of the root, and whether it is about a key.

    Pydantic's location also has names of members of unions, and "[key]" behind a key. A document
    may have each of these words as a key, so the models decide.
    """
    path: Path = ()
    annotation: Any = root
    is_below_mapping = False
    for part in error["loc"]:
        if part == "[key]" and is_below_mapping:
            return path, True
        members = find_members(annotation)
        if len(members) > 1:
            annotation, is_below_mapping = find_model(annotation), False
            continue  # the name of a member
        plain = members[0] if members else None
        annotation, is_below_mapping = annotation_below(plain, part), get_origin(plain) is dict
        path = (*path, part)
    return path, False


def show(value: Any, path: Path = ()) -> str:
    """Format a given value, shortened, as a person wrote it; never show a secret."""
    if isinstance(value, dict):
        return f"a mapping of {len(value)}" if value else "an empty mapping"
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    if value is None or isinstance(value, bool):
        return {None: "nothing (null)", True: "true", False: "false"}[value]
    if isinstance(value, str) and _is_secret_path(path):
        return "a value that is not shown"
    text = hide_credentials(value) if isinstance(value, str) else value
    shown = repr(text)
    return shown if len(shown) <= MAX_GOT_CHARS else shown[: MAX_GOT_CHARS - 1] + "…"


def _is_secret_path(path: Path) -> bool:
    names = [part for part in path if isinstance(part, str)]
    if not names:
        return False
    return ("env" in names and names[-1] == "value") or is_secret_env(names[-1])


_TYPE_WORDS = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",  # in training.config of the built-in model
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def _explain_type(expected: list[str], path: Path, value: JsonValue) -> str:
    kinds = list(dict.fromkeys(expected))
    words = " or ".join(filter(None, (", ".join(kinds[:-1]), kinds[-1])))
    hint = _mapping_hint(path, value) or _type_hint(kinds, path, value)
    return f"must be {words}, got {show(value, path)}{_kind(value)}; {hint}"


def _mapping_hint(path: Path, value: JsonValue) -> str | None:
    """Return what to write for a mapping where the field is a list of named objects or a name."""
    if path[-2:] == ("iceberg", "catalog") and isinstance(value, dict):
        return "write the name of an item of spec.catalogs"
    annotation = annotation_at(DatasetExperiment, path)
    model = find_model(annotation)
    if not (isinstance(value, dict) and model and is_list(annotation)):
        return None
    if not any(field.is_required() for field in model.model_fields.values()):
        return "put '- ' before each item"
    example = ", ".join(f"{field}: …" for field in field_names(model))
    return f"write each entry as '- {{{example}}}'"


def _kind(value: JsonValue) -> str:
    if isinstance(value, bool):
        return " (a boolean)"
    if isinstance(value, int):
        return " (an integer)"
    if isinstance(value, float):
        return " (a number)"
    return " (a string)" if isinstance(value, str) else ""


def _type_hint(expected: list[str], path: Path, value: JsonValue) -> str:
    if value is None:
        is_item = isinstance(path[-1], int)
        return "remove the item" if is_item else "give one or leave the field out"
    if isinstance(value, str):
        return _text_hint(expected, value)
    if expected == ["a string"] and not isinstance(value, dict | list):
        return "quote it"
    if isinstance(value, float) and {"an integer", "a string"} <= set(expected):
        written = format_decimal(value)
        return f"write {written}" if isinstance(written, int) else f"quote it: {written!r}"
    if isinstance(value, float) and expected == ["an integer"]:
        return f"write {round(value)}" if value.is_integer() else "round it"
    if "a mapping" in expected and isinstance(value, list):
        return "remove the '- ' before its fields"
    return f"write {expected[0]}"


# Texts that YAML 1.1 reads as booleans, and people write.
_BOOLEANS = {"yes": "true", "on": "true", "no": "false", "off": "false"}


def _text_hint(expected: list[str], text: str) -> str:
    if "a list" in expected:
        return "write it as [item, …] or with '- ' before each item"
    if "a mapping" in expected:
        return "write its fields below it, indented"
    plain = text.strip().lower()
    if "true or false" in expected:
        if plain in ("true", "false"):
            return f"write {plain} without quotes"
        return f"write {_BOOLEANS.get(plain, 'true or false')}"
    return "remove the quotes" if plain.lstrip("+-").isdigit() else f"write {expected[0]}"


def _explain_missing(error: ErrorDetails, path: Path) -> str:
    return "missing; add it"


def _explain_unknown(error: ErrorDetails, path: Path) -> str:
    wrong = str(path[-1]) if path else ""
    model = model_at(DatasetExperiment, path[:-1])
    known = list(field_names(model)) if model else []
    if near := _find_synonym(wrong, known) or find_similar(wrong, known):
        return f"{UNKNOWN}; did you mean {near}?"
    if elsewhere := _find_elsewhere(wrong, path[:-1]):
        return f"{UNKNOWN}; did you mean {elsewhere}?"
    return f"{UNKNOWN}; the fields here are {', '.join(known)}"


def find_similar(wrong: str, known: Iterable[str]) -> str | None:
    """The known word that `wrong` was meant to be, if one is near: case and underscores aside."""
    plain = {_plain(word): word for word in known}
    near = difflib.get_close_matches(_plain(wrong), plain, n=1)
    return plain[near[0]] if near else None


# Words of pandas, Polars and SQL, plain, and how a manifest says the same: its field, an example.
_ONE_KEY = ("keys", "keys: [name]")
_KEY_PAIR = ("keys", "keys: [{left: name, right: name}]")
_SYNONYMS = {
    **dict.fromkeys(("on", "using"), _ONE_KEY),
    **dict.fromkeys(
        (f"{side}{word}" for side in ("left", "right") for word in ("on", "by", "keys")), _KEY_PAIR
    ),
}


def _find_synonym(wrong: str, known: Iterable[str]) -> str | None:
    """Return what a word of another tool is in a manifest, if the field is one of the known."""
    field, example = _SYNONYMS.get(_plain(wrong), ("", None))
    return example if field in known else None


def _plain(word: str) -> str:
    return word.lower().replace("_", "").replace("-", "")


def _find_elsewhere(wrong: str, above: Path) -> str | None:
    """Return the other place of a field in the spec, if there is exactly one."""
    places = [path for path in _find_places() if path[-1] == wrong and path[:-1] != above]
    return format_path(places[0]) if len(places) == 1 else None


@cache
def _find_places() -> tuple[Path, ...]:
    """Return the paths of all fields of the spec that are in no list."""
    paths = (path for path, _ in walk_fields(DatasetExperiment))
    return tuple(path for path in paths if path[0] == "spec" and 0 not in path)


def _explain_choice(error: ErrorDetails, path: Path) -> str:
    # Pydantic's own list of the values: 'a', 'b' or 'c'.
    expected = error["ctx"]["expected"].replace("' or '", "', '").strip("'").split("', '")
    got = error["input"]
    near = find_similar(got, expected) if isinstance(got, str) else None
    advice = f"did you mean {near}?" if near else "write one of these"
    return f"must be one of {', '.join(expected)}, got {show(got, path)}; {advice}"


def _explain_bound(sign: str, key: str, advice: str) -> Callable[[ErrorDetails, Path], str]:
    def explain(error: ErrorDetails, path: Path) -> str:
        return f"must be {sign} {error['ctx'][key]}, got {show(error['input'], path)}; {advice}"

    return explain


def _explain_too_long(error: ErrorDetails, path: Path) -> str:
    limit, got = error["ctx"]["max_length"], len(error["input"])
    return f"must have at most {limit:,} characters, got {got:,}; shorten it"


def _explain_empty(error: ErrorDetails, path: Path) -> str:
    return "must not be empty, got ''; write something or leave the field out"


def _explain_few(error: ErrorDetails, path: Path) -> str:
    return f"must have at least {error['ctx']['min_length']} item, got none; add one"


def _explain_many(error: ErrorDetails, path: Path) -> str:
    limit, got = error["ctx"]["max_length"], len(error["input"])
    return f"must have at most {limit:,} items, got {got:,}; remove some"


def _explain_pattern(error: ErrorDetails, path: Path) -> str:
    pattern = error["ctx"]["pattern"]
    rule, advice = _PATTERN_WORDS.get(pattern, (f"must match {pattern}", "correct it"))
    return f"{rule}, got {show(error['input'], path)}; {advice}"


def _explain_rule(error: ErrorDetails, path: Path) -> str:
    return str(error["ctx"]["message"])


def _explain_unforeseen(error: ErrorDetails, path: Path) -> str:
    return f"{error['msg']}, got {show(error['input'], path)}; correct it"


_EXPLAIN: dict[str, Callable[[ErrorDetails, Path], str]] = {
    "missing": _explain_missing,
    UNKNOWN_TYPE: _explain_unknown,
    "literal_error": _explain_choice,
    "greater_than_equal": _explain_bound("≥", "ge", "raise it"),
    "less_than_equal": _explain_bound("≤", "le", "lower it"),
    "string_too_long": _explain_too_long,
    "string_too_short": _explain_empty,
    "too_short": _explain_few,
    "too_long": _explain_many,
    "string_pattern_mismatch": _explain_pattern,
    "rule": _explain_rule,
}
