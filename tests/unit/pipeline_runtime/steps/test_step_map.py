"""`map`: the user's function found, its options checked, its result held to what it promised."""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from facts import assert_told
from step_models import typed

from pipeline_runtime.config.step_model import MapResources
from pipeline_runtime.errors import ManifestError, StepError
from pipeline_runtime.steps.base import ROW_HASH_COLUMN, public_schema
from pipeline_runtime.steps.map.model import MapStep
from pipeline_runtime.steps.map.transform import Map

TABLE = pa.table(
    {
        "x": [1, 2, 3],
        "f": [0.5, None, 1.5],
        "s": ["a", None, "ü"],
        ROW_HASH_COLUMN: pa.array([7, 8, 9], pa.uint64()),
    }
)
SCHEMA = public_schema(TABLE.schema)


def double(table: pa.Table, factor: int = 2) -> pa.Table:
    assert ROW_HASH_COLUMN not in table.schema.names
    return table.append_column("y", pc.multiply(table["x"], factor))


def only_y(table: pa.Table) -> pa.Table:
    return pa.table({"y": table["x"]})


def needs_rows(table: pa.Table) -> pa.Table:
    return pa.table({"y": [table["x"][0].as_py()] * table.num_rows})


def keyword_only(table: pa.Table, *, size: int, name: str = "") -> pa.Table:
    return table


def anything(table: pa.Table, **options: Any) -> pa.Table:
    return table


def nothing() -> None:
    return


def raises(table: pa.Table) -> pa.Table:
    if table.num_rows:
        raise KeyError("the user's own")
    return table


def rebuilt(table: pa.Table) -> pa.Table:
    return pa.table({"x": table["x"], ROW_HASH_COLUMN: table[ROW_HASH_COLUMN]})


def first_row_twice(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table.slice(0, 1), table])


def forgets_identity(table: pa.Table) -> pa.Table:
    return pa.table({"x": table["x"].slice(0, 1)})


def fewer(table: pa.Table) -> pa.Table:
    return table.slice(0, 1)


def narrow(table: pa.Table) -> pa.Table:
    return pa.table({"y": table["x"].cast(pa.int32())})


def extra(table: pa.Table) -> pa.Table:
    return pa.table({"y": table["x"], "z": table["x"]})


def a_list(table: pa.Table) -> list[int]:
    return [1]


def numpy_score(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"score": batch["x"] * 0.5, "both": np.stack([batch["x"], batch["x"]], axis=1)}


def numpy_upper(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    values = [None if value is None else value.upper() for value in batch["s"]]
    return {"s": np.array(values, dtype=object)}


def numpy_thin(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: values[::2] for name, values in batch.items()}


def numpy_ragged(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"a": batch["x"], "b": batch["x"][:1]}


def torch_score(batch: dict[str, Any]) -> dict[str, Any]:
    return {"y": batch["x"].double() + 1}


class NotAFunction:
    pass


@pytest.fixture(autouse=True)
def user_module() -> Iterator[None]:
    """This file under a name that an import path can have."""
    module = types.ModuleType("user_functions")
    for name, value in globals().items():
        if not name.startswith("_"):
            setattr(module, name, value)
    sys.modules["user_functions"] = module
    yield
    del sys.modules["user_functions"]


def bind(function: str, schema: pa.Schema = SCHEMA, **options: Any) -> Map:
    return Map.bind(MapStep(function=f"user_functions:{function}", **options), schema)


def test_the_functions_columns_are_added_and_internal_ones_come_back() -> None:
    bound = bind("double", options={"factor": 3})
    out = bound(TABLE)
    assert out["y"].to_pylist() == [3, 6, 9]
    assert out[ROW_HASH_COLUMN].to_pylist() == [7, 8, 9]
    assert bound.output_schema.names == ["x", "f", "s", "y"]
    assert bound.inputs == {"x", "f", "s"}
    assert not (bound.changes_rows)
    assert not (bound.needs_row_hash)
    assert not (bound.runs_alone)


def test_a_bound_map_travels_to_another_process() -> None:
    bound = pickle.loads(pickle.dumps(bind("double")))
    assert bound(TABLE)["y"].to_pylist() == [2, 4, 6]


def test_without_declared_columns_the_result_replaces_what_was_given() -> None:
    assert bind("only_y").output_schema.names == ["y"]
    bound = bind("only_y", input_columns=("x",))
    assert bound.output_schema.names == ["f", "s", "y"]
    assert bound(TABLE).schema.names == ["f", "s", ROW_HASH_COLUMN, "y"]


def test_with_declared_columns_all_others_stay() -> None:
    bound = bind("only_y", output_columns=typed({"y": "int64"}))
    assert bound.output_schema.names == ["x", "f", "s", "y"]
    assert bound.outputs == {"y"}
    assert bound(TABLE)["s"].to_pylist() == ["a", None, "ü"]


def test_columns_that_the_planner_left_out_are_not_needed() -> None:
    bound = bind("only_y", input_columns=("x",), output_columns=typed({"y": "int64"}))
    assert bound(TABLE.select(["x"])).schema.names == ["x", "y"]


def test_a_function_that_may_change_rows_carries_their_identity() -> None:
    bound = bind("first_row_twice", changes_rows=True)
    out = bound(TABLE)
    assert out["x"].to_pylist() == [1, 1, 2, 3]
    assert out[ROW_HASH_COLUMN].to_pylist() == [7, 7, 8, 9]
    assert bound.changes_rows


def test_a_function_is_asked_with_the_identity_that_it_is_to_hand_on() -> None:
    bound = bind("rebuilt", changes_rows=True)
    assert bound.output_schema.names == ["x"]
    assert bound(TABLE)[ROW_HASH_COLUMN].to_pylist() == [7, 8, 9]


def test_numpy_batches_come_and_go() -> None:
    bound = bind("numpy_score", format="Numpy", input_columns=("x",))
    out = bound(TABLE)
    assert out["score"].to_pylist() == [0.5, 1.0, 1.5]
    assert out["both"].to_pylist() == [[1, 1], [2, 2], [3, 3]]
    assert out["both"].type == pa.list_(pa.int64(), 2)


def test_numpy_objects_take_the_type_that_the_column_had() -> None:
    bound = bind("numpy_upper", format="Numpy", input_columns=("s",))
    assert bound(TABLE)["s"].to_pylist() == ["A", None, "Ü"]
    assert bound.output_schema.field("s").type == pa.string()


def test_numpy_rows_may_change_with_their_identity() -> None:
    bound = bind("numpy_thin", format="Numpy", changes_rows=True)
    assert bound(TABLE)[ROW_HASH_COLUMN].to_pylist() == [7, 9]


def test_torch_batches_come_and_go() -> None:
    pytest.importorskip("torch")
    bound = bind("torch_score", format="Torch", input_columns=("x",))
    assert bound(TABLE)["y"].to_pylist() == [2.0, 3.0, 4.0]


def test_no_rows_keep_the_schema() -> None:
    for bound in (bind("double"), bind("numpy_score", format="Numpy", input_columns=("x",))):
        out = public_schema(bound(TABLE.slice(0, 0)).schema)
        assert out == public_schema(bound(TABLE).schema) == bound.output_schema


def test_resources_or_concurrency_make_a_step_run_alone() -> None:
    assert bind("double", resources=MapResources(cpu=2)).runs_alone
    assert bind("double", concurrency=4).runs_alone


def test_the_functions_own_exception_goes_through() -> None:
    with pytest.raises(KeyError, match="the user's own"):
        bind("raises")(TABLE)


BROKEN = [
    pytest.param(
        "no_such_package.module:f",
        {},
        "map.function: … 'no_such_package.module' … 'no_such_package'",
        id="no such module",
    ),
    pytest.param(
        "user_functions:doubel",
        {},
        "map.function: … 'user_functions:doubel' … 'doubel' … 'double'",
        id="no such function",
    ),
    pytest.param(
        "user_functions:NotAFunction",
        {},
        "map.function: … 'user_functions:NotAFunction' … type",
        id="a class",
    ),
    pytest.param(
        "user_functions:double",
        {"options": {"facto": 3}},
        "map.options: … 'facto' … 'factor'",
        id="an unknown option",
    ),
    pytest.param(
        "user_functions:keyword_only",
        {"options": {"name": "n"}},
        "map.options: … 'size'",
        id="a missing option",
    ),
    pytest.param(
        "user_functions:nothing",
        {},
        "map.options: … argument",
        id="a function of no argument",
    ),
    pytest.param(
        "user_functions:needs_rows",
        {},
        "map.outputColumns: … user_functions:needs_rows … IndexError: index out of bounds",
        id="a function that fails on no rows",
    ),
    pytest.param(
        "user_functions:only_y",
        {"output_columns": typed({"y": "it64"})},
        "map.outputColumns[0].type: … 'it64' … 'int64'",
        id="an unknown type",
    ),
    pytest.param(
        "user_functions:only_y",
        {"input_columns": ("xx",)},
        "map.inputColumns[0]: … 'xx' … 'x'",
        id="an unknown input column",
    ),
    pytest.param(
        "user_functions:torch_score",
        {"format": "Torch"},
        "map.format: … 's' … string … inputColumns",
        id="a string for torch",
    ),
    pytest.param(
        "user_functions:torch_score",
        {"format": "Torch", "input_columns": ("x",), "changes_rows": True},
        "map.format: … changesRows … _lastmile_row_hash … 'Torch'",
        id="torch that changes rows",
    ),
]


@pytest.mark.parametrize(("function", "options", "expected"), BROKEN)
def test_a_broken_map_is_found_before_anything_runs(
    function: str, options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        Map.bind(MapStep(function=function, **options), SCHEMA)
    assert_told(str(caught.value), expected)


def test_any_option_goes_to_a_function_of_any_options() -> None:
    assert bind("anything", options={"a": 1}).options == {"a": 1}


def test_a_module_that_raises_while_imported_is_named(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad_user_module.py").write_text("raise RuntimeError('at import')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ManifestError, match=r"bad_user_module.*RuntimeError: at import"):
        Map.bind(MapStep(function="bad_user_module:f"), SCHEMA)


WRONG_RESULTS = [
    pytest.param(
        "fewer",
        {"output_columns": typed({"x": "int64"})},
        "3 … 1 … changesRows",
        id="fewer rows",
    ),
    pytest.param(
        "narrow",
        {"output_columns": typed({"y": "int64"})},
        "'y' … int64 … int32 … outputColumns",
        id="another type",
    ),
    pytest.param(
        "only_y",
        {"output_columns": typed({"z": "int64"})},
        "'z' … int64 … ['y']",
        id="a column that is missing",
    ),
    pytest.param(
        "extra",
        {"output_columns": typed({"y": "int64"})},
        "['y'] … 'z' … outputColumns",
        id="a column that nobody declared",
    ),
    pytest.param(
        "a_list",
        {"output_columns": typed({"y": "int64"})},
        "pyarrow.Table … list",
        id="no table",
    ),
    pytest.param(
        "forgets_identity",
        {"changes_rows": True},
        "_lastmile_row_hash … changesRows … ['x']",
        id="rows without identity",
    ),
    pytest.param(
        "numpy_ragged",
        {"format": "Numpy", "input_columns": ("x",), "output_columns": typed({"a": "int64"})},
        "{'a': 3, 'b': 1}",
        id="arrays of several lengths",
    ),
]


@pytest.mark.parametrize(("function", "options", "expected"), WRONG_RESULTS)
def test_a_result_that_breaks_its_promise_is_refused(
    function: str, options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(StepError) as caught:
        bind(function, **options)(TABLE)
    assert_told(str(caught.value), f"map.function: … user_functions:{function} … {expected}")


def test_nulls_in_integers_do_not_become_numpy() -> None:
    table = pa.table({"x": [1, None]})
    bound = bind("numpy_score", table.schema, format="Numpy")
    with pytest.raises(StepError, match=r"1 .*'x'.* fillNull"):
        bound(table)
