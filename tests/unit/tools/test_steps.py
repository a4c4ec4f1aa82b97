"""The files that are written from the models of steps, sources and the status are up to date."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline_runtime.config import ExperimentStatus, SpecModel
from pipeline_runtime.config.dataset import SourceChoice
from pipeline_runtime.config.introspect import field_names, find_model, is_list
from pipeline_runtime.config.step_registry import load_models
from tools.steps import GUIDE, MANIFEST, render_files

FILES = render_files()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_file_is_what_make_steps_writes(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == FILES[path], "run make steps and commit its files"


def test_every_step_has_a_section_on_both_pages() -> None:
    reference, guide = FILES[MANIFEST], FILES[GUIDE]
    for model in load_models().values():
        assert f"## pipeline[].{model.kind()}\n" in reference
        assert f"## {model.kind()}\n" in guide


def test_every_source_has_a_section() -> None:
    for kind, model in SourceChoice.source_models().items():
        _, found, section = FILES[MANIFEST].partition(f"\n## {kind}\n")
        assert found
        assert all(f"| `{name}` |" in section.partition("\n## ")[0] for name in field_names(model))


def find_parts(title: str, model: type[SpecModel]) -> Iterator[tuple[str, type[SpecModel]]]:
    """Yield the title and the model of each part of the status."""
    yield title, model
    for alias, name in field_names(model).items():
        annotation = model.model_fields[name].annotation
        if below := find_model(annotation):
            yield from find_parts(f"{title}.{alias}{'[]' if is_list(annotation) else ''}", below)


@pytest.mark.parametrize(
    ("title", "model"),
    [pytest.param(*part, id=part[0]) for part in find_parts("status", ExperimentStatus)],
)
def test_every_field_of_the_status_is_in_the_reference(title: str, model: type[SpecModel]) -> None:
    _, found, section = FILES[MANIFEST].partition(f"\n## {title}\n")
    assert found
    assert all(f"| `{name}` |" in section.partition("\n## ")[0] for name in field_names(model))
