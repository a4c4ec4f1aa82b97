"""Nested tables read as flat ones: what planning sees, what prunes, what is refused."""

import json
import pickle
from dataclasses import replace
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from facts import assert_one_tells, assert_told

from pipeline_runtime import Pipeline
from pipeline_runtime.config import ParquetSource
from pipeline_runtime.convert import ConversionOptions, convert_table
from pipeline_runtime.errors import SourceError
from pipeline_runtime.expressions import parse
from pipeline_runtime.feed.making.group_reading import places_of
from pipeline_runtime.feed.making.work import read_group
from pipeline_runtime.hashing import Checksum
from pipeline_runtime.plan import build_plan, plan_groups, rows_per_chunk, share_groups
from pipeline_runtime.sources import Predicate, open_location, read_flat
from pipeline_runtime.sources.parquet import ParquetTable, open_parquet
from pipeline_runtime.sources.parquet.nested import METADATA_KEY
from pipeline_runtime.steps.base import ROW_HASH_COLUMN

NUM_ROWS = 120


def flat_rows(first: int = 0, num_rows: int = NUM_ROWS) -> pa.Table:
    """Requests of 5 rows, users of 2 requests; every third item is null."""
    rows = range(first, first + num_rows)
    return pa.table(
        {
            "id": rows,
            "request": [i // 5 for i in rows],
            "user": [i // 10 for i in rows],
            "history": [[i // 5] * (i // 5 % 4) for i in rows],
            "item": [None if i % 3 == 0 else i for i in rows],
            "price": pa.array([Decimal(i) for i in rows], pa.decimal128(9, 0)),
            "day": [i // 40 for i in rows],
        }
    )


def open_(folder: Path) -> ParquetTable:
    return open_parquet(ParquetSource(uri=str(folder)), "")


def nest(source: Path, target: Path, rows_per_group: int = 20) -> ParquetTable:
    options = ConversionOptions(
        request_key="request", request_columns=("user", "history"), rows_per_group=rows_per_group
    )
    convert_table(open_(source), open_location(str(target)), options)
    return open_(target)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """`flat` and `nested`, the same rows in 3 folders of 40 rows, row groups of 20."""
    for day in range(3):
        path = tmp_path / f"flat/day={day}/a.parquet"
        path.parent.mkdir(parents=True)
        rows = flat_rows(day * 40, 40).drop_columns("day")
        pq.write_table(rows, path, row_group_size=20)
    nest(tmp_path / "flat", tmp_path / "nested")
    return tmp_path


def test_units_and_totals_count_flat_rows(lake: Path) -> None:
    flat, nested = open_(lake / "flat").scan(()), open_(lake / "nested").scan(())
    assert nested.pruning == flat.pruning
    assert [unit.num_rows for unit in nested.units] == [20] * 6
    assert pq.read_metadata(lake / "nested/day=0/a.parquet").num_rows == 8  # requests


def test_bytes_of_request_columns_are_counted_as_often_as_they_are_repeated(lake: Path) -> None:
    nested = open_(lake / "nested")
    unit = nested.scan(()).units[0]
    stored = pq.read_metadata(lake / "nested/day=0/a.parquet").row_group(0)
    size_of = {
        stored.column(i).path_in_schema: stored.column(i).total_uncompressed_size
        for i in range(stored.num_columns)
    }
    sizes = nested.sizes([unit], ["user", "item"])
    assert sizes["user"].num_bytes == size_of["user"] * 5
    assert sizes["item"].num_bytes == size_of["item.list.element"]


PRUNED = {
    "a request column": (pads.field("user") == 3, [20]),
    "an impression column": (pads.field("item") > 95, [80, 100]),
    "an impression column with nulls": (pads.field("item").is_null(), [0, 20, 40, 60, 80, 100]),
    "either of the two": ((pads.field("user") == 3) | (pads.field("item") > 105), [20, 100]),
    "a partition folder": (pads.field("day") == 1, [40, 60]),
    "a folder and an impression": ((pads.field("day") == 1) & (pads.field("id") < 50), [40]),
    "a type left out": (pads.field("price") > Decimal(1_000), [0, 20, 40, 60, 80, 100]),
}


@pytest.mark.parametrize(("predicate", "firsts"), PRUNED.values(), ids=PRUNED)
def test_row_groups_that_hold_no_such_row_are_not_read(
    lake: Path, predicate: Any, firsts: list[int]
) -> None:
    nested = open_(lake / "nested")
    units = nested.scan([Predicate(expression=parse("true"), filter=predicate)]).units
    tables = [next(iter(read_flat(nested, unit, ["id"], 100))) for unit in units]
    assert [table.column("id")[0].as_py() for table in tables] == firsts


def test_request_columns_alone_and_no_columns_at_all_have_all_rows(lake: Path) -> None:
    nested = open_(lake / "nested")
    unit = nested.scan(()).units[0]
    for columns in (["user"], ["day", "user"], ["day"], []):
        parts = list(read_flat(nested, unit, columns, 7))
        assert [part.num_rows for part in parts] == [7, 7, 6]
        assert all(part.column_names == columns for part in parts)


def test_flat_and_nested_files_are_one_table(lake: Path) -> None:
    (lake / "nested/day=1/a.parquet").unlink()
    flat = pq.ParquetFile(lake / "flat/day=1/a.parquet").read()
    ids = flat.column("id")
    pq.write_table(flat.append_column("_lastmile_row_id", ids), lake / "nested/day=1/b.parquet")
    table = open_(lake / "nested")
    names = ["id", "user", "history", "item", "day"]
    parts = [part for unit in table.scan(()).units for part in read_flat(table, unit, names, 100)]
    assert pa.concat_tables(parts).to_pylist() == flat_rows().select(names).to_pylist()
    assert_told(" ".join(table.scan(()).notes), "… 80 … 2")


def test_a_nested_table_travels_without_its_footers(lake: Path) -> None:
    table = open_(lake / "nested")
    unit = table.scan(()).units[0]
    copy = pickle.loads(pickle.dumps(table))
    names = table.schema.names
    assert list(read_flat(copy, unit, names, 100)) == list(read_flat(table, unit, names, 100))
    assert copy.fragments == ()


def test_explain_says_that_a_table_is_nested(lake: Path) -> None:
    text = Pipeline.read_parquet("nested/").filter("item > 95").explain(str(lake))
    assert_one_tells(text.splitlines(), "… nested … key request … 24 requests … 120 rows")
    assert_one_tells(text.splitlines(), "… row groups … 2 … 6 … rows … 40 … 120")
    assert_one_tells(text.splitlines(), "… identity … _lastmile_row_id")


def checksum_of(root: Path, uri: str, shuffle: str) -> tuple[list[int], dict[str, Any]]:
    """The ids that a training stream gives in an epoch, and its checksum."""
    pipeline = (
        Pipeline.read_parquet(uri, row_key="id", request_key="request", where="day < 2")
        .filter("item is not null")
        .derive(length="list_length(history)")
        .downsample(50, where="item % 2 = 0", seed=3, weight_column="w")
    )
    experiment = pipeline.experiment("same", shuffle={"unit": shuffle, "windowRows": 50})
    stream = build_plan(experiment, str(root)).training
    rows = rows_per_chunk(stream.scan.units, stream.shuffle, stream.max_rows_per_block)
    groups = plan_groups(
        stream.scan.units, seed=7, epoch=1, shuffle=stream.shuffle, chunk_rows=rows
    )
    ids, checksum = [], Checksum()
    for group in groups:
        for chunk in read_group(stream, group, rows):
            ids += chunk.table.column("id").to_pylist()
            checksum.add(chunk.table.column(ROW_HASH_COLUMN).to_numpy())
    return ids, checksum.to_json()


@pytest.mark.parametrize("shuffle", ["none", "row", "request"])
def test_an_epoch_over_nested_files_has_the_rows_order_and_checksum_of_flat_ones(
    lake: Path, shuffle: str
) -> None:
    flat = checksum_of(lake, "flat/", shuffle)
    assert 0 < len(flat[0]) < 54  # some were filtered, some sampled away
    assert checksum_of(lake, "nested/", shuffle) == flat


def rewrite(path: Path, change: Any) -> None:
    """Write a file again, as a tool would that copies metadata without knowing them."""
    table = pq.ParquetFile(path).read()
    document = json.loads(table.schema.metadata[METADATA_KEY.encode()])
    table = change(table, document)
    metadata = {METADATA_KEY: json.dumps(document)}
    pq.write_table(table.replace_schema_metadata(metadata), path, row_group_size=4)


def of_a_newer_version(table: pa.Table, document: dict[str, Any]) -> pa.Table:
    document["version"] = 2
    return table


def with_fewer_row_groups(table: pa.Table, document: dict[str, Any]) -> pa.Table:
    document["rowGroups"].pop()
    return table


def with_another_column(table: pa.Table, document: dict[str, Any]) -> pa.Table:
    return table.append_column("more", table.column("user"))


def without_lists(table: pa.Table, document: dict[str, Any]) -> pa.Table:
    return table.set_column(table.column_names.index("item"), "item", table.column("user"))


def without_sense(table: pa.Table, document: dict[str, Any]) -> pa.Table:
    document.pop("columns")
    return table


REWRITTEN = {
    of_a_newer_version: r"version.*\b2\b.*\b1\b",
    with_fewer_row_groups: "row groups",
    with_another_column: "columns",
    without_lists: r"'item'.*int64",
    without_sense: r"lastmile\.nested",
}


@pytest.mark.parametrize(
    ("change", "message"), REWRITTEN.items(), ids=lambda x: getattr(x, "__name__", "")
)
def test_a_file_that_another_tool_rewrote_is_refused(lake: Path, change: Any, message: str) -> None:
    rewrite(lake / "nested/day=1/a.parquet", change)
    with pytest.raises(SourceError, match=rf"day=1/a\.parquet: .*{message}"):
        open_(lake / "nested")


def test_lists_that_do_not_fit_the_counts_are_refused_when_read(lake: Path) -> None:
    def cut_lists(table: pa.Table, document: dict[str, Any]) -> pa.Table:
        index = table.column_names.index("item")
        lists = [items[:-1] for items in table.column("item").to_pylist()]
        kind = table.schema.field("item").type
        return table.set_column(index, table.schema.field("item"), pa.array(lists, type=kind))

    rewrite(lake / "nested/day=0/a.parquet", cut_lists)
    table = open_(lake / "nested")
    with pytest.raises(SourceError, match=r"row group 0 .*(list|count)"):
        list(read_flat(table, table.scan(()).units[0], ["item"], 100))


@pytest.mark.parametrize("layout", ["flat", "nested"])
@pytest.mark.parametrize("request_columns", [None, ["user", "history"]])
@pytest.mark.parametrize("chunk_rows", [3, 7, 20, 30, 1000])
@pytest.mark.parametrize("num_ranks", [2, 3, 7])
def test_parts_of_row_groups_have_their_rows_and_places(
    lake: Path, layout: str, request_columns: list[str] | None, chunk_rows: int, num_ranks: int
) -> None:
    pipeline = Pipeline.read_parquet(
        f"{layout}/", request_key="request", request_columns=request_columns
    ).derive(length="list_length(history)")
    experiment = pipeline.experiment("same", shuffle={"unit": "none"})
    stream = replace(build_plan(experiment, str(lake)).training, request_columns=())
    groups = stream.groups(0, chunk_rows)
    expected = [chunk.table for group in groups for chunk in read_group(stream, group, chunk_rows)]
    found = []
    shares = share_groups(groups, num_ranks)
    for group in sorted(chain.from_iterable(shares), key=lambda group: group.index):
        chunks = list(read_group(stream, group, chunk_rows))
        assert len(chunks) == group.num_chunks(chunk_rows)
        for chunk in chunks:
            places = places_of(group, chunk.header, chunk_rows)
            assert chunk.header.num_rows == sum(place.num_rows for place in places) <= chunk_rows
        last = chunks[-1].header.chunk
        assert next(read_group(stream, group, chunk_rows, last)).table == chunks[-1].table
        found += [chunk.table for chunk in chunks]
    assert pa.concat_tables(found) == pa.concat_tables(expected)  # the hashes of places among them
