"""`--set path=value`: single fields of a manifest changed from the command line."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Sequence

from pydantic import JsonValue

from pipeline_runtime.config.experiment import DatasetExperiment
from pipeline_runtime.config.introspect import (
    annotation_at,
    field_names,
    find_constants,
    find_model,
    is_list,
    model_at,
    takes_boolean,
    takes_integer,
    takes_text,
)
from pipeline_runtime.config.reading.wording import find_similar, show, value_at
from pipeline_runtime.config.texts.yaml_documents import Path, format_path, read_value
from pipeline_runtime.errors import ManifestError, Problem

# field, [2], [name of an item], or ["a key with dots"]
_PART = re.compile(
    r'\.?(?P<field>[^.\[\]="\s]+)'
    r"|\[(?P<index>\d{1,6})\]"
    r'|\[(?P<name>[^"\[\]]+)\]'
    r'|\["(?P<key>[^"]*)"\]'
)
_ROOTS = frozenset({"apiVersion", "kind", "metadata", "spec", "status"})
OVERRIDE_FILE = "--set"


class _Bracketed(str):
    """A part of a path in brackets: a key of a mapping, or the name of an item of a list."""

    __slots__ = ()


def apply_overrides(document: JsonValue, overrides: Sequence[str]) -> JsonValue:
    """A copy of the document with fields replaced.

    Args:
        document: a manifest as JSON values.
        overrides: `path=value` each, in order. `spec.` may be left out. `pipeline[2].filter.where`
            and, by the item's name, `pipeline[thin].downsample.seed` reach into lists. The value is
            a scalar as YAML reads it, or JSON, but a number is a text where the field takes one. An
            empty value or null removes the field.

    Raises:
        ManifestError: with every override that cannot be applied.
    """
    changed = copy.deepcopy(document)
    problems = []
    for override in overrides:
        try:
            path, value = parse_override(override)
            _assign(changed, _find_items(changed, path), value)
        except ValueError as error:
            problems.append(Problem(path=override.partition("=")[0], message=str(error)))
    if problems:
        raise ManifestError(
            [Problem(path=p.path, message=p.message, file=OVERRIDE_FILE) for p in problems]
        )
    return changed


def complete_override(text: str) -> list[str]:
    """Return what a shell may complete the beginning of an override to: fields, or constants."""
    if "=" in text:
        return _complete_value(text)
    above, dot, begun = text.rpartition(".")
    try:
        path = parse_override(f"{above}=")[0] if above else ("spec",)
    except ValueError:
        return []
    model = model_at(DatasetExperiment, _index(path))
    found = []
    for alias, name in (field_names(model) if model else {}).items():
        annotation = model.model_fields[name].annotation if model else None
        end = "=" if find_model(annotation) is None else "[" if is_list(annotation) else "."
        found += [f"{above}{dot}{alias}{end}"] if alias.startswith(begun) else []
    # A shell puts a space after a single word, so go on to the fields or constants below it.
    return (len(found) == 1 and found != [text] and complete_override(found[0])) or found


def _complete_value(text: str) -> list[str]:
    before, _, begun = text.partition("=")
    try:
        path = parse_override(f"{before}=")[0]
    except ValueError:
        return []
    annotation = annotation_at(DatasetExperiment, _index(path))
    values = ("true", "false") if takes_boolean(annotation) else find_constants(annotation)
    return [f"{before}={value}" for value in values if value.startswith(begun)]


def _index(path: Path) -> Path:
    """Return a path with items of lists as indexes, whatever their names are."""
    return tuple(0 if isinstance(part, _Bracketed) else part for part in path)


def parse_override(override: str) -> tuple[Path, JsonValue]:
    """Parse the path and the value of `path=value`.

    Raises:
        ValueError: there is no '=', or the path or the value cannot be read.
    """
    text, equals, value = _split(override)
    if not equals:
        raise ValueError(f"must be path=value, got {show(override)}; add '=' and a value")
    path: list[str | int] = []
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        if not match or (text[position] == ".") != (position > 0 and match["field"] is not None):
            raise ValueError(
                f"must be a path such as training.batchSize or pipeline[2].filter.where, got "
                f"{show(text)}; correct it at character {position + 1}"
            )
        path.append(_parse_part(match))
        position = match.end()
    if not path or not isinstance(path[0], str):
        raise ValueError("must be path=value, got no field's name before '='; add one")
    whole = tuple(path) if path[0] in _ROOTS else ("spec", *path)
    return whole, _read(whole, value.strip())


def _read(path: Path, text: str) -> JsonValue:
    """Return the value of a text at a path. A number stays a text where the field is a text.

    A shell takes the quotes away that the field would need in a file.
    """
    value = read_value(text)
    annotation = annotation_at(DatasetExperiment, _index(path))
    is_text = takes_text(annotation) and not (isinstance(value, int) and takes_integer(annotation))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return text if is_number and is_text else value


def _parse_part(match: re.Match[str]) -> str | int:
    if match["index"]:
        return int(match["index"])
    return match["field"] or _Bracketed(match["name"] or match["key"] or "")


def _find_items(document: JsonValue, path: Path) -> Path:
    """Return the path with the names of lists' items as their indexes."""
    found: Path = ()
    for part in path:
        above = value_at(document, found)
        if isinstance(part, _Bracketed) and isinstance(above, list):
            part = _find_item(above, part, format_path(found))
        found = (*found, part)
    return found


def _find_item(items: list[JsonValue], name: str, at: str) -> int:
    names = [item.get("name") if isinstance(item, dict) else None for item in items]
    if name in names:
        return names.index(name)
    known = [known for known in names if isinstance(known, str)]
    near = find_similar(name, known)
    advice = f"did you mean {near}?" if near else f"the names are {', '.join(known) or 'none'}"
    raise ValueError(f"must name an item that is there, but {at} has none of {name!r}; {advice}")


def _split(override: str) -> tuple[str, str, str]:
    """Cut at the first '=' that is not inside a quoted key."""
    match = re.match(r'((?:[^="]|"[^"]*")*)(=)(.*)', override, re.DOTALL)
    return (match[1].strip(), match[2], match[3]) if match else (override, "", "")


def _assign(document: JsonValue, path: Path, value: JsonValue) -> None:
    target = document
    for position, part in enumerate(path):
        at, rest = format_path(path[:position]), path[position + 1 :]
        if isinstance(part, int):
            target = _assign_item(target, part, at, rest, value)
        else:
            target = _assign_field(target, part, at, rest, value)


def _assign_item(target: JsonValue, index: int, at: str, rest: Path, value: JsonValue) -> JsonValue:
    if not isinstance(target, list):
        raise ValueError(f"must index a list, but {at} is {show(target)}; leave [{index}] out")
    if index >= len(target):
        raise ValueError(
            f"must index an item that is there: {at} has {len(target)}, got [{index}]; "
            "count from 0, or set the whole list"
        )
    if not rest:
        target[index] = value
    return target[index]


def _assign_field(target: JsonValue, name: str, at: str, rest: Path, value: JsonValue) -> JsonValue:
    if isinstance(target, list):
        raise ValueError(f"must say which item: {at} is a list; write {at}[0].{name}")
    if not isinstance(target, dict):
        raise ValueError(f"must reach into mappings, but {at} is {show(target)}; set {at} itself")
    if rest:
        if target.get(name) is None and isinstance(rest[0], str):
            target[name] = {}
    elif value is None:
        target.pop(name, None)
    else:
        target[name] = value
    return target.get(name)


def overridden_paths(document: JsonValue, overrides: Iterable[str]) -> list[Path]:
    """Return the paths in a document that overrides touched; unreadable ones are left out."""
    paths = []
    for override in overrides:
        try:
            paths.append(_find_items(document, parse_override(override)[0]))
        except ValueError:
            continue
    return paths
