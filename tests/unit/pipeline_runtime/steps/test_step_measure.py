"""The step `measure`: rows pass, and every manifest that cannot be measured is refused."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from facts import assert_all_told, assert_told

from pipeline_runtime import Pipeline
from pipeline_runtime.config import parse_experiment
from pipeline_runtime.errors import ManifestError
from pipeline_runtime.plan import build_plan
from pipeline_runtime.steps.base import BindContext
from pipeline_runtime.steps.binding import bind_step
from pipeline_runtime.steps.measure.model import MeasureStep
from pipeline_runtime.steps.measure.transform import Measure

TABLE = pa.table(
    {
        "score": pa.array([0.1, 0.8, None, 0.3], pa.float32()),
        "label": [False, True, True, None],
        "country": ["de", "de", "fr", None],
        "day": pa.array([1, 2, 3, 4], pa.date32()),
        "history": [[1], [2], [3], [4]],
    }
)
AUC = {"score": "score", "label": "label"}


class Incomplete:
    """An accumulator that cannot be merged."""

    def init(self) -> int:
        return 0

    def update(self, state: int, table: pa.Table) -> int:
        return state

    def finish(self, state: int) -> int:
        return state


def bind(*metrics: dict[str, Any]) -> Measure:
    model = MeasureStep.model_validate({"metrics": metrics}, strict=False)
    context = BindContext(open_side_table=lambda request: pytest.fail("no join"))
    step = bind_step(model, TABLE.schema, context)
    assert isinstance(step, Measure)
    return step


def test_rows_pass_and_only_read_columns_are_needed() -> None:
    step = bind({"name": "auc", "auc": AUC, "groupBy": ["country"], "where": "day is not null"})
    assert step(TABLE) is TABLE
    assert step.inputs == {"score", "label", "country", "day"}
    assert (step.outputs, step.changes_rows, step.keeps_places) == (frozenset(), False, True)


def test_every_kind_is_measured_and_merged() -> None:
    step = bind(
        {"name": "auc", "auc": AUC, "groupBy": ["country"]},
        {"name": "gauc", "auc": AUC, "per": "country"},
        {"name": "loss", "logLoss": AUC},
        {"name": "entropy", "normalizedEntropy": AUC},
        {"name": "calibration", "calibration": AUC},
        {"name": "confusion", "confusion": AUC | {"thresholds": ["0.5"]}},
        {"name": "ndcg", "ndcg": AUC, "per": "country"},
        {"name": "mean", "mean": {"column": "label"}, "where": "country = 'de'"},
        {"name": "median", "quantiles": {"column": "score", "atPercent": [50]}},
        {"name": "days", "distinct": {"column": "day"}},
        {"name": "top", "topK": {"column": "country", "k": 1}},
    )
    parts = [step.load(step.observe(TABLE.slice(start, 2))[1]) for start in (0, 2)]
    found = {result["name"]: result for result in step.finish(step.merge(parts))}
    assert (found["auc"]["value"], found["gauc"]["value"], found["ndcg"]["value"]) == (1, 1, 1)
    assert found["auc"]["rows"] == 2
    assert found["auc"]["leftOut"] == {"score": 1, "label": 1}
    assert (found["mean"]["value"], found["mean"]["rows"]) == (0.5, 2)
    assert (found["days"]["value"], found["top"]["top"]) == (4, [{"value": "de", "rows": 2}])


@pytest.mark.parametrize(
    ("metric", "facts"),
    [
        ({"auc": {"score": "scores", "label": "label"}}, "auc.score: … 'scores' … 'score'"),
        ({"auc": {"score": "country", "label": "label"}}, "auc.score: … 'country' … string"),
        ({"mean": {"column": "day"}}, "mean.column: … 'day' … date32"),
        ({"mean": {"column": "score", "weight": "history"}}, "mean.weight: … 'history' … list"),
        ({"distinct": {"column": "score"}}, "distinct.column: … float"),
        ({"auc": AUC, "groupBy": ["country", "score"]}, "groupBy[1]: … float"),
        ({"auc": AUC, "per": "user"}, "per: … 'user'"),
        ({"auc": AUC, "where": "score"}, "where: … boolean"),
        (
            {"accumulator": {"function": "no_such_module:x", "columns": ["score"]}},
            "accumulator.function: … 'no_such_module'",
        ),
        (
            {"accumulator": {"function": "json:JSONDecodeError", "columns": ["score"]}},
            "accumulator.function: … TypeError",
        ),
        (
            {"accumulator": {"function": "collections:OrderedDict", "columns": ["scores"]}},
            "accumulator.columns[0]: … 'scores'",
        ),
    ],
)
def test_a_metric_that_cannot_be_measured_is_refused(metric: dict[str, Any], facts: str) -> None:
    with pytest.raises(ManifestError) as caught:
        bind({"name": "m", **metric})
    assert_told(str(caught.value.problems[0]), f"pipeline[0].measure.metrics[0].{facts}")


def test_an_accumulator_without_a_method_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collections, "Incomplete", Incomplete, raising=False)
    with pytest.raises(ManifestError) as caught:
        bind(
            {"name": "m", "accumulator": {"function": "collections:Incomplete", "columns": ["day"]}}
        )
    assert_told(str(caught.value), "… accumulator.function: … merge")


@pytest.mark.parametrize(
    ("metric", "facts"),
    [
        ({}, "spec.pipeline[0].measure.metrics[0]: … auc … none"),
        ({"auc": AUC, "logLoss": AUC}, "spec.pipeline[0].measure.metrics[0]: … auc and logLoss"),
        ({"ndcg": AUC}, "spec.pipeline[0].measure.metrics[0].per: … ndcg"),
        ({"logLoss": AUC, "per": "country"}, "spec.pipeline[0].measure.metrics[0].per: … auc"),
        (
            {"auc": AUC | {"weight": "score"}, "per": "country"},
            "spec.pipeline[0].measure.metrics[0].auc.weight: … per",
        ),
    ],
)
def test_fields_that_contradict_each_other_are_refused(metric: dict[str, Any], facts: str) -> None:
    document = Pipeline.read_parquet("in.parquet").document("m")
    document["spec"]["pipeline"] = [{"measure": {"metrics": [{"name": "m", **metric}]}}]
    document["spec"]["output"] = {"parquet": {"uri": "out/"}}
    with pytest.raises(ManifestError) as caught:
        parse_experiment(document)
    assert_all_told([str(problem) for problem in caught.value.problems], [facts])


def test_a_table_of_partitions_is_not_measured() -> None:
    pipeline = Pipeline.read_parquet("in.parquet").measure({"name": "auc", "auc": AUC})
    document = pipeline.with_catalog("c", uri="https://catalog").document("m")
    iceberg = {"catalog": "c", "table": "d.t"}
    document["spec"]["output"] = {"mode": "OverwritePartitions", "iceberg": iceberg}
    with pytest.raises(ManifestError) as caught:
        parse_experiment(document)
    facts = "spec.pipeline[0]: measure … OverwritePartitions"
    assert_all_told([str(problem) for problem in caught.value.problems], [facts])


def test_a_pipeline_that_is_only_looked_at_measures_nothing(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "in.parquet")
    pipeline = Pipeline.read_parquet("in.parquet").measure({"name": "auc", "auc": AUC})
    assert pipeline.to_table(str(tmp_path)).num_rows == TABLE.num_rows


def test_a_filter_after_measure_prunes_no_row_before_it(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(100)}), tmp_path / "in.parquet", row_group_size=10)
    base = Pipeline.read_parquet("in.parquet")
    count = {"name": "n", "mean": {"column": "x"}}
    for pipeline, num_rows in (
        (base.filter("x < 10").measure(count), 10),
        (base.measure(count).filter("x < 10"), 100),
    ):
        document = pipeline.document("m")
        document["spec"]["output"] = {"parquet": {"uri": "out/"}}
        plan = build_plan(parse_experiment(document), str(tmp_path))
        assert plan.main.scan.pruning.rows_read == num_rows
