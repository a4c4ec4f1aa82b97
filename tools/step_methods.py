"""Writes the methods of the fluent API that add a step, each with a typed signature.

`tools.steps` writes the module that comes out. A model with a `from_python` of its own fixes the
signature; otherwise it follows from the fields:

- a required list of columns is `*columns`;
- a required list of objects with a name and a value is a mapping, or keywords;
- other required fields are positional, and all optional fields are keywords.
"""

import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Any, get_origin

from pydantic.alias_generators import to_snake
from pydantic.fields import FieldInfo

from pipeline_runtime.config import SpecModel
from pipeline_runtime.config.introspect import (
    find_constants,
    find_model,
    is_list,
    takes_integer,
    takes_text,
)
from pipeline_runtime.config.step_model import StepModel
from pipeline_runtime.config.step_registry import load_models
from tools.crd import LINE_CHARS, find_description, find_summary, list_members

_HEADER = '''\
"""The methods of the fluent API that add a step. Written by `make steps` from the steps' models.

`pipeline.Pipeline` inherits them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

from pipeline_runtime.config.step_model import Keys, Names, Side, to_list
'''
_CLASS = '''

class StepMethods:
    """A method for each kind of step."""

    __slots__ = ()

    def _with(self, kind: str, **fields: Any) -> Self:
        """Return the pipeline with one more step. Fields that are None are left out."""
        raise NotImplementedError
'''
_MORE = "more"
_STARS: Mapping[int, str] = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}
_INDENT = "    "


def render_methods() -> str:
    """Return the module with a method for each step, formatted."""
    models = load_models().values()
    imports = [f"from {m.__module__} import {m.__name__}\n" for m in models if _has_own_call(m)]
    text = "".join([_HEADER, *imports, _CLASS, *map(_render_method, models)])
    command = [sys.executable, "-m", "ruff", "format", "--line-length", str(LINE_CHARS), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def _has_own_call(model: type[StepModel]) -> bool:
    own = next(base for base in model.__mro__ if "from_python" in vars(base))
    return own is not StepModel


def _render_method(model: type[StepModel]) -> str:
    if _has_own_call(model):
        parameters = list(inspect.signature(model.from_python).parameters.values())
        fields = f"**{model.__name__}.from_python({', '.join(map(_hand_on, parameters))})"
        _, _, arguments = (inspect.getdoc(model.from_python) or "").partition("\n\n")
    else:
        parameters = list(_derive_parameters(model))
        fields = ", ".join(_derive_field(model, name) for name in model.model_fields)
        arguments = _describe_parameters(model, parameters)
    summary = textwrap.fill(f'"""{find_summary(model)}', LINE_CHARS - 8)
    docstring = f'{summary}\n\n{arguments}\n"""'
    body = f'{docstring}\nreturn self._with("{model.folder()}", {fields})\n'
    head = f"def {model.folder()}({_render_parameters(parameters)}) -> Self:\n"
    return "\n" + textwrap.indent(head + textwrap.indent(body, _INDENT), _INDENT)


def _hand_on(parameter: Parameter) -> str:
    """Return the argument that hands a parameter on."""
    match parameter.kind:
        case Parameter.VAR_KEYWORD:
            return f"**{parameter.name}"
        case Parameter.KEYWORD_ONLY:
            return f"{parameter.name}={parameter.name}"
    return parameter.name


def _derive_parameters(model: type[StepModel]) -> Iterator[Parameter]:
    """Yield the parameters for the fields, in the order of a signature."""
    fields = model.model_fields
    lists = [name for name, field in fields.items() if _is_spread(field)]
    values = [name for name in fields if name not in lists]
    for name in lists[:1]:
        if below := find_model(fields[name].annotation):
            of = f"Mapping[str, {_find_value_type(below)}] | None"
            yield Parameter(name, Parameter.POSITIONAL_ONLY, annotation=of, default=None)
        else:
            yield Parameter(name, Parameter.VAR_POSITIONAL, annotation="str")
    for name in sorted(values, key=lambda name: not fields[name].is_required()):
        is_positional = fields[name].is_required() and not lists
        kind = Parameter.POSITIONAL_OR_KEYWORD if is_positional else Parameter.KEYWORD_ONLY
        yield _derive_parameter(name, fields[name], kind)
    for name in lists[:1]:
        if below := find_model(fields[name].annotation):
            yield Parameter(_MORE, Parameter.VAR_KEYWORD, annotation=_find_value_type(below))


def _is_spread(field: FieldInfo) -> bool:
    """Return whether the items of a list are arguments of their own."""
    return field.is_required() and is_list(field.annotation)


def _find_value_type(model: type[SpecModel]) -> str:
    """Return the Python type of the second field of an object with a name and a value."""
    _, value = model.model_fields.values()
    return _find_type(value.annotation)


def _derive_parameter(name: str, field: FieldInfo, kind: Any) -> Parameter:
    annotation, default = _find_type(field.annotation), field.get_default()
    if field.is_required():
        return Parameter(name, kind, annotation=annotation)
    if default is None:
        return Parameter(name, kind, annotation=f"{annotation} | None", default=None)
    if find_constants(field.annotation):
        default = to_snake(default)
    return Parameter(name, kind, annotation=annotation, default=default)


def _find_type(annotation: Any) -> str:
    """Return the type that a method takes for a field; a number may stand for a decimal text."""
    if is_list(annotation):
        return "Mapping[str, Any]" if find_model(annotation) else "Names"
    members = list_members(annotation)
    if find_model(annotation) or any(get_origin(member) is dict for member in members):
        return "Mapping[str, Any]"
    if find_constants(annotation):
        return "str"
    if takes_text(annotation):
        others = ["bool"] if bool in members else []
        return " | ".join([*others, *(["float"] if takes_integer(annotation) else []), "str"])
    return "int" if takes_integer(annotation) else "bool"


def _derive_field(model: type[StepModel], name: str) -> str:
    """Return the argument of `_with` for a field."""
    field = model.model_fields[name]
    if _is_spread(field) and find_model(field.annotation):
        return f"{name}={{**({name} or {{}}), **{_MORE}}}"
    if _is_spread(field):
        return f"{name}=list({name})"
    if is_list(field.annotation) and not find_model(field.annotation):
        return f"{name}=to_list({name})"
    return f"{name}={name}"


def _describe_parameters(model: type[StepModel], parameters: Sequence[Parameter]) -> str:
    lines = []
    for parameter in parameters:
        text = find_description(model, parameter.name)
        if parameter.name == _MORE and parameter.kind is Parameter.VAR_KEYWORD:
            text = "The same, as keywords."
        line = f"{parameter.name}: {text}"
        lines.append(
            textwrap.fill(
                line,
                LINE_CHARS - 8,
                initial_indent=_INDENT,
                subsequent_indent=2 * _INDENT,
                break_long_words=False,
            )
        )
    return "\n".join(["Args:", *lines])


def _render_parameters(parameters: Sequence[Parameter]) -> str:
    """Return the parameters of a method as source; their annotations are texts."""
    texts, has_star = ["self"], False
    for parameter in parameters:
        if parameter.kind is Parameter.KEYWORD_ONLY and not has_star:
            texts.append("*")
            has_star = True
        star = _STARS.get(parameter.kind, "")
        has_star |= parameter.kind is Parameter.VAR_POSITIONAL
        text = f"{star}{parameter.name}: {parameter.annotation}"
        if parameter.default is not Parameter.empty:
            text += f" = {parameter.default!r}"
        texts.append(text)
        if parameter.kind is Parameter.POSITIONAL_ONLY:
            texts.append("/")
    return ", ".join(texts)
