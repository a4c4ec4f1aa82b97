"""The steps of a run that preprocess the rows for its model, and those that do not."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_runtime.config.steps import Step
from pipeline_runtime.errors import CheckpointError, ManifestError, StepError
from pipeline_runtime.models.scoring.preprocessing import bind_preprocessing, choose_steps
from pipeline_runtime.plan.side_table_loading import open_side_table
from pipeline_runtime.sources import Opening
from pipeline_runtime.steps.base import BindContext, ModelRequest, Scorer, Transform
from pipeline_runtime.steps.binding import bind_step
from pipeline_runtime.steps.predict.model import PredictModel

JOIN = {"parquet": {"uri": "users.parquet"}, "keys": ["user"]}


def choose(steps: list[dict[str, Any]], inputs: str, known: str) -> list[dict[str, Any]]:
    """Return the chosen steps as a manifest has them; columns are given as words."""
    models = [Step.model_validate(step, strict=False).config for step in steps]
    chosen = choose_steps(models, frozenset(inputs.split()), frozenset(known.split()))
    return [
        {step.kind(): step.model_dump(mode="json", by_alias=True, exclude_unset=True)}
        for step in chosen
    ]


def derive(**columns: str) -> dict[str, Any]:
    named = [{"name": name, "expression": text} for name, text in columns.items()]
    return {"derive": {"columns": named}}


def test_columns_that_the_model_does_not_read_are_left_out() -> None:
    steps = [derive(x="a * 2", label="clicks > 0"), {"truncate": {"columns": ["s"], "length": 3}}]
    assert choose(steps, "x", "a") == [derive(x="a * 2")]


def test_a_rename_is_reduced_to_the_model() -> None:
    names = [{"name": "a", "newName": "x"}, {"name": "clicks", "newName": "label"}]
    chosen = choose([{"rename": {"columns": names}}], "x", "a")
    assert chosen == [{"rename": {"columns": names[:1]}}]


def test_a_step_before_a_join_is_kept() -> None:
    steps = [derive(x="a * 2"), {"join": JOIN}]
    assert choose(steps, "x age", "a user") == steps


def test_a_join_of_columns_that_are_there_is_left_out() -> None:
    assert choose([{"join": JOIN}], "age", "age user") == []


@pytest.mark.parametrize("given", [None, ["x", "a"]])
def test_a_function_that_may_change_an_input_is_called(given: list[str] | None) -> None:
    function: dict[str, Any] = {"function": "my.module:scale"}
    if given:
        function["inputColumns"] = given
    steps = [derive(a="b + 1"), {"map": function}]
    assert choose(steps, "x", "x b") == steps


def test_a_function_that_gets_no_input_is_left_out() -> None:
    function = {"function": "my.module:scale", "inputColumns": ["a"]}
    assert choose([{"map": function}], "x", "x a") == []


def test_functions_that_change_rows_are_refused() -> None:
    function = {
        "function": "my.module:explode",
        "changesRows": True,
        "outputColumns": [{"name": "x", "type": "int64"}],
    }
    with pytest.raises(ManifestError, match="x comes from map"):
        choose([{"map": function}], "x", "a")


def build_request(schema: pa.Schema, context: BindContext) -> ModelRequest:
    outputs = [{"name": "y", "type": "float32"}]
    model = {"name": "m", "checkpoint": {"uri": "run"}, "outputs": outputs}
    return ModelRequest(
        model=PredictModel.model_validate(model, strict=False),
        input_schema=schema,
        types={"y": pa.float32()},
        device="CPU",
        context=context,
    )


def test_checkpoints_may_not_name_functions_of_python() -> None:
    function = {
        "function": "timeit:timeit",
        "options": {"setup": "import os; os.abort()"},
        "outputColumns": [{"name": "x", "type": "int64"}],
    }
    context = BindContext(open_side_table=lambda _: pytest.fail("no step here joins"))
    request = build_request(pa.schema({"a": pa.int64()}), context)
    with pytest.raises(CheckpointError, match="do not trust this checkpoint"):
        bind_preprocessing(request, {"pipeline": [{"map": function}]}, frozenset("x"), "run")


def test_a_name_that_the_run_made_anew_may_be_in_the_table() -> None:
    names = [{"name": "a", "newName": "x"}]
    context = BindContext(open_side_table=lambda _: pytest.fail("no step here joins"))
    table = pa.table({"a": [1, 2], "x": ["other", "values"]})
    request = build_request(table.schema, context)
    config = {"pipeline": [{"rename": {"columns": names}}]}
    [step] = bind_preprocessing(request, config, frozenset("x"), "run")
    assert step(table.select(["a"]))["x"].to_pylist() == [1, 2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocessed:
    """A model that returns its input; see `steps.base.OpenedModel`."""

    steps: tuple[Transform, ...]
    inputs: tuple[str, ...] = ("x",)
    calls_user_code: bool = False
    sha256: str = ""
    note: str = ""

    def find_invalid(self, _: pa.Table) -> dict[str, Any]:
        return {}

    def load(self) -> Scorer:
        return lambda table: {"y": table["x"].to_numpy().astype(np.float32)}


def test_a_join_that_drops_one_row_and_repeats_another_fails(tmp_path: Path) -> None:
    pq.write_table(pa.table({"user": [1, 1], "x": [1.0, 2.0]}), tmp_path / "users.parquet")
    opening = Opening(storage_root=str(tmp_path))
    join = Step.model_validate({"join": JOIN | {"how": "Inner"}}, strict=False)

    def open_model(request: ModelRequest) -> Preprocessed:
        return Preprocessed(steps=(bind_step(join, request.input_schema, request.context),))

    context = BindContext(
        open_side_table=lambda request: open_side_table(request, opening), open_model=open_model
    )
    model = {
        "name": "m",
        "checkpoint": {"uri": "run"},
        "outputs": [{"name": "y", "type": "float32"}],
    }
    table = pa.table({"user": [1, 2]})
    step = bind_step(
        Step.model_validate({"predict": {"models": [model]}}, strict=False), table.schema, context
    )
    assert step.digests  # of the side table
    assert step.way == ", preprocessed by join"
    assert step(table.slice(0, 0)).num_rows == 0
    with pytest.raises(StepError, match="made 2 rows of 2, and dropped or repeated some"):
        step(table)
