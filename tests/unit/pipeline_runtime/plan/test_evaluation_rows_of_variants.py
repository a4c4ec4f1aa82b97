"""The rows that evaluate a model: equal in all variants of a sample, bounded, and at least one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from facts import assert_told
from hypothesis import example, given, settings
from hypothesis import strategies as st
from property_tests import examples

from pipeline_runtime import Pipeline
from pipeline_runtime.config import DatasetExperiment, parse_experiment
from pipeline_runtime.errors import ManifestError
from pipeline_runtime.feed.making.matching import count_matches, count_roles, has_row
from pipeline_runtime.feed.making.work import read_group
from pipeline_runtime.pipeline import iter_tables
from pipeline_runtime.plan import Plan, build_plan, explain
from pipeline_runtime.run.training.prepare import check_training
from pipeline_runtime.steps.base import GROUP_HASH_COLUMN

NUM_ROWS = 400
HOLDOUT: dict[str, Any] = {"holdoutPercent": 25}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows in row groups of 100, four of them of each request."""
    folder = tmp_path_factory.mktemp("variants")
    table = pa.table(
        {
            "id": pa.array(range(NUM_ROWS), pa.int64()),
            "request": pa.array([i // 4 for i in range(NUM_ROWS)], pa.int64()),
            "same": pa.array([1] * NUM_ROWS, pa.int64()),
            "score": pa.array([i / NUM_ROWS for i in range(NUM_ROWS)], pa.float32()),
            "clicked": pa.array([float(i % 5 == 0) for i in range(NUM_ROWS)], pa.float32()),
            "boost": pa.array([2.0] * NUM_ROWS, pa.float32()),
        }
    )
    (folder / "t").mkdir()
    pq.write_table(table, folder / "t/a.parquet", row_group_size=100)
    return str(folder)


def make(
    pipeline: list[dict[str, Any]],
    evaluation: dict[str, Any],
    *,
    row_key: str = "id",
    options: dict[str, Any] | None = None,
    **training: Any,
) -> DatasetExperiment:
    dataset = {"parquet": {"uri": "t/"}, "rowKey": [row_key], "requestKey": "request"}
    spec = {
        "dataset": dataset,
        "pipeline": pipeline,
        "pipelineOptions": options or {},
        "training": {
            "columns": ["id", "score"],
            "labelColumn": "clicked",
            "entrypoint": "team:loop",
            "evaluation": evaluation,
            **training,
        },
    }
    return parse_experiment(
        {
            "apiVersion": "experiments.lastmile.dev/v1alpha1",
            "kind": "DatasetExperiment",
            "metadata": {"name": "variant"},
            "spec": spec,
        }
    )


def plan_of(experiment: DatasetExperiment, root: str) -> Plan:
    plan = build_plan(experiment, root)
    return plan.bound_evaluation(check_training(experiment, plan))


def rows_of(plan: Plan, role: str = "evaluation", column: str = "id") -> list[Any]:
    table = pa.concat_tables(iter_tables(plan.streams[role]))
    values: list[Any] = table.sort_by("id").column(column).to_pylist()
    return values


downsamples = st.fixed_dictionaries(
    {"keepPercent": st.integers(0, 100), "seed": st.integers(0, 2)},
    optional={
        "where": st.sampled_from(["clicked = 0", "score < 0.5"]),
        "weightColumn": st.sampled_from(["weight", "boost"]),
    },
).map(lambda body: {"downsample": body})
COMMON: list[dict[str, Any]] = [
    {"filter": {"where": "score < 0.9"}},
    {"sample": {"keepPercent": 60}},
    {"sample": {"keepPercent": 70, "by": ["request"]}},
]


@pytest.fixture(scope="module")
def expected(root: str) -> dict[int | None, list[int]]:
    """The evaluation rows without a downsample, by `maxRows`."""
    return {n: rows_of(plan_of(make(COMMON, bound_by(n)), root)) for n in (None, 20)}


def bound_by(max_rows: int | None) -> dict[str, Any]:
    return HOLDOUT if max_rows is None else {**HOLDOUT, "maxRows": max_rows}


def thin(percent: int, **fields: Any) -> dict[str, Any]:
    return {"downsample": {"keepPercent": percent, **fields}}


@example(added=[(thin(0), 0)], fusion=True, max_rows=None)
@example(added=[(thin(0), 3), (thin(100), 1)], fusion=False, max_rows=20)
@example(
    added=[
        (thin(50, where="clicked = 0", weightColumn="weight"), 0),
        (thin(50, where="score < 0.5", weightColumn="boost", seed=1), 2),
        (thin(50, seed=1), 5),
    ],
    fusion=False,
    max_rows=20,
)
@given(
    added=st.lists(st.tuples(downsamples, st.integers(0, 5)), max_size=3),
    fusion=st.booleans(),
    max_rows=st.sampled_from([None, 20]),
)
@settings(max_examples=examples(25), deadline=None)
def test_downsampling_changes_no_evaluation_row(
    root: str,
    expected: dict[int | None, list[int]],
    added: list[tuple[dict[str, Any], int]],
    fusion: bool,
    max_rows: int | None,
) -> None:
    steps = list(COMMON)
    for step, place in added:
        steps.insert(place, step)
    options = {"debug": {"fusion": fusion}}
    variant = plan_of(make(steps, bound_by(max_rows), options=options), root)
    assert rows_of(variant) == expected[max_rows]


@pytest.mark.parametrize("step", ["downsample", "sample"])
@pytest.mark.parametrize("apply_to", ["Training", "All", None])
def test_apply_to_decides_which_rows_are_thinned(
    root: str, step: str, apply_to: str | None
) -> None:
    body = {"keepPercent": 30} | ({"applyTo": apply_to} if apply_to else {})
    whole, thinned = (plan_of(make(p, HOLDOUT), root) for p in ([], [{step: body}]))
    assert len(rows_of(thinned, "training")) < len(rows_of(whole, "training"))
    keeps_all = (apply_to or {"downsample": "Training", "sample": "All"}[step]) == "Training"
    assert (rows_of(thinned) == rows_of(whole)) is keeps_all


@pytest.mark.parametrize(("name", "weight"), [("weight", 1.0), ("boost", 2.0)])
def test_evaluation_keeps_weights_before_sampling(root: str, name: str, weight: float) -> None:
    step = {"downsample": {"keepPercent": 50, "weightColumn": name}}
    plan = plan_of(make([step], HOLDOUT, weightColumn=name), root)
    assert set(rows_of(plan, column=name)) == {weight}
    assert set(rows_of(plan, "training", column=name)) == {2 * weight}


@pytest.mark.parametrize("pipeline", [[], [{"filter": {"where": "score < 0.1"}}]])
def test_max_rows_keeps_smallest_hashes(root: str, pipeline: list[dict[str, Any]]) -> None:
    # The filter prunes row groups, which must not change what the bound is.
    everything = rows_of(plan_of(make(pipeline, HOLDOUT), root))
    small, larger = (plan_of(make(pipeline, {**HOLDOUT, "maxRows": n}), root) for n in (10, 40))
    assert set(rows_of(small)) <= set(rows_of(larger)) <= set(everything)
    assert rows_of(small, "training") == rows_of(larger, "training")
    if not pipeline:
        assert (len(rows_of(small)), len(rows_of(larger))) == (10, 40)


def test_more_max_rows_than_rows_bounds_nothing(root: str) -> None:
    plan = build_plan(make([], HOLDOUT), root)
    assert count_matches(plan.matching["evaluation"], NUM_ROWS).bound is None


def test_max_rows_needs_rows_of_several_identities(root: str) -> None:
    experiment = make([], {"where": "score < 0.5", "maxRows": 10}, row_key="same")
    with pytest.raises(ManifestError) as raised:
        plan_of(experiment, root)
    assert_told(str(raised.value), "spec.training.evaluation.maxRows: … 10 … rowKey")


NO_ROW = {
    "statistics show it": ({"where": "score > 7"}, "where"),
    "only reading shows it": ({"where": "score > 0.1 and id % 1000 = 999"}, "where"),
    "a percentage of few rows": ({"holdoutPercent": "0.000001"}, "holdoutPercent"),
}


@pytest.mark.parametrize(("evaluation", "field"), NO_ROW.values(), ids=NO_ROW.keys())
def test_an_evaluation_without_rows_is_refused(
    root: str, evaluation: dict[str, Any], field: str
) -> None:
    experiment = make([], evaluation)
    plan = build_plan(experiment, root)
    assert not has_row(plan.matching["evaluation"])
    with pytest.raises(ManifestError) as raised:
        check_training(experiment, plan)
    assert_told(
        str(raised.value), f"spec.training.evaluation.{field}: … {plan.main.table.description}"
    )


def test_counts_are_those_of_the_rows(root: str) -> None:
    evaluation = {**HOLDOUT, "maxRows": 10}
    experiment = make([{"downsample": {"keepPercent": 1}}], evaluation)
    counts = count_roles(build_plan(experiment, root), experiment.spec.training.evaluation)
    assert counts is not None
    matching = len(rows_of(build_plan(make([], HOLDOUT), root)))
    assert (counts.matching, counts.evaluation) == (matching, 10)
    assert counts.training == NUM_ROWS - matching
    assert Pipeline.read_parquet("t/").plan(root).matching == {}


def test_explain_names_steps_that_skip_the_evaluation(root: str) -> None:
    steps = [{"downsample": {"keepPercent": 50}}, {"sample": {"keepPercent": 50}}]
    [line] = [
        line
        for line in explain(plan_of(make(steps, HOLDOUT), root)).splitlines()
        if line.startswith("Evaluation:")
    ]
    assert "spec.pipeline[0] downsample" in line
    assert "sample," not in line.replace("downsample,", "")


def test_evaluated_rows_carry_their_request(root: str) -> None:
    stream = plan_of(make([], HOLDOUT), root).streams["evaluation"]
    pairs = set()
    for group in stream.groups(0, stream.chunk_rows):
        for chunk in read_group(stream, group, stream.chunk_rows):
            requests = np.array(chunk.table.column("id")) // 4
            hashes = chunk.table.column(GROUP_HASH_COLUMN).to_pylist()
            pairs |= set(zip(requests.tolist(), hashes, strict=True))
    assert len(pairs) == len({request for request, _ in pairs}) == len({h for _, h in pairs})
