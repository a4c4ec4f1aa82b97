"""Reading experiments from files, directories and several documents, and `--set`."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from experiments import build_experiment
from facts import assert_all_told, assert_told

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
  - {name: odd, filter: {where: label = 0}}
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


def test_a_directory_is_searched_and_other_kinds_are_skipped(tmp_path: Path) -> None:
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
    expected = [
        f"{one}:7:26: spec.pipeline[0].filter.where: … empty",
        f"{two}:5:23: spec.dataset.parquet.url: … uri",
        f"{tmp_path / 'none.yaml'}: … No such file or directory",
    ]
    assert_all_told(errors_of([one, two, tmp_path / "none.yaml"]), expected)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff\xfe", "UTF-8 … 0xff"),
        (b"#" * ((1 << 20) + 1), "1,048,576"),
        (b"", "DatasetExperiment … experiments.lastmile.dev/v1alpha1"),
        (CONFIG_MAP.encode(), "ConfigMap"),
    ],
    ids=["not UTF-8", "too large", "empty", "another kind"],
)
def test_a_file_without_an_experiment_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "m.yaml"
    path.write_bytes(data)
    (error,) = errors_of(path)
    assert_told(error, f"… {words}")


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    [error] = errors_of(tmp_path)
    assert_told(error, f"{tmp_path}: … DatasetExperiment")


def test_no_path_is_refused() -> None:
    [error] = errors_of([])
    assert_told(error, "… file")


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(VALID.encode())))
    assert load_manifests("-")[0].experiment.metadata.name == "first"


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + VALID.encode())
    assert len(load_manifests(path)) == 1


def test_kubectl_output_is_a_manifest() -> None:
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


ODD = ("spec", "pipeline", 0)
EVALUATION = ("spec", "training", "evaluation")
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
    ("pipeline[odd].filter.where=label = 1", (*ODD, "filter", "where"), "label = 1"),
    ('pipeline["odd"].filter.where=label = 1', (*ODD, "filter", "where"), "label = 1"),
    ("pipeline[odd].name=even", (*ODD, "name"), "even"),
    ("training.config[rate]=1", ("spec", "training", "config", "rate"), 1),
    ("image=1.0", ("spec", "image"), "1.0"),
    ("training.evaluation.holdoutPercent=2.50", (*EVALUATION, "holdoutPercent"), "2.50"),
    ("training.evaluation.holdoutPercent=2", (*EVALUATION, "holdoutPercent"), 2),
]


@pytest.mark.parametrize(("override", "path", "value"), OVERRIDES, ids=[o[0] for o in OVERRIDES])
def test_an_override_sets(override: str, path: tuple[str | int, ...], value: Any) -> None:
    (loaded,) = parse_manifests(VALID, overrides=[override])
    got: Any = loaded.document
    for part in path:
        got = got[part]
    assert got == value


def test_an_override_leaves_the_original_document_unchanged() -> None:
    document = {"spec": {"training": {"epochs": 1}}}
    changed = apply_overrides(document, ["training.epochs=", "training.seed=3"])
    assert changed == {"spec": {"training": {"seed": 3}}}
    assert document == {"spec": {"training": {"epochs": 1}}}


BAD_OVERRIDES = {
    "training.batchsize=3": "--set: spec.training.batchsize: … batchSize",
    "training.epochs=x": "--set: spec.training.epochs: … integer … 'x' … string",
    "pipeline[7].filter.where=a": "--set: pipeline[7].filter.where: … spec.pipeline … 1 … [7]",
    "pipeline[even].filter.where=a": "--set: pipeline[even].filter.where: … spec.pipeline … odd",
    "pipeline[od].filter.where=a": "--set: pipeline[od].filter.where: … did you mean odd",
    "pipeline[odd].filter.were=a": "--set: spec.pipeline[0].filter.were: … where",
    "pipeline.filter=a": "--set: pipeline.filter: … spec.pipeline[0].filter",
    "metadata.name.x=a": "--set: metadata.name.x: … metadata.name … 'first'",
    "metadata[0]=a": "--set: metadata[0]: … list … mapping",
    "training.epochs": "--set: training.epochs: … path=value … 'training.epochs'",
    "=3": "--set: … path=value … '='",
    "training..epochs=3": "--set: training..epochs: … 'training..epochs' … 9",
    "training.seed=.nan": "--set: training.seed: … .nan",
    "pipeline=[1": "--set: pipeline: … YAML",
}


@pytest.mark.parametrize(("override", "expected"), BAD_OVERRIDES.items(), ids=BAD_OVERRIDES)
def test_a_bad_override_is_named(override: str, expected: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_manifests(VALID, file="m.yaml", overrides=[override])
    assert_told(str(caught.value), expected)


def test_fields_of_a_newer_release_are_ignored() -> None:
    (loaded,) = parse_manifests(VALID)
    stored: dict[str, Any] = json.loads(json.dumps(loaded.document))
    stored["spec"]["training"] = {"epochs": 2, "curriculum": {"a": 1}}
    stored["spec"]["mesh"] = [1]
    experiment, ignored = parse_stored(stored)
    assert experiment.spec.training.epochs == 2
    assert ignored == ["spec.training.curriculum", "spec.mesh"]
    with pytest.raises(ManifestError):
        parse_experiment(stored)


def test_a_driver_takes_what_was_accepted(tmp_path: Path) -> None:
    path = tmp_path / "experiment.json"
    template = {"spec": {"$patch": "replace", "serviceAccount": "trainer"}}
    path.write_text(json.dumps(build_experiment(head={"template": template})))
    with pytest.raises(ManifestError):
        load_manifests(path)
    [loaded] = load_manifests(path, is_accepted=True)
    assert loaded.experiment.spec.head.template == template
    path.write_text(
        json.dumps(build_experiment(trainers={"replicas": "many"}))
    )  # a type counts all the same
    with pytest.raises(ManifestError):
        load_manifests(path, is_accepted=True)
