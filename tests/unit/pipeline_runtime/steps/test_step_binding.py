"""`bind_step` and `bind_pipeline`: what each step makes of the schema, and all problems at once."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from step_models import cast, derive, rename

from pipeline_runtime.config.dataset import ParquetSource
from pipeline_runtime.config.step_model import StepModel
from pipeline_runtime.config.step_registry import load_models
from pipeline_runtime.config.steps import Step
from pipeline_runtime.errors import ManifestError, SourceError
from pipeline_runtime.steps.anti_join.model import AntiJoinStep
from pipeline_runtime.steps.base import (
    ROW_HASH_COLUMN,
    BindContext,
    SideTable,
    SideTableRequest,
    Transform,
)
from pipeline_runtime.steps.binding import bind_pipeline, bind_step, load_transform
from pipeline_runtime.steps.filter.model import FilterStep
from pipeline_runtime.steps.join.model import JoinStep
from pipeline_runtime.steps.map.model import MapStep
from pipeline_runtime.steps.select.model import SelectStep
from pipeline_runtime.steps.side_tables import side_table_of
from pipeline_runtime.steps.weight.model import WeightStep

SCHEMA = pa.schema([("user", pa.int64()), ("clicks", pa.int32()), (ROW_HASH_COLUMN, pa.uint64())])
SOURCE = ParquetSource(uri="spam.parquet")


def spam_users(request: SideTableRequest) -> SideTable:
    return side_table_of(pa.table({"user": [1]}))


def no_such_file(request: SideTableRequest) -> SideTable:
    raise SourceError("spam.parquet: must exist, got no such file")


CONTEXT = BindContext(open_side_table=spam_users)


def problems_of(steps: list[Step | StepModel], context: BindContext = CONTEXT) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        bind_pipeline(steps, SCHEMA, context)
    return [problem.path for problem in caught.value.problems]


def test_each_step_is_bound_to_what_the_one_before_puts_out() -> None:
    steps = [
        Step(derive=derive({"rate": "clicks / 10"})),
        Step(filter=FilterStep(where="rate > 0.5")),
        Step(anti_join=AntiJoinStep(parquet=SOURCE, keys=("user",))),
        Step(weight=WeightStep(column="w", by="rate")),
        Step(select=SelectStep(columns=("rate", "w"))),
    ]
    bound = bind_pipeline(steps, SCHEMA, CONTEXT)
    assert [transform.kind for transform in bound] == [
        "derive",
        "filter",
        "antiJoin",
        "weight",
        "select",
    ]
    assert bound[-1].output_schema.names == ["rate", "w"]
    assert all(isinstance(transform, Transform) for transform in bound)
    table = pa.table({"user": [1, 2, 3], "clicks": pa.array([9, 9, 1], pa.int32())})
    for transform in bound:
        table = transform(table)
    assert table["rate"].to_pylist() == [0.9]


@pytest.mark.parametrize("model", load_models().values(), ids=lambda model: model.kind())
def test_every_step_has_a_transform(model: type[StepModel]) -> None:
    assert load_transform(model).kind == model.kind()


def test_a_problem_carries_the_path_of_its_step() -> None:
    with pytest.raises(ManifestError) as caught:
        bind_step(FilterStep(where="clikcs > 1"), SCHEMA, CONTEXT, "spec.pipeline[3]")
    assert caught.value.problems[0].path == "spec.pipeline[3].filter.where"
    assert "clikcs" in caught.value.problems[0].message


def test_lastmiles_own_columns_are_in_no_schema() -> None:
    bound = bind_step(FilterStep(where="clicks > 1"), SCHEMA, CONTEXT)
    assert bound.output_schema.names == ["user", "clicks"]


ALL_AT_ONCE: list[Any] = [
    pytest.param(
        [FilterStep(where="nope > 1"), SelectStep(columns=("user", "usr"))],
        ["spec.pipeline[0].filter.where", "spec.pipeline[1].select.columns[1]"],
        id="problems of several steps",
    ),
    pytest.param(
        [derive({"y": "nope"}), FilterStep(where="y > 1"), FilterStep(where="z")],
        ["spec.pipeline[0].derive.columns[0].expression", "spec.pipeline[2].filter.where"],
        id="a problem that follows from an earlier one is left out",
    ),
    pytest.param(
        [cast({"user": "itn8"}), FilterStep(where="user = 'a'")],
        ["spec.pipeline[0].cast.columns[0].type"],
        id="the type of a column whose cast failed is not known",
    ),
    pytest.param(
        [rename({"usr": "id"}), SelectStep(columns=("id", "clicks", "x"))],
        ["spec.pipeline[0].rename.columns[0].name", "spec.pipeline[1].select.columns[2]"],
        id="the new name of a failed rename is not reported",
    ),
    pytest.param(
        [
            MapStep(function="no_such_module:f"),
            FilterStep(where="made > 1"),
            FilterStep(where="user"),
        ],
        ["spec.pipeline[0].map.function", "spec.pipeline[2].filter.where"],
        id="a failed map may have made any column",
    ),
]


@pytest.mark.parametrize(("steps", "paths"), ALL_AT_ONCE)
def test_all_problems_are_reported_once(steps: list[Step | StepModel], paths: list[str]) -> None:
    assert problems_of(steps) == paths


def test_a_join_that_cannot_be_opened_hides_no_other_problem() -> None:
    steps: list[Step | StepModel] = [
        JoinStep(parquet=SOURCE, keys=("user",)),
        FilterStep(where="age > 18"),
        FilterStep(where="user = 'a'"),
    ]
    paths = problems_of(steps, BindContext(open_side_table=no_such_file))
    assert paths == ["spec.pipeline[0].join", "spec.pipeline[2].filter.where"]
