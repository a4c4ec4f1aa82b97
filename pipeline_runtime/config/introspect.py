"""Inspects the models: the model at a path, its fields, and their types.

`wording` asks it for hints, `validation` for the rules that an error elsewhere would hide, and the
reference in docs/ is written from it.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pipeline_runtime.config.base import SpecModel
from pipeline_runtime.config.texts.yaml_documents import Path


def find_model(annotation: Any) -> type[SpecModel] | None:
    """The model inside an annotation (`X | None`, `tuple[X, ...]`, `Annotated[X, …]`), if any."""
    if isinstance(annotation, type) and issubclass(annotation, SpecModel):
        return annotation
    if get_origin(annotation) in (Annotated, Union, types.UnionType, tuple):
        return next(filter(None, map(find_model, get_args(annotation))), None)
    return None


def find_members(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union, without None; the type itself if it is no union."""
    if get_origin(annotation) is Annotated:
        return find_members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(m for member in get_args(annotation) for m in find_members(member))
    return () if annotation is types.NoneType else (annotation,)


def annotation_below(annotation: Any, part: str | int) -> Any:
    """Return the annotation of a field, an item or a key's value; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, SpecModel):
        name = field_names(annotation).get(str(part))
        return annotation.model_fields[name].annotation if name else None
    if get_origin(annotation) in (tuple, dict):
        return get_args(annotation)[0 if get_origin(annotation) is tuple else 1]
    return None


def is_list(annotation: Any) -> bool:
    """Return whether a field holds a list, or nothing."""
    if get_origin(annotation) in (Annotated, Union, types.UnionType):
        return any(map(is_list, get_args(annotation)))
    return get_origin(annotation) is tuple


def takes_text(annotation: Any) -> bool:
    """Return whether a field holds a text of any content, alone or as one of several types."""
    return _takes(annotation, str)


def takes_integer(annotation: Any) -> bool:
    """Return whether a field holds an integer, alone or as one of several types."""
    return _takes(annotation, int)


def takes_boolean(annotation: Any) -> bool:
    """Return whether a field holds a boolean, alone or as one of several types."""
    return _takes(annotation, bool)


def _takes(annotation: Any, kind: type) -> bool:
    if get_origin(annotation) in (Annotated, Union, types.UnionType):
        return any(_takes(member, kind) for member in get_args(annotation))
    return annotation is kind


def find_constants(annotation: Any) -> tuple[str, ...]:
    """Return the constants that a field allows (`Literal["Row", "None"]`); () if it has none."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if get_origin(annotation) in (Annotated, Union, types.UnionType):
        return next(filter(None, map(find_constants, get_args(annotation))), ())
    return ()


@cache
def field_names(model: type[SpecModel]) -> Mapping[str, str]:
    """Map field names as a manifest writes them to Python's."""
    return {field.alias or name: name for name, field in model.model_fields.items()}


def model_at(root: type[SpecModel], path: Path) -> type[SpecModel] | None:
    """The model that a mapping at `path` is read into, None if it is free-form or not there."""
    model: type[SpecModel] | None = root
    for part in path:
        if isinstance(part, int):
            continue
        name = field_names(model).get(part) if model else None
        model = find_model(model.model_fields[name].annotation) if model and name else None
    return model


def annotation_at(root: type[SpecModel], path: Path) -> Any:
    """The annotation of the field at `path`, None if there is no such field."""
    *above, last = path or ("",)
    model = model_at(root, tuple(above))
    name = field_names(model).get(str(last)) if model else None
    return model.model_fields[name].annotation if model and name else None


def walk_fields(model: type[SpecModel], path: Path = ()) -> Iterator[tuple[Path, type[SpecModel]]]:
    """Yield (path, owner) of every field below `model`, lists written as index 0."""
    for alias, name in field_names(model).items():
        yield (*path, alias), model
        annotation = model.model_fields[name].annotation
        if below := find_model(annotation):
            index: Path = (0,) if "tuple" in str(annotation) else ()
            yield from walk_fields(below, (*path, alias, *index))
