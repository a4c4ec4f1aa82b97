"""Whatever the optimiser does, the rows are those of a naive reference: SQL in DuckDB over the
files, or plain Python over rows.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st
from property_tests import examples

from pipeline_runtime import Pipeline, hashing

UTF8 = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00"), max_size=4)
INTEGERS = {
    "i8": (pa.int8(), st.integers(-128, 127)),
    "i16": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "i32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "i64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "u8": (pa.uint8(), st.integers(0, 255)),
    "u16": (pa.uint16(), st.integers(0, 2**16 - 1)),
    "u32": (pa.uint32(), st.integers(0, 2**32 - 1)),
    "u64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "small": (pa.int64(), st.integers(-3, 3)),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """A table of up to 40 rows with nulls, ragged lists, unicode, dictionaries and timestamps."""
    size = draw(st.integers(0, 40))

    def column(values: st.SearchStrategy[Any], kind: pa.DataType) -> pa.Array:
        items = draw(st.lists(st.none() | values, min_size=size, max_size=size))
        return pa.array(items, type=kind)

    columns = {name: column(values, kind) for name, (kind, values) in INTEGERS.items()}
    columns["text"] = column(UTF8, pa.string())
    columns["tag"] = column(st.sampled_from("abc"), pa.string()).dictionary_encode()
    columns["flag"] = column(st.booleans(), pa.bool_())
    columns["when"] = column(st.integers(0, 10**15), pa.timestamp("us"))
    columns["zoned"] = column(st.integers(0, 10**12), pa.timestamp("ms", "Europe/Berlin"))
    columns["day"] = column(st.integers(0, 10**4), pa.date32())
    columns["f32"] = column(st.floats(width=32), pa.float32())
    # NaN stays out of filters: DuckDB takes it for the largest number, IEEE 754 for none.
    columns["f64"] = column(st.floats(allow_nan=False), pa.float64())
    columns["items"] = column(
        st.lists(st.none() | st.integers(0, 9), max_size=3), pa.list_(pa.int64())
    )
    columns["id"] = pa.array(range(size), pa.int64())
    return pa.table(columns)


FILTERS = st.sampled_from(
    [
        "small > 0",
        "small in (1, 2) or flag",
        "i8 between -5 and 50",
        "not (small = 1)",
        "tag = 'a'",
        "tag in ('a', 'b') and u8 < 100",
        "text is null",
        "i64 is not null and u32 >= 5",
        "id < 10",
        "id >= 5 and part = 1",
        "part = 0",
        "\"when\" >= timestamp '1990-01-01 00:00:00'",
        "flag is null or i16 <= 0",
        "u64 > 9223372036854775808",
        "u64 in (0, 18446744073709551615) or i64 < 0",
        "f64 < 1.5 and f32 is not null",
        "f64 > 0 or f32 is null",
        "day < date '1980-01-01'",
    ]
)


def write(table: pa.Table, folder: Path, group_rows: int) -> None:
    """The rows in two hive partitions by halves, in small row groups."""
    half = table.num_rows // 2
    for part, rows in enumerate((table.slice(0, half), table.slice(half))):
        path = folder / f"t/part={part}/a.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(rows, path, row_group_size=group_rows)


def expected_ids(folder: Path, filters: list[str]) -> list[int]:
    where = " and ".join(f"(({text}) is true)" for text in filters) or "true"
    files = f"read_parquet('{folder}/t/*/*.parquet', hive_partitioning = true)"
    rows = duckdb.sql(f"select id from {files} where {where} order by id").fetchall()
    return [row[0] for row in rows]


@settings(max_examples=examples(20), deadline=None)
@given(
    table=tables(),
    filters=st.lists(FILTERS, min_size=1, max_size=3),
    group_rows=st.integers(1, 12),
    rows_per_block=st.integers(1, 20),
)
def test_pushdown_projection_and_fusion_change_no_row(
    table: pa.Table, filters: list[str], group_rows: int, rows_per_block: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(table, folder, group_rows)
        pipeline = Pipeline.read_parquet("t/", where=filters[0], row_key="id")
        for text in filters[1:]:
            pipeline = pipeline.filter(text)
        pipeline = pipeline.derive(twice="small + small").downsample(
            60, where="small = 0", seed=5, weight_column="w"
        )
        plain = pipeline.with_options(pushdown=False, projection=False, fusion=False)
        fast = pipeline.with_options(rows_per_block=rows_per_block)
        reference = plain.to_table(name)
        optimised = fast.to_table(name)
        optimised = optimised.select(reference.column_names)
        assert without_nan(optimised).to_pylist() == without_nan(reference).to_pylist()
        kept = expected_ids(folder, filters)
        zeros = _ids_of_zeros(folder)
        got = reference.column("id").to_pylist()
        assert sorted(set(kept) - zeros) == sorted(set(got) - zeros)
        assert set(got) <= set(kept)
        _check_weights(reference)


def without_nan(table: pa.Table) -> pa.Table:
    """NaN, which equals nothing, as a number that `tables` does not draw elsewhere."""
    index = table.column_names.index("f32")
    column = table.column("f32")
    return table.set_column(index, "f32", pc.if_else(pc.is_nan(column), 1e-30, column))


def _ids_of_zeros(folder: Path) -> set[int]:
    files = f"read_parquet('{folder}/t/*/*.parquet')"
    return {row[0] for row in duckdb.sql(f"select id from {files} where small = 0").fetchall()}


def _check_weights(table: pa.Table) -> None:
    for small, weight, twice in zip(
        table.column("small").to_pylist(),
        table.column("w").to_pylist(),
        table.column("twice").to_pylist(),
        strict=True,
    ):
        assert abs(weight - (100 / 60 if small == 0 else 1.0)) < 1e-6
        assert twice == (None if small is None else 2 * small)


@settings(max_examples=examples(10), deadline=None)
@given(table=tables(), seed=st.integers(0, 100), first=st.integers(1, 9), second=st.integers(1, 30))
def test_the_same_rows_are_sampled_whatever_the_layout(
    table: pa.Table, seed: int, first: int, second: int
) -> None:
    kept = []
    for group_rows in (first, second):
        with tempfile.TemporaryDirectory() as name:
            write(table, Path(name), group_rows)
            pipeline = Pipeline.read_parquet("t/", row_key="id").sample(50, seed=seed).select("id")
            kept.append(pipeline.to_table(name).column("id").to_pylist())
    assert kept[0] == kept[1]


Row = dict[str, Any]
SIDE = pa.table({"tag": ["a", "b", "b", None], "price": [1, 2, 3, 4]})


@dataclass(frozen=True)
class Told:
    """A step as a pipeline has it, and as plain Python over rows."""

    add: Callable[[Pipeline], Pipeline]
    run: Callable[[list[Row]], list[Row]]


def keeps(is_kept: Callable[[Row], bool]) -> Callable[[list[Row]], list[Row]]:
    return lambda rows: [row for row in rows if is_kept(row)]


def joined(rows: list[Row], *, inner: bool) -> list[Row]:
    """Every pair of equal keys; a left row without one stays, its price unknown."""
    result = []
    for row in rows:
        matches = [s["price"] for s in SIDE.to_pylist() if s["tag"] == row["tag"] is not None]
        result += [row | {"price": price} for price in matches or ([] if inner else [None])]
    return result


def drawn(rows: list[Row], seed: int) -> list[Row]:
    """Keep 40 % of the rows whose flag is true, by the hash of their id."""
    ids = pa.chunked_array([pa.array([row["id"] for row in rows], pa.int64())])
    hashes = hashing.hash_columns([ids], seed=0)
    kept = hashing.keep_mask(np.asarray(hashes), seed, 40)
    return [row for row, keep in zip(rows, kept, strict=True) if keep or row["flag"] is not True]


STEPS = {
    "filter": Told(
        lambda p: p.filter("small > 0 or flag"),
        keeps(lambda r: (r["small"] is not None and r["small"] > 0) or r["flag"] is True),
    ),
    "filter by a replaced column": Told(
        lambda p: p.filter("small < 3"), keeps(lambda r: r["small"] is not None and r["small"] < 3)
    ),
    "filter by text": Told(
        lambda p: p.filter("tag != 'c'"), keeps(lambda r: r["tag"] is not None and r["tag"] != "c")
    ),
    "derive": Told(
        lambda p: p.derive(small="small + 1"),
        lambda rows: [r | {"small": None if r["small"] is None else r["small"] + 1} for r in rows],
    ),
    "anti join": Told(
        lambda p: p.anti_join("side/", left_on="small", right_on="price"),
        keeps(lambda r: r["small"] not in (1, 2, 3, 4)),
    ),
    "downsample": Told(
        lambda p: p.downsample(40, where="flag", seed=11), lambda rows: drawn(rows, 11)
    ),
}
JOINS = {
    "left join": Told(lambda p: p.join("side/", "tag"), lambda rows: joined(rows, inner=False)),
    "inner join": Told(
        lambda p: p.join("side/", "tag", how="inner"), lambda rows: joined(rows, inner=True)
    ),
}


@st.composite
def stories(draw: st.DrawFn) -> list[Told]:
    """Steps in any order, a join among them at most once, as it adds a column."""
    names = draw(st.lists(st.sampled_from(sorted(STEPS)), max_size=5))
    steps = [STEPS[name] for i, name in enumerate(names) if name not in names[:i]]
    if draw(st.booleans()):
        steps.insert(draw(st.integers(0, len(steps))), JOINS[draw(st.sampled_from(sorted(JOINS)))])
    return steps


SWITCHES = st.fixed_dictionaries(
    {name: st.booleans() for name in ("pushdown", "projection", "fusion", "broadcast", "kernels")}
)


@settings(max_examples=examples(20), deadline=None)
@given(
    table=tables(),
    steps=stories(),
    group_rows=st.integers(1, 12),
    rows_per_block=st.integers(1, 20),
    switches=SWITCHES,
)
def test_steps_in_any_order_are_those_of_plain_python(
    table: pa.Table,
    steps: list[Told],
    group_rows: int,
    rows_per_block: int,
    switches: dict[str, bool],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        write(table, Path(name), group_rows)
        (Path(name) / "side").mkdir()
        pq.write_table(SIDE, Path(name) / "side" / "a.parquet")
        pipeline = Pipeline.read_parquet("t/", row_key="id")
        rows = table.to_pylist()
        for step in steps:
            pipeline, rows = step.add(pipeline), step.run(rows)
        got = pipeline.with_options(rows_per_block=rows_per_block, **switches).to_table(name)
        assert got.num_rows == len(rows)
        for column in ("id", "small", "tag", "items", "u64", "when", "price"):
            if column in got.column_names:
                assert got.column(column).to_pylist() == [row[column] for row in rows]
