"""Files, directories and several documents become experiments; --set changes them first."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline_runtime.config import (
    ManifestError,
    apply_overrides,
    load_manifests,
    parse_experiment,
    parse_manifests,
    parse_stored,
)

VALID = """\
apiVersion: experiments.lastmile.dev/v1alpha1
kind: DatasetExperiment
metadata: {name: first}
spec:
  dataset: {parquet: {uri: impressions/}}
  pipeline:
  - filter: {where: label = 0}
"""
CONFIG_MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\n"


def errors_of(*args: Any, **options: Any) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        load_manifests(*args, **options)
    return [str(problem) for problem in caught.value.problems]


def test_a_file_is_loaded_with_its_text(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(CONFIG_MAP + "---\n" + VALID + "---\n")
    (loaded,) = load_manifests(path)
    assert loaded.experiment.metadata.name == "first"
    assert (loaded.file, loaded.document_index) == (str(path), 1)
    assert loaded.text == path.read_text()
    assert loaded.document["spec"]["dataset"] == {"parquet": {"uri": "impressions/"}}  # type: ignore[index]


def test_a_directory_is_searched_and_other_kinds_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "a.yml").write_text(VALID)
    (tmp_path / "sub" / "b.yaml").write_text(VALID)
    (tmp_path / "sub" / "settings.yaml").write_text(CONFIG_MAP)
    (tmp_path / ".hidden" / "c.yaml").write_text("[")
    (tmp_path / "notes.txt").write_text("[")
    loaded = load_manifests(tmp_path)
    assert [Path(item.file).name for item in loaded] == ["a.yml", "b.yaml"]


def test_problems_of_all_files_are_reported(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text(VALID.replace("label = 0", "''"))
    two.write_text(VALID.replace("uri:", "url:"))
    assert errors_of([one, two, tmp_path / "none.yaml"]) == [
        f"{one}:7:14: spec.pipeline[0].filter.where: must be an expression, got an empty string; "
        "leave the field out instead",
        f"{two}:5:23: spec.dataset.parquet.url: unknown field; did you mean uri?",
        f"{tmp_path / 'none.yaml'}: must be a readable file, got No such file or directory; "
        "check the path",
    ]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff\xfe", "must be UTF-8 text, got byte 0xff at 0; convert it"),
        (b"#" * ((1 << 20) + 1), "must be at most 1,048,576 bytes, got more"),
        (b"", "must hold a DatasetExperiment of experiments.lastmile.dev/v1alpha1, got none"),
        (CONFIG_MAP.encode(), "got only ConfigMap; add one"),
    ],
    ids=["not UTF-8", "too large", "empty", "another kind"],
)
def test_a_file_without_an_experiment_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "m.yaml"
    path.write_bytes(data)
    (error,) = errors_of(path)
    assert words in error


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    assert "must hold a DatasetExperiment" in errors_of(tmp_path)[0]


def test_no_path_is_refused() -> None:
    assert errors_of([]) == ["must name a file or a directory, got none"]


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(VALID.encode())))
    assert load_manifests("-")[0].experiment.metadata.name == "first"


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + VALID.encode())
    assert len(load_manifests(path)) == 1


def test_what_kubectl_prints_is_a_manifest() -> None:
    document = {
        "apiVersion": "v1",
        "kind": "List",
        "metadata": {"resourceVersion": ""},
        "items": [
            {
                "apiVersion": "experiments.lastmile.dev/v1alpha1",
                "kind": "DatasetExperiment",
                "metadata": {
                    "name": "first",
                    "namespace": "ranking",
                    "uid": "2c2d",
                    "resourceVersion": "17",
                    "generation": 2,
                    "creationTimestamp": "2026-11-21T10:00:00Z",
                    "finalizers": ["experiments.lastmile.dev/run"],
                    "ownerReferences": [{"kind": "Team", "name": "ads"}],
                    "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
                },
                "spec": {"dataset": {"parquet": {"uri": "impressions/"}}},
                "status": {
                    "observedGeneration": 2,
                    "aFieldOfANewerOperator": 1,
                    "conditions": [
                        {
                            "type": "Training",
                            "status": "True",
                            "lastTransitionTime": "2026-11-21T10:01:00Z",
                            "reason": "Submitted",
                            "message": "",
                        }
                    ],
                    "trainer": {"metrics": [{"name": "loss", "value": "0.25"}]},
                },
            }
        ],
    }
    (loaded,) = parse_manifests(json.dumps(document))
    assert loaded.experiment.status is not None
    assert loaded.experiment.status.conditions[0].type == "Training"


def test_problems_in_a_list_have_the_item_in_their_path() -> None:
    indented = "  " + VALID.replace("\n", "\n  ").replace("label = 0", "''")
    text = "apiVersion: v1\nkind: List\nitems:\n- " + indented.lstrip()
    with pytest.raises(ManifestError) as caught:
        parse_manifests(text)
    assert caught.value.problems[0].path == "items[0].spec.pipeline[0].filter.where"
    assert caught.value.problems[0].line == 10


OVERRIDES: list[tuple[str, tuple[str | int, ...], Any]] = [
    ("training.epochs=2", ("spec", "training", "epochs"), 2),
    ("spec.training.batchSize=256", ("spec", "training", "batchSize"), 256),
    ("metadata.name=second", ("metadata", "name"), "second"),
    ("pipeline[0].filter.where=label = 1", ("spec", "pipeline", 0, "filter", "where"), "label = 1"),
    ("pipeline=[]", ("spec", "pipeline"), []),
    ("pipeline[0]={drop: {columns: [a]}}", ("spec", "pipeline", 0), {"drop": {"columns": ["a"]}}),
    ("dataset.where='US' = country", ("spec", "dataset", "where"), "'US' = country"),
    ('training.config["a.b"]=1e-3', ("spec", "training", "config", "a.b"), 0.001),
    ('training.config["a=b"]=x', ("spec", "training", "config", "a=b"), "x"),
    ("dataset.where='US", ("spec", "dataset", "where"), "'US"),
    ('image="1"', ("spec", "image"), "1"),
]


@pytest.mark.parametrize(("override", "path", "value"), OVERRIDES, ids=[o[0] for o in OVERRIDES])
def test_an_override_sets(override: str, path: tuple[str | int, ...], value: Any) -> None:
    (loaded,) = parse_manifests(VALID, overrides=[override])
    got: Any = loaded.document
    for part in path:
        got = got[part]
    assert got == value


def test_an_override_leaves_the_document_given_as_it_was() -> None:
    document = {"spec": {"training": {"epochs": 1}}}
    changed = apply_overrides(document, ["training.epochs=", "training.seed=3"])
    assert changed == {"spec": {"training": {"seed": 3}}}
    assert document == {"spec": {"training": {"epochs": 1}}}


BAD_OVERRIDES = {
    "training.batchsize=3": "--set: spec.training.batchsize: unknown field; did you mean "
    "batchSize?",
    "training.epochs=x": "--set: spec.training.epochs: must be an integer, got 'x' (a string); "
    "write an integer",
    "pipeline[7].filter.where=a": "--set: pipeline[7].filter.where: must index an item that is "
    "there: spec.pipeline has 1, got [7]; count from 0, or set the whole list",
    "pipeline.filter=a": "--set: pipeline.filter: must say which item: spec.pipeline is a list; "
    "write spec.pipeline[0].filter",
    "metadata.name.x=a": "--set: metadata.name.x: must reach into mappings, but metadata.name is "
    "'first'; set metadata.name itself",
    "metadata[0]=a": "--set: metadata[0]: must index a list, but metadata is a mapping of 1; "
    "leave [0] out",
    "training.epochs": "--set: training.epochs: must be path=value, got 'training.epochs'; add '=' "
    "and a value",
    "=3": "--set: must be path=value, got no field's name before '='; add one",
    "training..epochs=3": "--set: training..epochs: must be a path such as training.batchSize or "
    "pipeline[2].filter.where, got 'training..epochs'; correct it at character 9",
    "training.seed=.nan": "--set: training.seed: must be a finite number, got .nan; quote it if it "
    "is a text",
    "pipeline=[1": "--set: pipeline: must be YAML, got a bracket or brace that is not closed; "
    "close it",
}


@pytest.mark.parametrize(("override", "expected"), BAD_OVERRIDES.items(), ids=BAD_OVERRIDES)
def test_a_bad_override_is_named(override: str, expected: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_manifests(VALID, file="m.yaml", overrides=[override])
    assert str(caught.value) == expected


def test_a_field_of_a_newer_release_is_left_out_when_read_from_the_api() -> None:
    (loaded,) = parse_manifests(VALID)
    stored: dict[str, Any] = json.loads(json.dumps(loaded.document))
    stored["spec"]["training"] = {"epochs": 2, "curriculum": {"a": 1}}
    stored["spec"]["mesh"] = [1]
    experiment, ignored = parse_stored(stored)
    assert experiment.spec.training.epochs == 2
    assert ignored == ["spec.training.curriculum", "spec.mesh"]
    with pytest.raises(ManifestError):
        parse_experiment(stored)
