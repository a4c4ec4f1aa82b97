"""The samples and the guides' manifests are valid; the cluster samples say every field."""

import re
from pathlib import Path
from typing import Any

import pytest

from pipeline_runtime.config import DatasetExperiment, load_manifests
from pipeline_runtime.config.introspect import walk_fields
from pipeline_runtime.config.texts.yaml_documents import format_path

ROOT = Path(__file__).parents[4]
SAMPLE = ROOT / "deploy" / "samples" / "cluster.yaml"
SCORING = ROOT / "deploy" / "samples" / "scoring-cluster.yaml"
GUIDE = ROOT / "docs" / "manifest.md"
CLUSTER_GUIDE = ROOT / "docs" / "kubernetes.md"
DATA_SIDE = ("catalogs", "dataset", "pipeline", "pipelineOptions", "training", "output")


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


def test_the_cluster_samples_say_every_cluster_side_field() -> None:
    found = [load_manifests(sample) for sample in (SAMPLE, SCORING)]
    said = set().union(*(paths_in(loaded.document) for (loaded,) in found))
    wanted = {
        format_path(path)
        for path, _ in walk_fields(DatasetExperiment)
        if path[0] == "spec" and len(path) > 1 and path[1] not in DATA_SIDE
    }
    # Optional, and said of the ConfigMap beside it.
    wanted -= {"spec.env[0].valueFrom.secretKeyRef.optional", "spec.envFrom[0].prefix"}
    wanted -= {"spec.envFrom[0].configMapRef.optional"}
    assert wanted - said == set()
