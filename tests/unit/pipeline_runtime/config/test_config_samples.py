"""The samples are valid, and the cluster sample and the guide say every field that they should."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic.fields import FieldInfo

from pipeline_runtime.config import API_VERSION, DatasetExperiment, SpecModel, load_manifests
from pipeline_runtime.config.documents import format_path
from pipeline_runtime.config.introspect import field_names, find_model, walk_fields

ROOT = Path(__file__).parents[4]
SAMPLE = ROOT / "deploy" / "samples" / "cluster.yaml"
GUIDE = ROOT / "docs" / "manifest.md"
CLUSTER_GUIDE = ROOT / "docs" / "kubernetes.md"
DATA_SIDE = ("dataset", "pipeline", "pipelineOptions", "training")


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> set[str]:
    found = {format_path(path)}
    if isinstance(value, dict):
        for key, item in value.items():
            found |= paths_in(item, (*path, key))
    elif isinstance(value, list):
        for item in value:
            found |= paths_in(item, (*path, 0))
    return found


def test_the_samples_are_valid() -> None:
    loaded = load_manifests(SAMPLE.parent)
    assert [item.file for item in loaded if item.warnings] == []


@pytest.mark.parametrize("guide", [GUIDE, CLUSTER_GUIDE], ids=lambda guide: guide.name)
def test_the_manifests_of_a_guide_are_valid(guide: Path, tmp_path: Path) -> None:
    snippets = re.findall(r"^```yaml\n(.+?)^```", guide.read_text(encoding="utf-8"), re.M | re.S)
    assert snippets
    file = tmp_path / "snippet.yaml"
    for snippet in snippets:
        file.write_text(snippet)
        (loaded,) = load_manifests(file)
        assert not loaded.warnings


def test_the_cluster_sample_says_every_cluster_side_field() -> None:
    (loaded,) = load_manifests(SAMPLE)
    said = paths_in(loaded.document)
    wanted = {
        format_path(path)
        for path, _ in walk_fields(DatasetExperiment)
        if path[0] == "spec" and len(path) > 1 and path[1] not in DATA_SIDE
    }
    # Optional, and said of the ConfigMap beside it.
    wanted -= {"spec.env[0].valueFrom.secretKeyRef.optional", "spec.envFrom[0].prefix"}
    wanted -= {"spec.envFrom[0].configMapRef.optional"}
    assert wanted - said == set()


def guide_tables() -> dict[str, dict[str, str]]:
    """Of each section with a table: field to default."""
    tables: dict[str, dict[str, str]] = {}
    for section in re.split(r"^## ", GUIDE.read_text(encoding="utf-8"), flags=re.M)[1:]:
        title, _, body = section.partition("\n")
        rows = re.findall(r"^\| `(\w+)` \| .*? \| (.*?) \| .+ \|$", body, flags=re.M)
        if rows:
            tables[title] = dict(rows)
    return tables


def default_text(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if default is None:
        return ""
    if isinstance(default, SpecModel):
        return "`{}`"
    if isinstance(default, str):
        return f"`{default}`"
    return f"`{json.dumps(list(default) if isinstance(default, tuple) else default)}`"


def all_models(model: type[SpecModel] = DatasetExperiment) -> set[type[SpecModel]]:
    below = (find_model(field.annotation) for field in model.model_fields.values())
    return {model}.union(*(all_models(item) for item in below if item))


# Their few fields are said in words where they are used.
IN_WORDS = {"DatasetExperiment", "Step", "ObjectReference", "OptionalReference"}


@pytest.mark.parametrize(
    "model",
    sorted((m for m in all_models() if m.__name__ not in IN_WORDS), key=lambda m: m.__name__),
    ids=lambda model: model.__name__,
)
def test_the_guide_has_a_table_of_every_model(model: type[SpecModel]) -> None:
    wanted = {
        alias: default_text(model.model_fields[name]) for alias, name in field_names(model).items()
    }
    assert wanted in list(guide_tables().values())


def test_the_guide_names_every_step() -> None:
    titles = "\n".join(guide_tables())
    steps = [path for path, owner in walk_fields(DatasetExperiment) if owner.__name__ == "Step"]
    assert steps
    assert [path for path in steps if f"pipeline[].{path[-1]}" not in titles] == []


def test_the_guide_names_the_api_version() -> None:
    assert API_VERSION in GUIDE.read_text(encoding="utf-8")
