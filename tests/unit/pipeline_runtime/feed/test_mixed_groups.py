"""The feed of a clustered table: chunks take rows of all units of their group in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from arrow_memory import measure_arrow_memory
from clustered_files import Layout, mark_as_clustered, write_clustered_files
from iceberg_tables import Lake
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField

from pipeline_runtime import Pipeline
from pipeline_runtime.errors import SourceError, StepError
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.local.thread_readers import ThreadReaders
from pipeline_runtime.feed.making.group_reading import places_of
from pipeline_runtime.feed.making.maker import ChunkMaker, Stream
from pipeline_runtime.feed.making.work import read_group
from pipeline_runtime.kernels import warm
from pipeline_runtime.loader import Loader
from pipeline_runtime.plan import StreamPlan, build_plan, share_groups
from pipeline_runtime.sources import Unit
from pipeline_runtime.sources.parquet.table import ParquetTable

LAYOUT = Layout(rows=6_000, days=4, buckets=4)
CHUNK_ROWS = 500


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clustered_files(tmp_path_factory.mktemp("mixed") / "t", LAYOUT)


@pytest.fixture(autouse=True)
def clustered(monkeypatch: pytest.MonkeyPatch) -> None:
    mark_as_clustered(monkeypatch)


def build_stream(pipeline: Pipeline, unit: str = "Row") -> StreamPlan:
    plan = build_plan(pipeline.experiment("mixed"), "").training
    return replace(plan, shuffle=plan.shuffle.model_copy(update={"unit": unit}))


def test_every_chunk_has_rows_of_all_units_of_its_group(table: Path) -> None:
    stream = build_stream(Pipeline.read_parquet(f"{table}/").filter("label >= 0"))
    found: list[int] = []
    groups = stream.groups(0, CHUNK_ROWS)
    assert min(len(group.units) for group in groups) >= 8
    for group in groups:
        chunks = list(read_group(stream, group, CHUNK_ROWS))
        assert len(chunks) == group.num_chunks(CHUNK_ROWS) > 1
        for chunk in chunks:
            rows = chunk.table
            assert 0 < rows.num_rows <= CHUNK_ROWS
            places = places_of(group, chunk.header, CHUNK_ROWS)
            assert all(place.num_rows for place in places)
            assert sum(place.num_rows for place in places) == rows.num_rows
            days = Counter[str]()
            for place in places:
                days[place.file.split("/")[0]] += place.num_rows
            counted = Counter(f"day={day}" for day in rows["day"].to_pylist())
            assert counted == days
            found += rows["x"].to_pylist()
    assert sorted(found) == list(range(LAYOUT.rows))


def test_no_row_is_decoded_twice(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = build_stream(Pipeline.read_parquet(f"{table}/"))
    read = Counter[tuple[str, int]]()
    read_unit = ParquetTable.read

    def count(self: ParquetTable, unit: Unit, *args: Any, **kwargs: Any) -> Iterator[Any]:
        for rows in read_unit(self, unit, *args, **kwargs):
            read[unit.place, unit.index] += rows.num_rows
            yield rows

    monkeypatch.setattr(ParquetTable, "read", count)
    for group in stream.groups(0, CHUNK_ROWS):
        list(read_group(stream, group, CHUNK_ROWS))
    assert read == {(unit.place, unit.index): unit.num_rows for unit in stream.scan.units}


@pytest.mark.parametrize("unit", ["Row", "Request"])
def test_a_chunk_depends_on_its_group_and_index_alone(table: Path, unit: str) -> None:
    pipeline = Pipeline.read_parquet(f"{table}/", request_key="user")
    stream = replace(build_stream(pipeline, unit), request_key="user")
    [group, *_] = stream.groups(1, CHUNK_ROWS)
    wanted = [chunk.table for chunk in read_group(stream, group, CHUNK_ROWS)]
    for first in range(len(wanted)):
        later = read_group(stream, group, CHUNK_ROWS, first)
        assert [chunk.table for chunk in later] == wanted[first:]
    with ThreadPoolExecutor(1) as reading:
        ahead = read_group(stream, group, CHUNK_ROWS, reading=reading)
        assert [chunk.table for chunk in ahead] == wanted
    maker = ChunkMaker(lambda role: Stream(plan=stream, chunk_rows=CHUNK_ROWS))
    for chunk in (1, 0, 1, 2):  # as after the loss of a reader
        made = maker.make("training", Task(position=0, group=group, chunk=chunk))
        assert made.table == wanted[chunk]


def test_readers_deliver_the_same_chunks_whatever_their_number(table: Path) -> None:
    stream = build_stream(Pipeline.read_parquet(f"{table}/"))
    groups = stream.groups(0, CHUNK_ROWS)
    wanted = [chunk.table for g in groups for chunk in read_group(stream, g, CHUNK_ROWS)]
    streams = {"training": Stream(plan=stream, chunk_rows=CHUNK_ROWS)}
    for num_threads in (1, 3):
        readers = ThreadReaders(streams=streams, num_threads=num_threads)
        feed = readers.open("training", 0, groups, in_order=True)
        assert [chunk.table for chunk in feed.chunks(Waited())] == wanted


def test_a_reader_of_an_iceberg_table_holds_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, chunk_rows = 1 << 20, 5_000
    warm()  # else pyarrow decodes, until the kernels are compiled
    monkeypatch.setattr("pipeline_runtime.feed.making.group_reading.MAX_CHUNK_BYTES", limit)
    lake = Lake(tmp_path)
    names = ["key", "a", "b", "c"]
    schema = Schema(*(NestedField(i, name, LongType()) for i, name in enumerate(names, 1)))
    table = lake.create("wide", schema, ("key", BucketTransform(8)))
    # A page is decoded at once, so these have few rows.
    small = {"write.parquet.page-size-bytes": "256", "write.parquet.page-row-limit": "500"}
    with table.transaction() as transaction:
        transaction.set_properties(small)
    # A byte per number in the files, eight in memory.
    rows = pa.table({name: np.arange(1_000_000) % (200 + i) for i, name in enumerate(names)})
    table.append(rows)
    pipeline = Pipeline.read_iceberg("db.wide", lake.model.model_dump(mode="json"))
    stream = build_stream(pipeline)
    [group] = stream.groups(0, chunk_rows)
    with measure_arrow_memory() as pool:
        chunks = read_group(stream, group, chunk_rows)
        assert sum(chunk.table.num_rows for chunk in chunks) == rows.num_rows
    sizes = stream.table.sizes(group.units, stream.read_columns).values()
    bound = sum(size.stored_bytes for size in sizes) + 6 * limit  # docs/iceberg.md
    assert pool.max_memory() < bound < rows.nbytes / 3


def test_an_error_names_the_rows_of_the_chunk(table: Path) -> None:
    stream = build_stream(Pipeline.read_parquet(f"{table}/").map("clustered_files:refuse_rows"))
    [group, *_] = stream.groups(0, CHUNK_ROWS)
    with pytest.raises(StepError, match=r"day=\d/bucket-\d\d.parquet, row group 0, rows 0–\d\d;"):
        list(read_group(stream, group, CHUNK_ROWS))


def test_a_file_that_was_rewritten_is_noticed(table: Path) -> None:
    stream = build_stream(Pipeline.read_parquet(f"{table}/"))
    [group, *_] = stream.groups(0, CHUNK_ROWS)
    for rows in (-1, 1):
        unit = replace(group.units[3], num_rows=group.units[3].num_rows + rows)
        changed = replace(group, units=(*group.units[:3], unit, *group.units[4:]))
        with pytest.raises(SourceError, match=unit.place):
            list(read_group(stream, changed, CHUNK_ROWS))


def open_loader(table: Path, **options: Any) -> Loader:
    pipeline = Pipeline.read_parquet(f"{table}/", request_key="user")
    shuffle = {"window_rows": CHUNK_ROWS, "unit": options.pop("unit", "Row")}
    return pipeline.loader(90, ["x"], shuffle=shuffle, seed=2, **options)


@pytest.mark.parametrize("unit", ["Row", "Request"])
@pytest.mark.parametrize("stop", [1, 17, 40])
def test_a_loader_resumes_in_the_middle_of_a_group(table: Path, unit: str, stop: int) -> None:
    loader = open_loader(table, unit=unit)
    expected = [batch["x"].tolist() for batch in loader]
    assert sorted(x for batch in expected for x in batch) == list(range(LAYOUT.rows))
    loader.set_epoch(0)
    assert [batch["x"].tolist() for batch in islice(loader, stop)] == expected[:stop]
    resumed = open_loader(table, unit=unit)
    resumed.load_state_dict(loader.state_dict())
    assert [batch["x"].tolist() for batch in resumed] == expected[stop:]


@pytest.mark.parametrize("num_ranks", [2, 5])
def test_ranks_of_a_loader_share_the_rows_equally(table: Path, num_ranks: int) -> None:
    stream = build_stream(Pipeline.read_parquet(f"{table}/"))
    found: list[list[int]] = []
    for groups in share_groups(stream.groups(0, CHUNK_ROWS), num_ranks):
        chunks = [list(read_group(stream, group, CHUNK_ROWS)) for group in groups]
        assert list(map(len, chunks)) == [group.num_chunks(CHUNK_ROWS) for group in groups]
        tables = [chunk.table for some in chunks for chunk in some]
        found.append([x for rows in tables for x in rows["x"].to_pylist()])
    assert sorted(x for rows in found for x in rows) == list(range(LAYOUT.rows))
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_without_a_shuffle_rows_keep_the_tables_order(table: Path) -> None:
    stream = build_stream(Pipeline.read_parquet(f"{table}/"), "None")
    places = [(u.place, u.index) for g in stream.groups(0, CHUNK_ROWS) for u in g.units]
    assert places == [(unit.place, unit.index) for unit in stream.scan.units]
