"""Runs that score a table with a model that another run trained."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from pipeline_runtime import Pipeline
from pipeline_runtime.config import parse_experiment
from pipeline_runtime.errors import ManifestError
from pipeline_runtime.plan.consumers.output import OutputConsumer
from pipeline_runtime.report import load_summary
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.session import Finished, run_experiment

ROWS = 2000
OUTPUTS = [{"name": "a", "type": "float32"}, {"name": "b", "type": "float32"}]
SMALL = {"hashSize": 64, "embeddingDim": 4, "hidden": [8]}


def build_table() -> pa.Table:
    rng = np.random.default_rng(3)
    x = rng.standard_normal(ROWS).astype(np.float32)
    country = np.array(["de", "fr", "it"])[rng.integers(0, 3, ROWS)]
    return pa.table(
        {
            "id": np.arange(ROWS),
            "x": x,
            "country": pa.array(country, mask=rng.random(ROWS) < 0.1),
            "clicks": (x + rng.standard_normal(ROWS) > 0).astype(np.int64),
            "day": pa.array([date(2026, 1, 1 + i % 2) for i in range(ROWS)]),
            "big": pa.array([None if i % 3 else 2**53 + i for i in range(ROWS)], pa.int64()),
        }
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a storage root with a table, and a run of the experiment `teacher`."""
    root = tmp_path_factory.mktemp("scoring")
    pq.write_table(build_table(), root / "in.parquet", row_group_size=250)
    train(root)
    return root


def build_document(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": name},
        "spec": {"dataset": {"parquet": {"uri": "in.parquet"}, "rowKey": ["id"]}, **spec},
    }


def run(root: Path, name: str, spec: dict[str, Any], *, resume: bool = False) -> Finished:
    document = build_document(name, spec)
    options = RunOptions(
        output=root / "reports" / name, folder_per_run=True, storage_root=str(root), resume=resume
    )
    finished = run_experiment(parse_experiment(document), yaml.safe_dump(document), options)
    assert finished.outcome.kind == "Complete", finished.outcome.error
    return finished


def train(root: Path, seed: int = 1, name: str = "teacher") -> Finished:
    spec = {
        "pipeline": [
            {"filter": {"where": "country is not null"}},
            {"derive": {"columns": [{"name": "label", "expression": "clicks > 0"}]}},
            {"derive": {"columns": [{"name": "twice", "expression": "x * 2"}]}},
            {"downsample": {"where": "not label", "keepPercent": 50, "weightColumn": "w"}},
            {"fillNull": {"columns": [{"name": "country", "value": "none"}]}},
            {"hashBucket": {"columns": ["country"], "buckets": 50}},
        ],
        "training": {
            "batchSize": 128,
            "labelColumn": "label",
            "weightColumn": "w",
            "columns": ["twice", "country"],
            "config": SMALL,
            "seed": seed,
        },
    }
    return run(root, name, spec)


def score(
    root: Path, name: str, *, resume: bool = False, steps: Any = (), **output: Any
) -> Finished:
    model = {
        "name": "teacher",
        "experimentRef": {"name": "teacher"},
        "outputs": [{"name": "score", "type": "float32"}],
    }
    spec = {
        "pipeline": [*steps, {"predict": {"models": [model]}}],
        "output": {"mode": "Overwrite", "parquet": {"uri": f"{name}/"}, **output},
    }
    return run(root, name, spec, resume=resume)


def read(root: Path, name: str) -> pa.Table:
    return Pipeline.read_parquet(f"{name}/").to_table(str(root)).sort_by("id")


def test_a_run_is_scored_with_its_preprocessing(root: Path) -> None:
    finished = score(root, "all")
    table = read(root, "all")
    # The raw columns stay, though the model saw other values under the same names.
    assert table.drop(["score"]).equals(build_table().cast(table.drop(["score"]).schema))
    known = np.array(table["clicks"].to_pylist()) > 0
    scores = np.array(table["score"].to_pylist())
    order = scores.argsort()
    ranks = np.empty(ROWS)
    ranks[order] = np.arange(1, ROWS + 1)
    auc = (ranks[known].sum() - known.sum() * (known.sum() + 1) / 2) / (
        known.sum() * (~known).sum()
    )
    assert auc > 0.7
    [model] = load_summary(finished.output).models
    [trained] = (root / "experiments" / "teacher").iterdir()
    assert (model.experiment, model.run) == ("teacher", trained.name)


def test_key_and_score_reads_no_other_column(root: Path) -> None:
    finished = score(root, "keyed", layout="KeyAndScore", partitionBy=["day"])
    table = read(root, "keyed")
    assert sorted(table.schema.names) == ["day", "id", "score"]
    assert table["id"].to_pylist() == list(range(ROWS))
    plan = json.loads((finished.output / "plan.json").read_text())
    assert "big" not in plan["readColumns"]
    assert "clicks" not in plan["readColumns"]
    assert table["score"].to_pylist() == read(root, "all")["score"].to_pylist()


def test_key_and_score_has_renamed_scores() -> None:
    predict = {"models": [{"name": "m", "onnx": {"uri": "m"}, "outputs": OUTPUTS}]}
    rename = {"columns": [{"name": "a", "newName": "score"}, {"name": "id", "newName": "key"}]}
    spec = {
        "dataset": {"parquet": {"uri": "in.parquet"}, "rowKey": ["key"]},
        "pipeline": [{"predict": predict}, {"rename": rename}],
        "output": {"layout": "KeyAndScore", "parquet": {"uri": "out/"}},
    }
    experiment = parse_experiment(build_document("renamed", spec))
    schema = pa.schema({"key": pa.int64(), "score": pa.float32(), "b": pa.float32()})
    assert OutputConsumer(spec=experiment.spec).find_columns(schema) == ("key", "score", "b")


def test_key_and_score_refuses_repeated_rows(root: Path) -> None:
    twice = pa.table({"country": ["de", "de"], "tax": [1, 2]})
    pq.write_table(twice, root / "taxes.parquet")
    join = {"join": {"parquet": {"uri": "taxes.parquet"}, "keys": ["country"]}}
    with pytest.raises(AssertionError, match="rows have the id of another row"):
        score(root, "repeated", layout="KeyAndScore", steps=[join])


def test_key_and_score_needs_a_score_and_a_key(root: Path) -> None:
    output = {"layout": "KeyAndScore", "parquet": {"uri": "none/"}}
    with pytest.raises(ManifestError, match=r"spec.output.layout: must be Columns in a pipeline"):
        run(root, "none", {"output": output})
    with pytest.raises(ManifestError, match=r"spec.dataset.rowKey: must name the key"):
        run(root, "none", {"output": output, "dataset": {"parquet": {"uri": "in.parquet"}}})
    with_ids = build_table().add_column(0, "_lastmile_row_id", pa.array(np.arange(ROWS)))
    pq.write_table(with_ids, root / "ids.parquet")
    own = {"parquet": {"uri": "ids.parquet"}, "rowKey": ["_lastmile_row_id"]}
    with pytest.raises(ManifestError, match=r"spec.dataset.rowKey: must name columns that"):
        run(root, "none", {"output": output, "dataset": own})
    with pytest.raises(ManifestError, match=r"output.columns: must be absent"):
        run(root, "none", {"output": output | {"columns": ["id"]}})


def test_scores_train_a_student_in_the_same_pipeline(root: Path) -> None:
    model = {
        "name": "teacher",
        "experimentRef": {"name": "teacher"},
        "outputs": [{"name": "soft", "type": "float32"}],
    }
    spec = {
        "pipeline": [{"predict": {"models": [model]}}],
        "training": {
            "batchSize": 128,
            "columns": ["x"],
            "labelColumn": "soft",
            "config": SMALL,
        },
    }
    summary = load_summary(run(root, "student", spec).output)
    assert np.isfinite(summary.training.metrics["loss"])
    assert [each.experiment for each in summary.models] == ["teacher"]


def test_the_newest_complete_run_is_taken_once(root: Path) -> None:
    first = load_summary(score(root, "pinned").output).models
    train(root, seed=2)
    assert load_summary(score(root, "pinned").output).models != first
    newest = sorted(folder.name for folder in (root / "experiments" / "teacher").iterdir())[-1]
    assert load_summary(score(root, "pinned").output).models[0].run == newest


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ({"rename": {"columns": [{"name": "x", "newName": "z"}]}}, "no column is named 'x'"),
        ({"cast": {"columns": [{"name": "x", "type": "string"}]}}, "derive.columns"),
    ],
)
def test_input_that_the_run_cannot_preprocess_is_refused(
    root: Path, step: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ManifestError, match=problem) as caught:
        score(root, "other", steps=[step])
    assert "spec.pipeline[1].predict.models[0].preprocessing: pipeline" in str(caught.value)
