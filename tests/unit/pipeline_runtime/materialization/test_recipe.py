"""The recipe of a materialization: what changes it, and what does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline_runtime.config import apply_overrides, parse_experiment
from pipeline_runtime.materialization.recipe import Layout, ReadColumn, Recipe, build_recipe

USER = ReadColumn(name="user_id", field_id=1, type="long")
LABEL = ReadColumn(name="label", field_id=4, type="int")
LAYOUT = Layout(bucket_by="user_id", buckets=8, sort_by=("user_id",))
DOCUMENT: dict[str, Any] = {
    "apiVersion": "experiments.lastmile.dev/v1alpha1",
    "kind": "DatasetExperiment",
    "metadata": {"name": "first"},
    "spec": {
        "catalogs": [{"name": "lake", "type": "Sql", "uri": "sqlite:///x.db"}],
        "dataset": {
            "iceberg": {"catalog": "lake", "table": "db.impressions"},
            "rowKey": ["user_id"],
        },
        "pipeline": [
            {"filter": {"where": "label >= 0"}},
            {
                "join": {
                    "iceberg": {"catalog": "lake", "table": "db.users", "snapshotId": "7"},
                    "keys": ["user_id"],
                }
            },
            {"map": {"function": "json:dumps", "options": {"indent": 2}}},
            {"hashBucket": {"columns": ["user_id"], "buckets": 100}},
        ],
    },
}


def _build(*overrides: str, **options: Any) -> Recipe:
    experiment = parse_experiment(apply_overrides(DOCUMENT, overrides))
    given = {"source": "a", "columns": [USER, LABEL], "where": ["label > 0"], "layout": LAYOUT}
    return build_recipe(experiment, 3, **{**given, **options})


@pytest.mark.parametrize(
    "override",
    [
        "metadata.name=second",
        "image=registry/other:2",
        "trainers.gpusPerReplica=4",
        "training.epochs=9",
        "training.seed=5",
        "pipelineOptions.rowsPerBlock=1000",
        "pipeline[0].name=positive",
        "pipeline[1].join.maxBytes=1000",
        "pipeline[1].join.iceberg.snapshotId='8'",  # a part of the coverage
        "pipeline[2].map.concurrency=3",
        "pipeline[3].hashBucket.buckets=7",  # after materialize
        "dataset.iceberg.snapshotId='9'",
        "dataset.where=day > 3",  # the caller says which conditions choose rows
    ],
)
def test_recipe_ignores_what_changes_no_row(override: str) -> None:
    assert _build(override).hash == _build().hash


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ("pipeline[0].filter.where=label > 0", "steps[0].filter.where"),
        ("pipeline[1].join.how=Inner", "steps[1].join.how"),
        ("pipeline[1].join.iceberg.table=db.other", "steps[1].join.iceberg.table"),
        ("pipeline[2].map.options.indent=3", "steps[2].map.options.indent"),
        ("dataset.rowKey=[user_id, item_id]", "rowKey[1]"),
        ("dataset.iceberg.sampleBuckets.percent=10", "reading.sampleBuckets.percent"),
    ],
)
def test_diff_names_the_changed_field(override: str, path: str) -> None:
    before, after = _build(), _build(override)
    assert after.hash != before.hash
    assert [line.partition(": ")[0] for line in before.diff(after)] == [path]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"source": "b"}, id="another-table"),
        pytest.param({"where": []}, id="other-condition"),
        pytest.param({"layout": replace(LAYOUT, buckets=16)}, id="more-buckets"),
        pytest.param({"layout": replace(LAYOUT, sort_by=())}, id="not-sorted"),
        pytest.param({"columns": [USER]}, id="fewer-columns"),
        pytest.param({"columns": [USER, replace(LABEL, type="long")]}, id="wider-type"),
        # A column that was dropped and added again has another id.
        pytest.param({"columns": [USER, replace(LABEL, field_id=9)]}, id="same-name-other-id"),
    ],
)
def test_recipe_depends_on_source_and_layout(options: dict[str, Any]) -> None:
    assert _build(**options).hash != _build().hash


def test_map_counts_by_its_modules_and_packages() -> None:
    parts = _build("pipeline[2].map.function=rich.table:Table").parts
    assert parts["packages"]["rich"]
    assert "packages" not in _build().parts


@pytest.mark.parametrize("text", ["", "[]", "{", '{"version": 99}', "null"])
def test_texts_that_hold_no_recipe_are_recognized(text: str) -> None:
    assert Recipe.from_json(text) is None


def test_recipe_survives_its_text() -> None:
    recipe = _build()
    read = Recipe.from_json(recipe.to_json())
    assert read is not None
    assert (read.hash, read.diff(recipe)) == (recipe.hash, [])
