"""Evaluation over tables: chunks, encodings, empty tables, guarded branches."""

import datetime as dt
import itertools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipeline_runtime.errors import ExpressionError
from pipeline_runtime.expressions import binder, evaluate, infer_type, mask, parse

TEXTS = [
    pytest.param("1 + 1", id="a constant"),
    pytest.param("null", id="null"),
    pytest.param("'x'", id="a string constant"),
    pytest.param("i", id="a column"),
    pytest.param("i > 1 and label != 'a'", id="a filter"),
    pytest.param("label", id="a dictionary"),
    pytest.param("case when i > 2 then label else 'none' end", id="case"),
    pytest.param("case when i > 2 then i * i else 0 end", id="a guarded case"),
    pytest.param("list_slice(l, -1)", id="list_slice"),
    pytest.param("list_sum(l) + list_element(l, i)", id="more lists"),
    pytest.param("list_contains(l, i)", id="list_contains"),
    pytest.param("i % 3", id="remainder"),
    pytest.param("i in (1, 2)", id="in"),
]


def build_table(num_rows: int) -> pa.Table:
    numbers = range(num_rows)
    return pa.table(
        {
            "i": pa.array([i if i % 5 else None for i in numbers], pa.int32()),
            "label": pa.array(["abc"[i % 3] for i in numbers], pa.string()).dictionary_encode(),
            "l": pa.array([list(range(i % 4)) for i in numbers], pa.list_(pa.int64())),
        }
    )


def chunked(table: pa.Table, cuts: dict[str, list[int]]) -> pa.Table:
    """`table` with each column cut at its own rows."""
    columns = {}
    for name, ends in cuts.items():
        edges = [0, *ends, table.num_rows]
        parts = itertools.pairwise(edges)
        chunks = [table[name].combine_chunks().slice(a, b - a) for a, b in parts]
        columns[name] = pa.chunked_array(chunks)
    return pa.table(columns)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    "table",
    [
        pytest.param(build_table(0), id="no rows"),
        pytest.param(build_table(9).slice(4, 0), id="an empty slice"),
        pytest.param(build_table(9).schema.empty_table(), id="no chunks"),
        pytest.param(build_table(9).slice(2, 5), id="a slice"),
        pytest.param(
            chunked(build_table(9), {"i": [2, 2], "label": [3, 5], "l": [0, 8]}), id="ragged chunks"
        ),
    ],
)
def test_length_and_type_hold_for_every_shape_of_table(text: str, table: pa.Table) -> None:
    expr = parse(text)
    result = evaluate(expr, table)
    assert (len(result), result.type) == (table.num_rows, infer_type(expr, table.schema))
    whole = evaluate(expr, table.combine_chunks())
    assert result.to_pylist() == whole.to_pylist()


def test_large_chunks_stay_apart() -> None:
    table = pa.concat_tables([pa.table({"i": np.arange(20_000)})] * 2)
    result = evaluate(parse("i + 1"), table)
    assert [len(chunk) for chunk in result.chunks] == [20_000, 20_000]


def test_a_table_without_columns_has_rows() -> None:
    table = pa.table({"i": [1, 2]}).select([])
    assert evaluate(parse("1 = 1"), table).to_pylist() == [True, True]


def test_mask_turns_null_into_false() -> None:
    table = pa.table({"i": [1, None, 3]})
    assert mask(parse("i > 1"), table).to_pylist() == [False, False, True]
    assert table.filter(mask(parse("not i > 1"), table)).to_pylist() == [{"i": 1}]


def test_mask_needs_a_boolean() -> None:
    with pytest.raises(ExpressionError, match=r"boolean.*int64"):
        mask(parse("i"), pa.table({"i": [1]}))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        pytest.param(pa.array(["a", None, "b"], pa.large_string()), "x = 'a'", id="large"),
        pytest.param(pa.array(["a", None, "b"], pa.string_view()), "x = 'a'", id="view"),
        pytest.param(pa.array(["a", None, "b"]).dictionary_encode(), "x = 'a'", id="dictionary"),
        pytest.param(
            pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.uint8()), ["a", None, "b"]),
            "x = 'a'",
            id="a null in the dictionary",
        ),
        pytest.param(pc.run_end_encode(pa.array(["a", None, "b"])), "x = 'a'", id="runs"),
        pytest.param(pa.array([1, None, 2], pa.float16()), "x = 1", id="half floats"),
        pytest.param(
            pa.array([dt.date(2026, 1, 1), None, dt.date(2025, 1, 1)], pa.date64()),
            "x = '2026-01-01'",
            id="date64",
        ),
        pytest.param(
            pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)),
            "list_contains(x, 2)",
            id="fixed lists",
        ),
        pytest.param(
            pa.array([[1, 2], None, [3]], pa.list_view(pa.int8())),
            "list_contains(x, 2)",
            id="list view",
        ),
        pytest.param(
            pa.array([["a"], None, ["b"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
            "list_contains(x, 'a')",
            id="lists of a dictionary",
        ),
    ],
)
def test_an_encoding_behaves_as_its_values(values: pa.Array, text: str) -> None:
    table = pa.table({"x": values})
    assert evaluate(parse(text), table).to_pylist() == [True, None, False]
    assert evaluate(parse(text), table.slice(1)).to_pylist() == [None, False]


def test_a_list_behind_a_null_row_is_not_seen() -> None:
    lists = pa.ListArray.from_arrays(
        pa.array([0, 2, 3], pa.int32()), pa.array([1, 2, 3]), mask=pa.array([True, False])
    )
    table = pa.table({"l": lists})
    assert evaluate(parse("list_sum(l)"), table).to_pylist() == [None, 3]
    assert evaluate(parse("list_slice(l, 0)"), table).to_pylist() == [None, [3]]
    assert evaluate(parse("list_contains(l, 1)"), table).to_pylist() == [None, False]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        pytest.param(
            "case when s = 'x' then 0 else cast(s as int64) end", [1, 0, None, 0], id="else"
        ),
        pytest.param("if(s != 'x', cast(s as int64), -1)", [1, -1, -1, -1], id="if"),
        pytest.param(
            "case when s = 'x' then 'no' when cast(s as int64) = 1 then 'one' end",
            ["one", "no", None, "no"],
            id="a later condition",
        ),
        pytest.param(
            "case when s != 'x' then case when true then cast(s as int64) end end",
            [1, None, None, None],
            id="a case in a case",
        ),
        pytest.param("nullif(cast(nullif(s, 'x') as int64), 1)", [None] * 4, id="nullif"),
    ],
)
def test_case_guards_what_can_fail(text: str, values: list[object]) -> None:
    table = pa.table({"s": ["1", "x", None, "x"]})
    assert evaluate(parse(text), table).to_pylist() == values


def test_nested_between_does_not_grow_the_work() -> None:
    text = "i between 0 and 1"
    for _ in range(90):
        text = f"({text}) between false and true"
    assert evaluate(parse(text), pa.table({"i": [1, None]})).to_pylist() == [True, None]


def test_nested_guards_do_not_grow_the_work() -> None:
    text = "cast(s as int64)"
    for _ in range(90):
        text = f"if(s != 'x', {text}, -1)"
    assert evaluate(parse(text), pa.table({"s": ["1", "x"]})).to_pylist() == [1, -1]
    with pytest.raises(ExpressionError, match="'y'"):
        evaluate(parse(text), pa.table({"s": ["y", "x"]}))


def test_an_expression_is_typed_once_a_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"typed once": [1]})
    expr = parse('"typed once" + 1')
    evaluate(expr, table)
    monkeypatch.setattr(binder, "bind", None)
    assert evaluate(expr, table.append_column("other", [[1]])).to_pylist() == [2]


def test_the_same_text_is_typed_anew_for_another_type() -> None:
    expr = parse("x * 2")
    assert evaluate(expr, pa.table({"x": [1]})).type == pa.int64()
    assert evaluate(expr, pa.table({"x": [1.5]})).type == pa.float64()


def test_only_named_columns_are_touched() -> None:
    indices = pa.array([5], pa.int8())
    broken = pa.DictionaryArray.from_arrays(indices, pa.array(["a"]), safe=False)
    table = pa.table({"i": [1], "broken": broken})
    assert evaluate(parse("i + 1"), table).to_pylist() == [2]
    with pytest.raises(IndexError, match="Index 5 out of bounds"):
        evaluate(parse("broken = 'a'"), table)
