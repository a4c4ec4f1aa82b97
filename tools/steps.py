"""Writes what follows from the declarations of steps, sources and the status; see `make steps`.

- `pipeline_runtime/step_methods.py`, the methods of the fluent API, each with a typed signature;
- the tables of the fields of steps, sources and the status in docs/manifest.md, from the models;
- the sections of docs/steps.md, from each folder's guide.

A model with a `from_python` of its own fixes the signature of its method. Otherwise it follows from
the fields: a required list of columns is `*columns`; a required list of objects with a name and a
value is a mapping, or keywords; other required fields are positional, all optional fields keywords.

`tools.crd` writes the CRD from the same models. tests/unit/tools/test_steps.py checks that the
committed files are fresh.
"""

import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from inspect import Parameter
from itertools import starmap
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types
from pydantic.alias_generators import to_snake
from pydantic.fields import FieldInfo

from pipeline_runtime.config import ExperimentStatus, SpecModel
from pipeline_runtime.config.base import MAX_INT32, MAX_SAFE_INTEGER
from pipeline_runtime.config.dataset import SourceChoice
from pipeline_runtime.config.introspect import (
    field_names,
    find_constants,
    find_model,
    is_list,
    takes_integer,
    takes_text,
)
from pipeline_runtime.config.step_model import StepModel
from pipeline_runtime.config.step_registry import load_models
from tools.crd import (
    LINE_CHARS,
    find_description,
    find_paragraphs,
    find_summary,
    is_time_field,
    list_members,
)

ROOT = Path(__file__).resolve().parent.parent
METHODS = ROOT / "pipeline_runtime" / "step_methods.py"
MANIFEST, GUIDE = ROOT / "docs" / "manifest.md", ROOT / "docs" / "steps.md"

_REGION = re.compile(r"(?<=<!-- by `make steps`)([^\n]*-->\n).*(?=<!-- end -->\n)", re.S)
_SOURCES = re.compile(
    r"(?<=<!-- sources, by `make)([^\n]*-->\n).*(?=<!-- end of sources -->)", re.S
)
_STATUS = re.compile(
    r"(?<=<!-- status, by `make)([^\n]*-->\n).*(?=<!-- end of the status -->)", re.S
)
_WORDS = {bool: "boolean", int: "integer", str: "string"}

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


def render_files() -> Mapping[Path, str]:
    """Return the text of each file that is written, whole."""
    manifest = render_region(MANIFEST.read_text(encoding="utf-8"), render_reference())
    manifest = render_region(manifest, render_sources(), _SOURCES)
    return {
        METHODS: render_methods(),
        MANIFEST: render_region(manifest, render_status(), _STATUS),
        GUIDE: render_region(GUIDE.read_text(encoding="utf-8"), render_guide()),
    }


def render_region(page: str, text: str, region: re.Pattern[str] = _REGION) -> str:
    """Return a page with the text in the place of what `make steps` wrote before."""
    return region.sub(lambda match: match[1] + text, page)


def render_guide() -> str:
    """Return the sections of docs/steps.md, of those steps that have a guide."""
    sections = []
    for model in load_models().values():
        guide = resources.files(model.__module__.rpartition(".")[0]) / "guide.md"
        if guide.is_file():
            sections.append(f"## {model.kind()}\n\n{guide.read_text(encoding='utf-8').strip()}\n")
    return "\n".join(sections)


def render_reference() -> str:
    """Return the sections of docs/manifest.md about steps."""
    models = load_models().values()
    return "\n".join(_render_section(f"pipeline[].{model.kind()}", model) for model in models)


def render_sources() -> str:
    """Return the sections of docs/manifest.md about sources."""
    return "\n".join(starmap(_render_section, SourceChoice.source_models().items()))


def render_status(model: type[SpecModel] = ExperimentStatus) -> str:
    """Return the sections of docs/manifest.md about the status."""
    return "\n".join(_render_parts("status", model))


def _render_parts(title: str, model: type[SpecModel]) -> Iterator[str]:
    """Yield the section of a part of the status, then those of the parts below it."""
    rows, below = "", []
    for alias, name in field_names(model).items():
        field = model.model_fields[name]
        kind = _describe_type(field.annotation, field.metadata)
        kind = "time" if is_time_field(model, name) else kind
        rows += f"| `{alias}` | {kind} | {_describe_meaning(model, name)} |\n"
        if part := find_model(field.annotation):
            brackets = "[]" if is_list(field.annotation) else ""
            below.append((f"{title}.{alias}{brackets}", part))
    text = "\n\n".join(find_paragraphs(model))
    yield f"## {title}\n\n{text}\n\n| field | type | meaning |\n|---|---|---|\n{rows}"
    for path, part in below:
        yield from _render_parts(path, part)


def _render_section(title: str, model: type[SpecModel]) -> str:
    rows = "".join(f"| {' | '.join(row)} |\n" for row in _build_rows(model))
    return (
        f"## {title}\n\n{find_summary(model)}\n\n"
        f"| field | type | default | meaning |\n|---|---|---|---|\n{rows}"
    )


def _build_rows(model: type[SpecModel], above: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Yield the cells of each field; fields of models that have no section follow their own."""
    for alias, name in field_names(model).items():
        field, below = model.model_fields[name], find_model(model.model_fields[name].annotation)
        default = field.get_default(call_default_factory=True)
        default = "required" if field.is_required() else _render_default(default)
        yield (
            f"`{above}{alias}`",
            _describe_type(field.annotation, field.metadata),
            default,
            _describe_meaning(model, name),
        )
        if below and alias not in field_names(SourceChoice):
            brackets = "[]" if is_list(field.annotation) else ""
            yield from _build_rows(below, f"{above}{alias}{brackets}.")


def _render_default(default: Any) -> str:
    if default is None:
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _describe_meaning(model: type[SpecModel], name: str) -> str:
    below = find_model(model.model_fields[name].annotation)
    text = find_description(model, name) or (find_summary(below) if below else "")
    text = text.removesuffix(".").replace("|", "\\|")
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


def _describe_type(annotation: Any, metadata: Any = ()) -> str:
    """Return the type of a field in words, with its bounds."""
    members = list_members(annotation)
    if len(members) == 1 and get_origin(members[0]) is Annotated:
        return _describe_type(get_args(members[0])[0], [*get_args(members[0])[1:], *metadata])
    if len(members) > 1:
        words = [_describe_type(member) for member in members]
        return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
    (kind,) = members
    if get_origin(kind) is Literal:
        return ", ".join(f"`{constant}`" for constant in get_args(kind))
    if get_origin(kind) is tuple:
        item = _describe_type(get_args(kind)[0])
        return f"list of {item.replace('string', 'strings').replace('mapping', 'mappings')}"
    if get_origin(kind) is dict or find_model(kind):
        return "mapping"
    return _WORDS[kind] + (_describe_bounds(metadata) if kind is int else "")


def _describe_bounds(metadata: Any) -> str:
    """Return the bounds of an integer; a largest integer that many fields share is none."""
    constraints = [c for m in metadata for c in (m.metadata if isinstance(m, FieldInfo) else [m])]
    least = next((c.ge for c in constraints if isinstance(c, annotated_types.Ge)), None)
    most = next((c.le for c in constraints if isinstance(c, annotated_types.Le)), None)
    if most in (None, MAX_INT32, MAX_SAFE_INTEGER):
        return "" if least is None else f" ≥ {least:,}"
    return f" {least:,} to {most:,}"


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
        case Parameter.VAR_POSITIONAL:
            return f"*{parameter.name}"
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


def main() -> None:
    """Write the files."""
    for path, text in render_files().items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
