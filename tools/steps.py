"""Writes what follows from the declarations of steps and sources; see `make steps`.

- `pipeline_runtime/step_methods.py`, the methods of the fluent API;
- the tables of the fields of steps and sources in docs/manifest.md, from the models;
- the sections of docs/steps.md, from each folder's guide.

`tools.crd` writes the CRD from the same models. tests/unit/tools/test_steps.py checks that the
committed files are fresh.
"""

import re
from collections.abc import Iterator, Mapping
from importlib import resources
from itertools import starmap
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from pipeline_runtime.config import SpecModel
from pipeline_runtime.config.base import MAX_INT32, MAX_SAFE_INTEGER
from pipeline_runtime.config.dataset import SourceChoice
from pipeline_runtime.config.introspect import field_names, find_model, is_list
from pipeline_runtime.config.step_registry import load_models
from tools.crd import find_description, find_summary, list_members
from tools.step_methods import render_methods

ROOT = Path(__file__).resolve().parent.parent
METHODS = ROOT / "pipeline_runtime" / "step_methods.py"
MANIFEST, GUIDE = ROOT / "docs" / "manifest.md", ROOT / "docs" / "steps.md"

_REGION = re.compile(r"(?<=<!-- by `make steps`)([^\n]*-->\n).*(?=<!-- end -->\n)", re.S)
_SOURCES = re.compile(
    r"(?<=<!-- sources, by `make)([^\n]*-->\n).*(?=<!-- end of sources -->)", re.S
)
_WORDS = {bool: "boolean", int: "integer", str: "string"}


def render_files() -> Mapping[Path, str]:
    """Return the text of each file that is written, whole."""
    manifest = render_region(MANIFEST.read_text(encoding="utf-8"), render_reference())
    return {
        METHODS: render_methods(),
        MANIFEST: render_region(manifest, render_sources(), _SOURCES),
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


def main() -> None:
    """Write the files."""
    for path, text in render_files().items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
