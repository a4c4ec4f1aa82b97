"""The bound on free-form fields, and linear time of searches and counts."""

import json
from typing import Annotated, Any

import pytest
from experiments import build_experiment
from facts import assert_told
from pydantic import Field, JsonValue

from pipeline_runtime.config import (
    ManifestError,
    RuleSet,
    load_manifests,
    parse_experiment,
    parse_stored,
)
from pipeline_runtime.config.base import SpecModel
from pipeline_runtime.config.reading.free_fields import (
    MAX_FREE_BYTES,
    check_size,
    find_free_fields,
    find_mappings,
)
from pipeline_runtime.config.texts.credentials import find_uri_credential, hide_credentials
from pipeline_runtime.steps.rename.model import RenamedColumn, RenameStep

MAP = {"map": {"function": "a:b", "options": {"a": "x" * 30_000}}}


def config_of(num_bytes: int) -> dict[str, Any]:
    return {"training": {"config": {"a": "x" * (num_bytes - len('{"a":""}'))}}}


TOO_LARGE: dict[str, tuple[dict[str, Any], str]] = {
    "one field, by a byte": (config_of(MAX_FREE_BYTES + 1), "spec.training.config: … 65,537"),
    "many empty lists": ({"training": {"config": {"a": [[]] * 350_000}}}, "spec.training.config"),
    "several together": (
        {"pipeline": [MAP, MAP, MAP]},
        "spec.pipeline[0].map.options: … 30,008 … 90,024",
    ),
    "two kinds, at the larger": (
        {"pipeline": [MAP], "head": {"template": {"spec": {"a": "x" * 40_000}}}},
        "spec.head.template: … 40,017 … 70,025",
    ),
    "characters of several bytes": (
        {"trainers": {"template": {"metadata": {"a": "é" * 33_000}}}},
        "spec.trainers.template: … 66,021",
    ),
    "half a character": (
        {"dataWorkers": {"template": {"metadata": {"a": "\ud800" * 30_000}}}},
        "spec.dataWorkers.template: … 90,021",
    ),
}


@pytest.mark.parametrize(("spec", "told"), TOO_LARGE.values(), ids=TOO_LARGE)
def test_free_fields_are_bounded_together(spec: dict[str, Any], told: str) -> None:
    with pytest.raises(ManifestError) as refused:
        parse_experiment(build_experiment(**spec))
    [problem] = refused.value.problems
    assert_told(str(problem), told)


class Inner(SpecModel):
    properties: Annotated[dict[str, JsonValue], Field(max_length=9)] | None = None
    texts: tuple[str, ...] = ()


class Outer(SpecModel):
    options: dict[str, JsonValue] = Field(default_factory=dict)
    inner: Inner | None = None
    items: tuple[Inner, ...] = ()
    size: int = 0


def test_mappings_of_new_steps_and_sources_are_found() -> None:
    assert list(find_mappings(Outer)) == [("options",), ("inner", "properties")]


def test_the_largest_spec_is_accepted() -> None:
    parse_experiment(build_experiment(**config_of(MAX_FREE_BYTES)))


def test_white_space_in_a_file_does_not_count() -> None:
    spec = config_of(MAX_FREE_BYTES)
    spaced = json.loads(json.dumps(build_experiment(**spec), indent=8))
    assert check_size(spaced) is None


def test_a_large_run_that_was_accepted_resumes(tmp_path: Any) -> None:
    document = build_experiment(**config_of(200_000))
    file = tmp_path / "experiment.json"
    file.write_text(json.dumps(document))
    [loaded] = load_manifests(file, is_accepted=True)
    assert loaded.experiment == parse_stored(document, RuleSet.WITHOUT_NEWER)[0]
    with pytest.raises(ManifestError):
        load_manifests(file)


@pytest.mark.parametrize(
    "document",
    [
        *(None, [], "x", {"spec": None}, {"spec": [1]}, {"spec": {"pipeline": {"a": 1}}}),
        *({"spec": {"pipeline": [None, 1, {"map": []}, {"map": {"options": 0}}]}},),
        {"spec": {"head": [], "trainers": {"template": None}, "training": {"config": []}}},
    ],
)
def test_a_document_of_any_shape_has_free_fields_or_none(document: Any) -> None:
    assert list(find_free_fields(document)) == []


# A million characters: a search in quadratic time would take an hour.
@pytest.mark.parametrize("unit", ["?", ";", "&", "a;", "eyJ-", "eyJ.", "a://", "-", "0a", "hf_x-"])
def test_a_search_for_credentials_reads_a_text_once(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    assert find_uri_credential(text) is None
    assert len(hide_credentials(text)) == len(text)


def test_new_names_of_a_rename_are_counted_in_linear_time() -> None:
    columns = tuple(RenamedColumn(name=f"a{i}", new_name=f"b{i // 2}") for i in range(20_000))
    assert len(list(RenameStep.model_construct(columns=columns).rules())) == 10_000
