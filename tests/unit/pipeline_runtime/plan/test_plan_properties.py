"""Whatever the optimiser does, the rows are those of a naive reference: SQL in DuckDB over the "
"files."""

import tempfile
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_runtime import Pipeline

UTF8 = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00"), max_size=4)
INTEGERS = {
    "i8": (pa.int8(), st.integers(-128, 127)),
    "i16": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "i32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "i64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "u8": (pa.uint8(), st.integers(0, 255)),
    "u16": (pa.uint16(), st.integers(0, 2**16 - 1)),
    "u32": (pa.uint32(), st.integers(0, 2**32 - 1)),
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


@settings(max_examples=60, deadline=None)
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
        assert optimised.select(reference.column_names).to_pylist() == reference.to_pylist()
        kept = expected_ids(folder, filters)
        zeros = _ids_of_zeros(folder)
        got = reference.column("id").to_pylist()
        assert sorted(set(kept) - zeros) == sorted(set(got) - zeros)
        assert set(got) <= set(kept)
        _check_weights(reference)


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


@settings(max_examples=30, deadline=None)
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
