"""Flat → convert → read gives the flat rows again, whatever is in them and however they are cut.

The reference groups rows in plain Python. Rows are compared by their printed form, in which NaN is
itself and -0.0 is not 0.0.
"""

import tempfile
from datetime import datetime
from decimal import Decimal
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st
from property_tests import examples

from pipeline_runtime import Pipeline
from pipeline_runtime.config import ParquetSource
from pipeline_runtime.convert import ConversionOptions, ConversionSummary, convert_table
from pipeline_runtime.sources import open_location, read_flat
from pipeline_runtime.sources.parquet import ParquetTable, open_parquet

Row = dict[str, Any]

FLOATS = st.sampled_from([0.0, -0.0, float("nan"), 1.5])
NUMBERS = st.integers(-2, 2)
TEXTS = st.sampled_from(["", "a", "ä", "aa"])
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "i8": (pa.int8(), NUMBERS),
    "u64": (pa.uint64(), st.sampled_from([0, 1, 2**64 - 1])),
    "f32": (pa.float32(), FLOATS),
    "f64": (pa.float64(), FLOATS),
    "flag": (pa.bool_(), st.booleans()),
    "text": (pa.string(), TEXTS),
    "long_text": (pa.large_string(), TEXTS),
    "bytes": (pa.binary(), st.sampled_from([b"", b"\x00", b"\x00\x00"])),
    "fixed": (pa.binary(3), st.sampled_from([b"abc", b"xyz"])),
    "price": (pa.decimal128(9, 2), st.sampled_from([Decimal("1.00"), Decimal("1.10")])),
    "tag": (pa.dictionary(pa.int32(), pa.string()), TEXTS),
    "time": (pa.timestamp("ns"), st.sampled_from([datetime(2026, 1, 1), datetime(1969, 1, 1)])),
    "zoned": (pa.timestamp("ms", "Europe/Berlin"), st.sampled_from([datetime(2026, 1, 1)])),
    "items": (pa.list_(pa.int64()), st.lists(st.none() | NUMBERS, max_size=3)),
    "ids": (pa.list_(pa.int16()), st.lists(NUMBERS, max_size=3)),
    "scores": (pa.large_list(pa.float32()), st.lists(FLOATS, max_size=2)),
    "deep": (pa.list_(pa.list_(pa.string())), st.lists(st.lists(TEXTS, max_size=2), max_size=2)),
    "pair": (pa.list_(pa.int16(), 2), st.tuples(NUMBERS, NUMBERS)),
    "struct": (
        pa.struct([pa.field("x", pa.int64()), pa.field("y", pa.list_(pa.string()))]),
        st.fixed_dictionaries({"x": NUMBERS, "y": st.none() | st.lists(TEXTS, max_size=2)}),
    ),
    "map": (pa.map_(pa.string(), pa.int64()), st.lists(st.tuples(TEXTS, NUMBERS), max_size=2)),
    "nothing": (pa.null(), st.none()),
}
KEYS = {
    "numbers": (pa.int64(), st.none() | st.integers(0, 3)),
    "texts": (pa.string(), st.none() | TEXTS),
    "tags": (pa.dictionary(pa.int8(), pa.string()), st.none() | TEXTS),
    "times": (
        pa.timestamp("us"),
        st.sampled_from([None, datetime(2026, 1, 1), datetime(1999, 1, 1)]),
    ),
}


@st.composite
def tables(draw: st.DrawFn, max_rows: int = 30) -> tuple[pa.Table, list[str]]:
    """Rows with a key, a few columns of any type, an id; and which columns are the request's.

    Some rows repeat what the row before has, so that there are requests to find.
    """
    size = draw(st.integers(0, max_rows))
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), unique=True, max_size=5))
    kinds = {name: COLUMNS[name] for name in names}
    kinds["key"] = KEYS[draw(st.sampled_from(sorted(KEYS)))]
    values = {name: st.none() | strategy for name, (_, strategy) in kinds.items()}
    rows: list[Row] = []
    for _ in range(size):
        fresh = not rows or draw(st.integers(0, 3)) == 0
        rows.append(draw(st.fixed_dictionaries(values)) if fresh else rows[-1])
    once = draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    arrays = {
        name: pa.array([row[name] for row in rows], type=kind) for name, (kind, _) in kinds.items()
    }
    return pa.table({**arrays, "id": pa.array(range(size), pa.int64())}), once


def put(table: pa.Table, folder: Path, num_files: int, group_rows: int) -> None:
    """The rows in `num_files` partition folders, in order."""
    for part in range(num_files):
        first, last = (table.num_rows * (part + i) // num_files for i in (0, 1))
        path = folder / f"part={part}/a.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(table.slice(first, last - first), path, row_group_size=group_rows)


def open_(folder: Path) -> ParquetTable:
    return open_parquet(ParquetSource(uri=str(folder)), "")


def convert(folder: Path, once: list[str], rows_per_group: int) -> ConversionSummary:
    """`folder`/flat to `folder`/nested."""
    options = ConversionOptions(
        request_key="key", request_columns=once, rows_per_group=rows_per_group
    )
    return convert_table(open_(folder / "flat"), open_location(f"{folder}/nested"), options)


def rows_of(table: ParquetTable, columns: list[str], max_rows: int = 1 << 20) -> list[str]:
    parts = [read_flat(table, unit, columns, max_rows) for unit in table.scan(()).units]
    return [repr(row) for part in chain(*parts) for row in part.to_pylist()]


def in_requests(rows: list[Row], once: list[str]) -> list[list[Row]]:
    """The rule, row by row: keys where they first stand, entries while nothing tells rows apart."""
    keys: dict[Any, list[Row]] = {}
    for index, row in enumerate(rows):
        keys.setdefault(("none", index) if row["key"] is None else row["key"], []).append(row)
    entries: list[list[Row]] = []
    for same_key in keys.values():
        entries.append(same_key[:1])
        for before, row in pairwise(same_key):
            shared = [repr(r[name]) for r in (before, row) for name in once]
            if shared[: len(once)] == shared[len(once) :]:
                entries[-1].append(row)
            else:
                entries.append([row])
    return entries


@settings(max_examples=examples(20), deadline=None)
@given(drawn=tables(), group_rows=st.integers(1, 12), num_files=st.integers(1, 3))
def test_a_file_in_one_window_keeps_its_rows_requests_together(
    drawn: tuple[pa.Table, list[str]], group_rows: int, num_files: int
) -> None:
    table, once = drawn
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        put(table, folder / "flat", num_files, group_rows)
        summary = convert(folder, once, 1_000)
        nested, flat = open_(folder / "nested"), open_(folder / "flat")
        entries = []
        for part in range(num_files):
            first, last = (table.num_rows * (part + i) // num_files for i in (0, 1))
            entries += in_requests(table.slice(first, last - first).to_pylist(), once)
        expected = [repr(row) for entry in entries for row in entry]
        assert rows_of(nested, table.column_names) == expected
        assert summary.requests == len(entries)
        assert summary.rows == table.num_rows
        assert summary.null_keys == table.column("key").null_count
        assert nested.files == flat.files
        assert flat.schema.names == [n for n in nested.schema.names if n != "_lastmile_row_id"]


@settings(max_examples=examples(20), deadline=None)
@given(
    drawn=tables(),
    group_rows=st.integers(1, 12),
    window=st.integers(1, 12),
    max_rows=st.integers(1, 9),
    data=st.data(),
)
def test_small_windows_pieces_and_projections_lose_no_row(
    drawn: tuple[pa.Table, list[str]],
    group_rows: int,
    window: int,
    max_rows: int,
    data: st.DataObject,
) -> None:
    table, once = drawn
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        put(table, folder / "flat", 2, group_rows)
        convert(folder, once, window)
        nested = open_(folder / "nested")
        columns = data.draw(st.lists(st.sampled_from(nested.schema.names), unique=True))
        by_id: dict[str, list[Any]] = {}
        for unit in nested.scan(()).units:
            assert unit.num_rows <= window
            whole = next(iter(read_flat(nested, unit, nested.schema.names, 1 << 20)))
            parts = list(read_flat(nested, unit, columns, max_rows))
            sizes = [part.num_rows for part in parts]
            assert sizes[:-1] == [max_rows] * (len(sizes) - 1)
            assert sum(sizes) == unit.num_rows == whole.num_rows
            pieces = [row for part in parts for row in part.to_pylist()]
            if columns:
                assert repr(pieces) == repr(whole.select(columns).to_pylist())
            for row in whole.to_pylist():
                assert row.pop("_lastmile_row_id") == row["id"]
                by_id[row["id"]] = row
        flat = rows_of(open_(folder / "flat"), open_(folder / "flat").schema.names)
        assert [repr(by_id[index]) for index in sorted(by_id)] == flat


@settings(max_examples=examples(10), deadline=None)
@given(drawn=tables(), group_rows=st.integers(1, 12))
def test_converting_twice_changes_nothing(
    drawn: tuple[pa.Table, list[str]], group_rows: int
) -> None:
    table, once = drawn
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        put(table, folder / "flat", 1, group_rows)
        convert(folder, once, 1_000)
        options = ConversionOptions(request_key="key", request_columns=once)
        nested = open_(folder / "nested")
        convert_table(nested, open_location(f"{folder}/again"), options)
        again = open_(folder / "again")
        assert again.schema == nested.schema
        assert rows_of(again, again.schema.names) == rows_of(nested, nested.schema.names)


FILTERS = st.sampled_from(
    [
        "user > 0",
        "user is null or item < 3",
        "item = 2",
        "item is null",
        "item is not null and score > 1",
        "score <= 0.5",
        "score is null",
        "clicked",
        "not clicked",
        "seen >= timestamp '2026-01-01 00:00:02.000001'",
        "seen < timestamp '2026-01-01 00:00:02'",
        "name = 'b'",
        "name in ('a', 'c')",
        "big > 9223372036854775808",
        "item > 3 or user = 1",
        "part = 1",
        "part = 0 and item > 2",
    ]
)


@st.composite
def impressions(draw: st.DrawFn) -> pa.Table:
    """Rows whose values rise slowly, so that row groups differ and pruning has work."""
    size = draw(st.integers(0, 40))

    def column(kind: pa.DataType, values: list[Any]) -> pa.Array:
        nulls = draw(
            st.lists(st.integers(0, 5).map(lambda n: n == 0), min_size=size, max_size=size)
        )
        pairs = zip(nulls, values, strict=True)
        return pa.array([None if null else value for null, value in pairs], type=kind)

    rows = range(size)
    start = 1_767_225_600 * 10**9
    return pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "request": pa.array([i // 4 for i in rows], pa.int64()),
            "user": pa.array([i // 8 for i in rows], pa.int32()),
            "item": column(pa.int64(), [i // 5 for i in rows]),
            "score": column(pa.float32(), [i % 7 / 2 if i % 11 else float("nan") for i in rows]),
            "clicked": column(pa.bool_(), [i > 20 for i in rows]),
            "seen": column(pa.timestamp("ns"), [start + i * 100_000_000 + i for i in rows]),
            "name": column(pa.string(), ["abc"[i // 14] for i in rows]),
            "big": column(pa.uint64(), [2**63 - 20 + i for i in rows]),
        }
    )


@settings(max_examples=examples(20), deadline=None)
@given(
    table=impressions(),
    filters=st.lists(FILTERS, min_size=1, max_size=2),
    window=st.integers(1, 20),
    rows_per_block=st.integers(1, 20),
)
def test_a_pipeline_keeps_the_same_rows_of_nested_files(
    table: pa.Table, filters: list[str], window: int, rows_per_block: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        put(table, folder / "flat", 2, 10)
        options = ConversionOptions(
            request_key="request", request_columns=["user"], rows_per_group=window
        )
        convert_table(open_(folder / "flat"), open_location(f"{folder}/nested"), options)
        kept = []
        for layout in ("flat", "nested"):
            pipeline = Pipeline.read_parquet(f"{layout}/", row_key="id")
            for text in filters:
                pipeline = pipeline.filter(text)
            pipeline = pipeline.derive(twice="item * 2").sample(70, seed=3)
            pipeline = pipeline.with_options(rows_per_block=rows_per_block)
            kept.append(repr(pipeline.to_table(name).to_pylist()))
        assert kept[0] == kept[1]  # windows of rows in request order keep the table's order
