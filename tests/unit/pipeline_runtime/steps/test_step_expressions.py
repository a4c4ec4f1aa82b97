"""`filter`, `derive` and `weight`: what they make of an expression's values."""

from __future__ import annotations

import pyarrow as pa
import pytest
from facts import assert_all_told, assert_told
from step_models import derive

from pipeline_runtime.errors import ManifestError, StepError
from pipeline_runtime.steps.base import ROW_HASH_COLUMN
from pipeline_runtime.steps.derive.transform import Derive
from pipeline_runtime.steps.filter.model import FilterStep
from pipeline_runtime.steps.filter.transform import Filter
from pipeline_runtime.steps.weight.model import WeightStep
from pipeline_runtime.steps.weight.transform import Weight

TABLE = pa.table(
    {
        "x": pa.array([1, 2, None, 4]),
        "s": ["a", None, "ü", "a"],
        ROW_HASH_COLUMN: pa.array([1, 2, 3, 4], pa.uint64()),
    }
)
SCHEMA = TABLE.schema.remove(2)


def test_filter_drops_false_and_null_and_keeps_all_columns() -> None:
    bound = Filter.bind(FilterStep(where="x > 1"), SCHEMA)
    assert bound(TABLE).to_pydict() == {"x": [2, 4], "s": [None, "a"], ROW_HASH_COLUMN: [2, 4]}
    assert bound.mask(TABLE).to_pylist() == [False, True, False, True]
    assert (bound.inputs, bound.outputs, bound.changes_rows) == ({"x"}, frozenset(), True)


def test_filter_of_no_rows_gives_no_rows() -> None:
    assert Filter.bind(FilterStep(where="x > 1"), SCHEMA)(TABLE.slice(0, 0)).num_rows == 0


def test_filter_of_a_column_that_is_not_boolean_is_refused() -> None:
    with pytest.raises(ManifestError, match=r"filter\.where: "):
        Filter.bind(FilterStep(where="x + 1"), SCHEMA)


def test_derive_sees_the_columns_as_they_were() -> None:
    bound = Derive.bind(derive({"x": "x + 1", "y": "x * 10", "z": "s"}), SCHEMA)
    derived = bound(TABLE)
    assert derived["x"].to_pylist() == [2, 3, None, 5]
    assert derived["y"].to_pylist() == [10, 20, None, 40]
    assert bound.output_schema.names == ["x", "s", "y", "z"]
    assert derived.select(bound.output_schema.names).schema.types == bound.output_schema.types
    assert (bound.inputs, bound.outputs) == ({"x", "s"}, {"x", "y", "z"})
    assert derived[ROW_HASH_COLUMN].to_pylist() == [1, 2, 3, 4]


def test_derive_leaves_out_what_its_table_has_no_columns_for() -> None:
    bound = Derive.bind(derive({"x": "s", "y": "x * 10"}), SCHEMA)
    assert bound(TABLE.select(["x"])).schema.names == ["y"]  # never the old x for the new one


def test_derive_reports_every_broken_expression() -> None:
    with pytest.raises(ManifestError) as caught:
        Derive.bind(derive({"a": "x +", "b": "nope", "c": "x"}), SCHEMA)
    paths = [problem.path for problem in caught.value.problems]
    assert paths == ["derive.columns[0].expression", "derive.columns[1].expression"]


def weigh(table: pa.Table, by: str, column: str = "w") -> pa.ChunkedArray:
    schema = table.schema
    return Weight.bind(WeightStep(column=column, by=by), schema)(table)[column]


def test_weight_is_made_as_float32_with_null_as_zero() -> None:
    weights = weigh(TABLE, "x / 2")
    assert weights.type == pa.float32()
    assert weights.to_pylist() == [0.5, 1.0, 0.0, 2.0]


@pytest.mark.parametrize("data_type", [pa.float32(), pa.float64()], ids=str)
def test_weight_multiplies_what_is_there_in_its_type(data_type: pa.DataType) -> None:
    table = TABLE.append_column("w", pa.array([2, 2, 2, None], data_type))
    weights = weigh(table, "x")
    assert weights.type == data_type
    assert weights.to_pylist() == [2.0, 4.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("by", "got"),
    [
        pytest.param("x - 3", "-2.0 … 'w' … x - 3", id="a negative weight"),
        pytest.param("x * 1e300", "inf … 'w' … x * 1e300", id="a weight that float32 cannot hold"),
    ],
)
def test_weight_refuses_values_that_are_no_weights(by: str, got: str) -> None:
    with pytest.raises(StepError) as caught:
        weigh(TABLE, by)
    assert_told(str(caught.value), f"… {got}")


def test_weight_refuses_nan() -> None:
    table = pa.table({"f": [1.0, float("nan")]})
    with pytest.raises(StepError) as caught:
        weigh(table, "f")
    assert_told(str(caught.value), "… nan … 'w' … f")


def test_weight_checks_its_column_and_its_factor() -> None:
    with pytest.raises(ManifestError) as caught:
        Weight.bind(WeightStep(column="x", by="s"), SCHEMA)
    expected = [
        "weight.column: … 'x' … int64",
        "weight.by: … 's' … string",
    ]
    assert_all_told([str(problem) for problem in caught.value.problems], expected)


def test_weight_is_left_out_when_its_inputs_are() -> None:
    bound = Weight.bind(WeightStep(column="w", by="x"), SCHEMA)
    assert bound(TABLE.select(["s"])).schema.names == ["s"]
