"""`rename`, `select`, `drop`, `cast` and `fillNull`: columns by name, type and constant."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from facts import assert_all_told, assert_told
from hypothesis import given
from hypothesis import strategies as st
from step_models import cast, fill_null, rename

from pipeline_runtime.config.base import SpecModel
from pipeline_runtime.errors import ManifestError, StepError
from pipeline_runtime.steps.base import ROW_HASH_COLUMN, BoundStep
from pipeline_runtime.steps.cast.model import CastStep
from pipeline_runtime.steps.cast.transform import Cast
from pipeline_runtime.steps.drop.model import DropStep
from pipeline_runtime.steps.drop.transform import Drop
from pipeline_runtime.steps.fill_null.model import FillNullStep
from pipeline_runtime.steps.fill_null.transform import FillNull
from pipeline_runtime.steps.rename.model import RenameStep
from pipeline_runtime.steps.rename.transform import Rename
from pipeline_runtime.steps.select.model import SelectStep
from pipeline_runtime.steps.select.transform import Select

TABLE = pa.table(
    {
        "a": [1, None],
        "b": ["x", "y"],
        "c": [True, None],
        ROW_HASH_COLUMN: pa.array([1, 2], pa.uint64()),
    }
)
SCHEMA = TABLE.schema.remove(3)
KINDS: dict[type[SpecModel], Any] = {
    RenameStep: Rename,
    SelectStep: Select,
    DropStep: Drop,
    CastStep: Cast,
    FillNullStep: FillNull,
}


def bind(config: SpecModel, schema: pa.Schema = SCHEMA) -> BoundStep:
    bound: BoundStep = KINDS[type(config)].bind(config, schema)
    return bound


NAMES = [
    pytest.param(rename({"a": "b", "b": "a"}), ["b", "a", "c"], id="rename trades two names"),
    pytest.param(rename({"c": "d"}), ["a", "b", "d"], id="rename keeps the place"),
    pytest.param(SelectStep(columns=("c", "a")), ["c", "a"], id="select orders"),
    pytest.param(DropStep(columns=("b",)), ["a", "c"], id="drop leaves the others"),
]


@pytest.mark.parametrize(("config", "names"), NAMES)
def test_columns_come_out_under_these_names(config: SpecModel, names: list[str]) -> None:
    bound = bind(config)
    out = bound(TABLE)
    assert bound.output_schema.names == names
    assert out.schema.names == [*names, ROW_HASH_COLUMN]
    assert not bound.changes_rows
    assert bound(TABLE.slice(0, 0)).schema == out.schema


@pytest.mark.parametrize(("config", "names"), NAMES)
def test_columns_that_the_planner_left_out_stay_out(config: SpecModel, names: list[str]) -> None:
    out = bind(config)(TABLE.select(["c"]))
    assert out.schema.names == [name for name in names if name in ("c", "d")]


def test_rename_moves_values_with_their_names() -> None:
    out = bind(rename({"a": "b", "b": "a"}))(TABLE)
    assert out["b"].to_pylist() == [1, None]
    assert out["a"].to_pylist() == ["x", "y"]


def test_select_of_no_present_column_keeps_the_number_of_rows() -> None:
    assert bind(SelectStep(columns=("a",)))(TABLE.select(["c"])).num_rows == 2


BROKEN = [
    pytest.param(
        rename({"aa": "z", "a": "b"}),
        [
            "rename.columns[0].name: … 'aa' … 'a'",
            "rename.columns[1].newName: … 'b'",
        ],
        id="rename of an unknown column and to a name that is taken",
    ),
    pytest.param(
        SelectStep(columns=("a", "zzz")),
        [
            "select.columns[1]: … 'zzz' … a, b, c",
        ],
        id="select of an unknown column",
    ),
    pytest.param(
        DropStep(columns=("a", "b", "c")),
        ["drop.columns: … 3"],
        id="drop of everything",
    ),
    pytest.param(
        cast({"a": "itn32", "b": "list<int64>", "q": "int8"}),
        [
            "cast.columns[0].type: … 'itn32' … 'int32'",
            "cast.columns[1].type: … string … 'list<int64>'",
            "cast.columns[2].name: … 'q' … a, b, c",
        ],
        id="casts to no type, to an impossible one and of no column",
    ),
    pytest.param(
        fill_null({"a": "x", "b": 1, "c": 0}),
        [
            "fillNull.columns[0].value: … int64 … 'x'",
            "fillNull.columns[1].value: … string … 1",
            "fillNull.columns[2].value: … bool … 0",
        ],
        id="constants of another kind",
    ),
    pytest.param(
        fill_null({"a": "1.5"}),
        ["fillNull.columns[0].value: … int64 … 1.5"],
        id="a fraction for an integer",
    ),
]


@pytest.mark.parametrize(("config", "expected"), BROKEN)
def test_a_broken_step_reports_every_problem(config: SpecModel, expected: list[str]) -> None:
    with pytest.raises(ManifestError) as caught:
        bind(config)
    assert_all_told([str(problem) for problem in caught.value.problems], expected)


@pytest.mark.parametrize(
    ("data_type", "value", "advice"),
    [
        (pa.bool_(), "true", "true without quotes"),
        (pa.bool_(), "False", "false without quotes"),
        (pa.bool_(), 1, "true or false"),
        (pa.string(), 1, "quote"),
        (pa.string(), True, "quote"),
        (pa.float32(), "x", "number"),
        (pa.float32(), True, "number"),
        (pa.date32(), 20260101, "quote"),
        (pa.int8(), 128, "cast"),
        (pa.list_(pa.int64()), 0, "cast"),
    ],
)
def test_a_constant_of_another_type_gets_a_hint(
    data_type: pa.DataType, value: Any, advice: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        bind(fill_null({"v": value}), pa.schema([("v", data_type)]))
    assert advice in str(caught.value).rpartition("; ")[2]


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        pytest.param(pa.int8(), 128, id="int8 ends at 127"),
        pytest.param(pa.uint8(), -1, id="uint8 begins at 0"),
        pytest.param(pa.float32(), "1e39", id="float32 ends before 1e39"),
        pytest.param(pa.float64(), "1e999", id="float64 ends before 1e999"),
        pytest.param(pa.float64(), "nan", id="NaN is no number"),
        pytest.param(pa.int64(), "1_000", id="an integer is plain digits"),
        pytest.param(pa.date32(), "yesterday", id="a date is written year-month-day"),
        pytest.param(pa.list_(pa.int64()), 0, id="a list has no constant"),
        pytest.param(pa.int64(), True, id="true is no integer"),
        pytest.param(pa.uint64(), str(2**64), id="uint64 ends before 2**64"),
        pytest.param(pa.decimal128(4, 2), 100, id="a decimal of two digits before its point"),
        pytest.param(pa.decimal128(4, 2), "0.125", id="a decimal of two digits after its point"),
    ],
)
def test_a_constant_out_of_range_is_refused(data_type: pa.DataType, value: Any) -> None:
    with pytest.raises(ManifestError) as caught:
        bind(fill_null({"v": value}), pa.schema([("v", data_type)]))
    assert_told(str(caught.value), f"fillNull.columns[0].value: … {data_type} … {value!r}")


FILLS = [
    pytest.param(pa.array([1, None], pa.int8()), 7, [1, 7], id="integer"),
    pytest.param(pa.array([1.5, None], pa.float32()), 0, [1.5, 0.0], id="float from an integer"),
    pytest.param(pa.array([1.5, None], pa.float64()), "-0.1", [1.5, -0.1], id="float from a text"),
    pytest.param(pa.array([1, None], pa.int8()), "-5", [1, -5], id="integer from a text"),
    pytest.param(pa.array(["a", None]), "0.5", ["a", "0.5"], id="a text of digits"),
    pytest.param(
        pa.array([1, None], pa.uint64()), str(2**64 - 1), [1, 2**64 - 1], id="widest integer"
    ),
    pytest.param(
        pa.array([None], pa.decimal128(10, 2)), 0, [Decimal("0.00")], id="decimal from an integer"
    ),
    pytest.param(pa.array([None], pa.decimal128(10, 2)), "0.1", [Decimal("0.10")], id="decimal"),
    pytest.param(pa.array(["a", None]), "ü", ["a", "ü"], id="string"),
    pytest.param(pa.array([None, True]), False, [False, True], id="bool"),
    pytest.param(
        pa.array(["a", None]).dictionary_encode(), "new", ["a", "new"], id="dictionary, new value"
    ),
    pytest.param(
        pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["a", None])),
        "b",
        ["a", "b"],
        id="null inside a dictionary",
    ),
    pytest.param(
        pa.array([None], pa.timestamp("us")),
        "2024-02-29 12:00:00",
        [datetime.datetime(2024, 2, 29, 12)],
        id="timestamp",
    ),
    pytest.param(pa.array([], pa.int64()), 1, [], id="no rows"),
]


@pytest.mark.parametrize(("array", "value", "expected"), FILLS)
def test_fill_null_replaces_nulls_and_keeps_the_type(
    array: pa.Array, value: Any, expected: list[Any]
) -> None:
    table = pa.table({"v": array})
    filled = bind(fill_null({"v": value}), table.schema)(table)["v"]
    assert filled.to_pylist() == expected
    assert filled.type == array.type


@given(values=st.lists(st.none() | st.integers(-5, 5)), cut=st.integers(0, 5))
def test_fill_null_is_the_plain_loop_over_slices(values: list[int | None], cut: int) -> None:
    table = pa.table({"v": pa.array(values, pa.int64())}).slice(cut)
    filled = bind(fill_null({"v": 9}), table.schema)(table)
    assert filled["v"].to_pylist() == [9 if value is None else value for value in values[cut:]]


CASTS = [
    pytest.param(pa.array([1, None]), "int8", [1, None], id="to a narrower integer"),
    pytest.param(pa.array([1, None]), "string", ["1", None], id="to text"),
    pytest.param(pa.array(["1", None]), "int64", [1, None], id="from text"),
    pytest.param(pa.array([7, None]), "decimal128(4, 2)", [Decimal("7.00"), None], id="to decimal"),
    pytest.param(pa.array([2**53 + 1]), "double", [float(2**53)], id="to the nearest float"),
    pytest.param(pa.array([[2**53 + 1]]), "list<double>", [[float(2**53)]], id="items of a list"),
    pytest.param(pa.array(["a", "a", None]), "dictionary<string>", ["a", "a", None], id="encoded"),
    pytest.param(
        pa.array(["1", None]).dictionary_encode(), "int16", [1, None], id="from a dictionary"
    ),
    pytest.param(pa.array([1, 2]), "dictionary<int64>", [1, 2], id="integers encoded"),
    pytest.param(pa.array([0, 1]), "bool", [False, True], id="to bool"),
    pytest.param(pa.array([float("inf")]), "float", [float("inf")], id="infinite stays infinite"),
]


@pytest.mark.parametrize(("array", "type_name", "expected"), CASTS)
def test_cast_converts_values(array: pa.Array, type_name: str, expected: list[Any]) -> None:
    table = pa.table({"v": pa.chunked_array([array, array])})
    bound = bind(cast({"v": type_name}), table.schema)
    out = bound(table)["v"]
    assert out.to_pylist() == expected * 2
    assert out.type == bound.output_schema.field("v").type
    assert bound(table.slice(0, 0))["v"].type == out.type


TOO_LARGE = [
    pytest.param(pa.array([1, 300]), "int8", "300", id="an integer"),
    pytest.param(pa.array([1.5]), "int64", "1.500000", id="a fraction"),
    pytest.param(pa.array([100]), "decimal128(4, 2)", "precision 4", id="a decimal"),
    pytest.param(pa.array([1e39]), "float32", "1e+39", id="a float"),
    pytest.param(pa.array(["abc"]), "int64", "'abc'", id="a text that is no number"),
    pytest.param(pa.array([[300]]), "list<int8>", "300", id="an item of a list"),
    pytest.param(pa.array([300]).dictionary_encode(), "int8", "300", id="a dictionary's value"),
]


@pytest.mark.parametrize(("array", "type_name", "value"), TOO_LARGE)
def test_a_value_that_does_not_fit_is_named(array: pa.Array, type_name: str, value: str) -> None:
    table = pa.table({"v": array})
    with pytest.raises(StepError) as caught:
        bind(cast({"v": type_name}), table.schema)(table)
    assert_told(str(caught.value), f"cast.columns[v]: … {value}")


@given(
    values=st.lists(st.none() | st.integers(-(2**40), 2**40)),
    type_name=st.sampled_from(["int8", "uint16", "int32", "uint64", "string", "float64"]),
)
def test_cast_is_the_plain_conversion_or_an_error(values: list[int | None], type_name: str) -> None:
    table = pa.table({"v": pa.array(values, pa.int64())})
    bound = bind(cast({"v": type_name}), table.schema)
    try:
        expected = pa.array(
            [None if v is None else (str(v) if type_name == "string" else v) for v in values],
            bound.output_schema.field("v").type,
        ).to_pylist()
    except (OverflowError, pa.ArrowInvalid):
        with pytest.raises(StepError):
            bound(table)
    else:
        assert bound(table)["v"].to_pylist() == expected
