"""`join` and `antiJoin` against DuckDB's SQL, and the rules that binding checks."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from facts import assert_all_told, assert_told
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_runtime.config.dataset import ParquetSource
from pipeline_runtime.errors import ManifestError, SourceError, StepError
from pipeline_runtime.steps import side_tables
from pipeline_runtime.steps.anti_join.model import AntiJoinStep
from pipeline_runtime.steps.anti_join.transform import AntiJoin
from pipeline_runtime.steps.base import ROW_HASH_COLUMN, BindContext, SideTable, SideTableRequest
from pipeline_runtime.steps.join.model import JoinStep, KeyPair
from pipeline_runtime.steps.join.transform import Join
from pipeline_runtime.steps.side_tables import side_table_of

SOURCE = ParquetSource(uri="side.parquet")


def context_of(table: pa.Table) -> BindContext:
    return BindContext(open_side_table=partial(_open, table))


def _open(table: pa.Table, request: SideTableRequest) -> SideTable:
    columns = request.columns
    return side_table_of(table.select(columns) if columns is not None else table, "side.parquet")


def join(left: pa.Table, right: pa.Table, **options: Any) -> pa.Table:
    config = JoinStep(parquet=SOURCE, **options)
    return Join.bind(config, left.schema, context_of(right))(left)


def anti_join(left: pa.Table, right: pa.Table, **options: Any) -> pa.Table:
    config = AntiJoinStep(parquet=SOURCE, **options)
    return AntiJoin.bind(config, left.schema, context_of(right))(left)


def problems_of(
    kind: type[Join] | type[AntiJoin], left: pa.Schema, right: pa.Table, **options: Any
) -> list[str]:
    model = JoinStep if kind is Join else AntiJoinStep
    with pytest.raises(ManifestError) as caught:
        kind.bind(model(parquet=SOURCE, **options), left, context_of(right))  # type: ignore[arg-type]
    return [str(problem) for problem in caught.value.problems]


# Types in which the keys 0 to 5 can be written; the two sides of a join draw theirs apart.
INTS = [pa.int8(), pa.uint8(), pa.int16(), pa.uint32(), pa.int64(), pa.uint64()]
STRINGS = [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())]
DATES = [pa.date32(), pa.date64()]
TIMES = [pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("ns")]
FAMILIES = [INTS, STRINGS, DATES, TIMES]


def key_array(values: list[int | None], data_type: pa.DataType) -> pa.Array:
    if data_type in STRINGS:
        texts = ["", "ü", "a" * 20, "b", "c\0", "😀"]
        plain = pa.array([None if v is None else texts[v] for v in values], pa.string())
        return plain.dictionary_encode() if data_type == STRINGS[2] else plain.cast(data_type)
    if data_type in DATES:
        return pa.array(values, pa.int32()).cast(pa.date32()).cast(data_type)
    if data_type in TIMES:
        return pa.array(values, pa.int64()).cast(pa.timestamp("s")).cast(data_type)
    return pa.array(values, data_type)


@st.composite
def sides(draw: st.DrawFn) -> tuple[pa.Table, pa.Table, list[str]]:
    """Two tables with one or two keys of random types, chunked and sliced at random."""
    keys = ["k0", "k1"][: draw(st.integers(1, 2))]
    families = [draw(st.sampled_from(FAMILIES)) for _ in keys]
    tables = []
    for side in ("left", "right"):
        num_rows = draw(st.integers(0, 8))
        columns: dict[str, Any] = {}
        for key, family in zip(keys, families, strict=True):
            values = draw(
                st.lists(st.none() | st.integers(0, 5), min_size=num_rows, max_size=num_rows)
            )
            columns[key] = key_array(values, draw(st.sampled_from(family)))
        columns[f"{side}_row"] = pa.array(range(num_rows), pa.int64())
        columns[f"{side}_list"] = pa.array([[i, None] for i in range(num_rows)])
        table = pa.table(columns)
        cut = draw(st.integers(0, num_rows))
        tables.append(pa.concat_tables([table.slice(0, cut), table.slice(cut)]))
    return tables[0], tables[1], keys


def sql(left: pa.Table, right: pa.Table, query: str) -> list[tuple[Any, ...]]:
    """The query's rows; dictionaries are decoded and dates of one type, as DuckDB has them."""

    def plain(table: pa.Table) -> pa.Table:
        for index, name in enumerate(table.schema.names):
            column = table.column(name)
            if pa.types.is_dictionary(column.type):
                table = table.set_column(index, name, column.cast(pa.string()))
            elif pa.types.is_date64(column.type):
                table = table.set_column(index, name, column.cast(pa.date32()))
        return table

    with duckdb.connect() as connection:
        connection.register("l", plain(left))
        connection.register("r", plain(right))
        return connection.execute(query).fetchall()


def on_clause(keys: Sequence[str]) -> str:
    return " and ".join(f"l.{key} = r.{key}" for key in keys)


@settings(deadline=None)
@given(tables=sides(), how=st.sampled_from(["Inner", "Left"]))
def test_a_join_gives_the_rows_of_sql_in_the_left_order(
    tables: tuple[pa.Table, pa.Table, list[str]], how: str
) -> None:
    left, right, keys = tables
    joined = join(left, right, keys=tuple(keys), how=how, columns=("right_row", "right_list"))
    got = list(zip(joined["left_row"].to_pylist(), joined["right_row"].to_pylist(), strict=True))
    expected = sql(
        left,
        right,
        f"select left_row, right_row from l {how} join r on {on_clause(keys)} "
        "order by left_row, right_row",
    )
    assert got == expected
    assert joined["right_list"].to_pylist() == [None if r is None else [r, None] for _, r in got]
    assert joined["left_list"].to_pylist() == [[row, None] for row, _ in got]


@settings(deadline=None)
@given(tables=sides())
def test_an_anti_join_keeps_the_rows_of_not_exists(
    tables: tuple[pa.Table, pa.Table, list[str]],
) -> None:
    left, right, keys = tables
    kept = anti_join(left, right, keys=tuple(keys))
    expected = sql(
        left,
        right,
        f"select left_row from l where not exists (select 1 from r where {on_clause(keys)}) "
        "order by left_row",
    )
    assert [(row,) for row in kept["left_row"].to_pylist()] == expected
    assert kept.schema == left.schema


def test_many_keys_match_as_in_sql() -> None:
    rng = np.random.default_rng(0)
    left = pa.table({"k": rng.integers(0, 5_000, 20_000), "left_row": np.arange(20_000)})
    right = pa.table({"k": rng.integers(0, 9_000, 4_000), "right_row": np.arange(4_000)})
    joined = join(left, right, keys=("k",), how="Inner", columns=("right_row",))
    expected = sql(
        left,
        right,
        "select left_row, right_row from l join r on l.k = r.k order by left_row, right_row",
    )
    got = zip(joined["left_row"].to_pylist(), joined["right_row"].to_pylist(), strict=True)
    assert list(got) == expected


def test_keys_of_one_hash_are_told_apart() -> None:
    # int64 -1 and uint64 2**64 - 1 share their 64 bits, and so their hash.
    left = pa.table({"k": pa.array([-1, 5])})
    right = pa.table({"k": pa.array([2**64 - 1, 5, 5], pa.uint64()), "v": [1, 2, 3]})
    assert anti_join(left, right, keys=("k",))["k"].to_pylist() == [-1]
    assert join(left, right, keys=("k",), how="Inner")["v"].to_pylist() == [2, 3]
    both = pa.table({"k": pa.array([2**64 - 1, 5], pa.uint64())})
    assert anti_join(both, right, keys=("k",)).num_rows == 0


def test_keys_may_have_different_names() -> None:
    left = pa.table({"user": [1, 2]})
    right = pa.table({"uid": [2], "age": [30]})
    joined = join(left, right, keys=(KeyPair(left="user", right="uid"),))
    assert joined.to_pylist() == [{"user": 1, "age": None}, {"user": 2, "age": 30}]


def test_a_key_may_be_added_when_its_name_is_free() -> None:
    left = pa.table({"user": [1, 2]})
    right = pa.table({"uid": [2], "age": [30]})
    joined = join(left, right, keys=(KeyPair(left="user", right="uid"),), columns=("uid",))
    assert joined["uid"].to_pylist() == [None, 2]


def test_internal_columns_follow_their_rows() -> None:
    left = pa.table({"k": [1, 2], ROW_HASH_COLUMN: pa.array([10, 20], pa.uint64())})
    right = pa.table({"k": [2, 2], "v": [5, 6], ROW_HASH_COLUMN: pa.array([7, 8], pa.uint64())})
    joined = join(left, right, keys=("k",))
    assert joined[ROW_HASH_COLUMN].to_pylist() == [10, 20, 20]
    assert joined["v"].to_pylist() == [None, 5, 6]


def test_a_bound_join_says_what_it_reads_and_adds() -> None:
    left = pa.schema([("k", pa.int64()), ("x", pa.int64())])
    right = pa.table({"k": [1], "v": [1.0]})
    bound = Join.bind(JoinStep(parquet=SOURCE, keys=("k",)), left, context_of(right))
    assert (bound.kind, bound.inputs, bound.outputs) == ("join", {"k"}, {"v"})
    assert bound.changes_rows
    assert not bound.needs_row_hash
    assert bound.output_schema.names == ["k", "x", "v"]


BROKEN_JOINS = [
    pytest.param(
        {"keys": ("usr",), "columns": ("age",)},
        ["join.keys[0]: … 'usr' … 'user'"],
        id="a key that the input has not",
    ),
    pytest.param(
        {"keys": (KeyPair(left="user", right="name"),), "columns": ("age",)},
        [
            "join.keys[0].right: … 'user' … int64 … 'name' … string",
        ],
        id="an integer against a string",
    ),
    pytest.param(
        {"keys": ("price",)},
        [
            "join.keys[0]: … 'price' … double",
            "join.columns: … 'user'",
        ],
        id="a float key and a clash",
    ),
    pytest.param(
        {"keys": ("user",), "columns": ("price",)},
        [
            "join.columns[0]: … 'price'",
        ],
        id="a column of both sides",
    ),
    pytest.param(
        {"keys": ("user",), "columns": ("age",), "max_bytes": 3},
        [
            "join.maxBytes: … 3 bytes … 16 bytes … side.parquet",
        ],
        id="a side table that is too large",
    ),
]


@pytest.mark.parametrize(("options", "expected"), BROKEN_JOINS)
def test_a_broken_join_says_what_to_do(options: dict[str, Any], expected: list[str]) -> None:
    left = pa.schema([("user", pa.int64()), ("price", pa.float64())])
    right = pa.table({"user": [1], "name": ["n"], "price": [1.0], "usr": [1], "age": [30]})
    assert_all_told(problems_of(Join, left, right, **options), expected)


def test_a_source_that_cannot_be_opened_is_the_step_s_problem() -> None:
    def fail(request: SideTableRequest) -> SideTable:
        raise SourceError("spam.parquet: no such file")

    config = AntiJoinStep(parquet=SOURCE, keys=("k",))
    with pytest.raises(ManifestError) as caught:
        AntiJoin.bind(config, pa.schema([("k", pa.int64())]), BindContext(open_side_table=fail))
    assert str(caught.value) == "antiJoin: spam.parquet: no such file"


def test_a_side_table_is_loaded_once_in_a_process_by_many_threads() -> None:
    loads: list[int] = []

    def load() -> pa.Table:
        loads.append(1)
        return pa.table({"k": [1, None]})

    side = SideTable(
        digest="once",
        description="side",
        schema=pa.schema([("k", pa.int64())]),
        num_rows=2,
        num_bytes=16,
        load=load,
    )
    context = BindContext(open_side_table=lambda request: side)
    bound = AntiJoin.bind(
        AntiJoinStep(parquet=SOURCE, keys=("k",)), pa.schema([("k", pa.int64())]), context
    )
    results: list[list[int]] = []
    threads = [
        threading.Thread(
            target=lambda: results.append(bound(pa.table({"k": [1, 2]}))["k"].to_pylist())
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[2]] * 8
    assert len(loads) == 1
    side_tables.clear_indices()


def test_rows_larger_than_promised_are_refused_when_loaded() -> None:
    rows = pa.table({"k": list(range(100))})
    side = SideTable(
        digest="grown",
        description="grown.parquet",
        schema=rows.schema,
        num_rows=1,
        num_bytes=8,
        load=lambda: rows,
    )
    bound = AntiJoin.bind(
        AntiJoinStep(parquet=SOURCE, keys=("k",), max_bytes=100),
        rows.schema,
        BindContext(open_side_table=lambda request: side),
    )
    with pytest.raises(StepError) as caught:
        bound(rows)
    assert_told(str(caught.value), "… maxBytes … 100 bytes … 800 bytes … grown.parquet")


def test_a_bound_join_travels_to_another_process() -> None:
    left, right = pa.table({"k": [1, 2]}), pa.table({"k": [2], "v": ["x"]})
    bound = Join.bind(JoinStep(parquet=SOURCE, keys=("k",)), left.schema, context_of(right))
    assert pickle.loads(pickle.dumps(bound))(left)["v"].to_pylist() == [None, "x"]
