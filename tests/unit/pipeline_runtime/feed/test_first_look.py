"""Readers read the filters' columns first, and of the others what the rows left need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from facts import assert_one_tells

from pipeline_runtime import Pipeline, kernels
from pipeline_runtime.config import ParquetSource
from pipeline_runtime.convert import ConversionOptions, convert_table
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.making.maker import ChunkMaker, Stream
from pipeline_runtime.feed.making.work import read_group
from pipeline_runtime.plan import Group, build_plan, explain, plan_groups
from pipeline_runtime.plan.model import StreamPlan
from pipeline_runtime.sources import Unit, open_location
from pipeline_runtime.sources.gather import Int64s
from pipeline_runtime.sources.parquet import open_parquet

ROWS, UNIT_ROWS = 600, 50
SHARED = ("user", "age", "history")
Story = Callable[[Pipeline], Pipeline]


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    assert kernels.warm()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """`flat.parquet` and `nested`: the same rows, five a request; `sorted` rises with them."""
    path = tmp_path_factory.mktemp("first-look")
    requests = [row // 5 for row in range(ROWS)]
    columns = {
        "id": range(ROWS),
        "request": requests,
        "user": [request % 7 for request in requests],
        "age": [request / 3 for request in requests],
        "history": [[request] * (request % 4) for request in requests],
        "sorted": [row // UNIT_ROWS for row in range(ROWS)],
        "score": [row / 7 for row in range(ROWS)],
        "items": [[row, None] if row % 5 == 0 else [row] * (row % 3) for row in range(ROWS)],
    }
    pq.write_table(pa.table(columns), path / "flat.parquet", row_group_size=UNIT_ROWS)
    convert_table(
        open_parquet(ParquetSource(uri=str(path / "flat.parquet")), ""),
        open_location(str(path / "nested")),
        ConversionOptions(
            request_key="request",
            request_columns=SHARED,
            has_row_key=True,
            rows_per_group=UNIT_ROWS,
        ),
    )
    pq.write_table(pa.table({"user": [1, 3]}), path / "spam.parquet")
    return str(path)


STORIES: dict[str, Story] = {
    "no row of most row groups": lambda base: base.filter("sorted % 4 = 1").derive(twice="id * 2"),
    "no row at all": lambda base: base.filter("sorted > 99").pad_sequence("items", length=2),
    "every row": lambda base: base.filter("id >= 0"),
    "a column made before the filter": lambda base: (
        base.derive(label="sorted % 3 = 0").filter("label").pad_sequence("history", length=3)
    ),
    "a request's column": lambda base: base.filter("user = 2").derive(older="age + 1"),
    "rows thinned and weighed": lambda base: (
        base.filter("sorted < 6")
        .downsample(30, where="score < 50", seed=3, weight_column="weight")
        .derive(half="score / 2")
    ),
    "a column renamed, and one dropped before the last filter": lambda base: (
        base.filter("sorted < 5").rename({"score": "points"}).drop("age").filter("points > 3")
    ),
    "what identifies rows alone": lambda base: base.sample(5, seed=1),
}


def plan_of(uri: str, story: Story, **options: Any) -> StreamPlan:
    base = Pipeline.read_parquet(uri, row_key="id", request_key="request")
    pipeline = story(base).with_options(pushdown=False, **options)
    experiment = pipeline.experiment("look", shuffle={"unit": "none"})
    return build_plan(experiment, "").training


def groups_of(plan: StreamPlan, chunk_rows: int) -> list[Group]:
    units = plan.scan.units
    return plan_groups(units, seed=0, epoch=0, shuffle=plan.shuffle, chunk_rows=chunk_rows)


@pytest.mark.parametrize(
    "off", [(), ("kernels",), ("projection",), ("deduplication",), ("page_decoding",)]
)
@pytest.mark.parametrize("chunk_rows", [UNIT_ROWS, 2 * UNIT_ROWS + 20, 30])
@pytest.mark.parametrize("table", ["flat.parquet", "nested"])
@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_chunks_are_the_same(
    folder: str, table: str, story: Story, chunk_rows: int, off: tuple[str, ...]
) -> None:
    plan = plan_of(f"{folder}/{table}", story, **dict.fromkeys(off, False))
    assert plan.first_look is not None
    for group in groups_of(plan, chunk_rows):
        chunks = zip(
            read_group(plan, group, chunk_rows, looks_first=True),
            read_group(plan, group, chunk_rows),
            strict=True,
        )
        for mine, theirs in chunks:
            assert mine.table.equals(theirs.table)
            assert [c.rows for c in mine.header.counts] == [c.rows for c in theirs.header.counts]
            times = {"counts": mine.header.counts, "read_seconds": mine.header.read_seconds}
            assert mine.header == replace(theirs.header, **times)


@dataclass(slots=True)
class Recorder:
    """A table that notes which columns are read, and of how many rows where not of all."""

    table: Any
    read_columns: list[frozenset[str]] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)

    def read(
        self,
        unit: Unit,
        columns: Sequence[str],
        max_rows: int,
        *,
        rows: Int64s | None = None,
    ) -> Iterator[Any]:
        if rows is None:
            self.read_columns.append(frozenset(columns))
        else:
            self.chosen.append(len(rows))
        yield from self.table.read(unit, columns, max_rows, rows=rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.table, name)


@pytest.mark.parametrize("table", ["flat.parquet", "nested"])
def test_what_no_filter_reads_is_not_read_where_no_row_is_left(folder: str, table: str) -> None:
    plan = plan_of(f"{folder}/{table}", STORIES["no row of most row groups"])
    recorder = Recorder(plan.table)
    plan = replace(plan, table=recorder)
    units = plan.scan.units
    chunks: list[Chunk] = []
    for index, unit in enumerate(units):
        group = Group(epoch=0, index=index, units=(unit,))
        chunks += read_group(plan, group, max(u.num_rows for u in units), looks_first=True)
    num_left = sum(chunk.header.num_rows > 0 for chunk in chunks)
    assert 0 < num_left < len(units)
    assert recorder.read_columns.count(frozenset({"sorted", "id"})) == len(units)
    assert len(recorder.read_columns) == len(units) + num_left


def test_a_reader_looks_first_once_many_chunks_are_left_without_a_row(folder: str) -> None:
    plan = plan_of(f"{folder}/flat.parquet", lambda base: base.filter("sorted < 2"))
    recorder = Recorder(plan.table)
    plan = replace(plan, table=recorder)
    maker = ChunkMaker({"training": Stream(plan=plan, chunk_rows=UNIT_ROWS)}.__getitem__)
    groups = groups_of(plan, UNIT_ROWS)
    for position, group in enumerate(groups):
        maker.make("training", Task(position=position, group=group, chunk=0))
    is_whole = [columns >= {"items", "history"} for columns in recorder.read_columns]
    assert is_whole[:5] == [True] * 5  # two with rows, three of which none is left
    assert not any(is_whole[5:])
    assert len(is_whole) == len(groups)


def test_where_it_spares_nothing_all_is_read_at_once(folder: str) -> None:
    uri = f"{folder}/flat.parquet"
    first = plan_of(uri, lambda base: base.filter("sorted < 2")).first_look
    assert first is not None
    assert first.columns == ("sorted",)
    assert plan_of(uri, lambda base: base.derive(one="1")).first_look is None
    off = plan_of(uri, lambda base: base.filter("sorted < 2"), late_materialization=False)
    assert off.first_look is None
    narrow = plan_of(uri, lambda base: base.filter("sorted < 2 and id > 1").select("sorted", "id"))
    assert narrow.first_look is None


def test_explain_says_what_is_read_first(folder: str) -> None:
    base = Pipeline.read_parquet(f"{folder}/flat.parquet", row_key="id")
    text = explain(build_plan(base.filter("sorted < 2").experiment("look"), ""))
    assert_one_tells(text.splitlines(), "… first … : sorted")


LONG = 20_000  # rows of a row group that has many pages


@pytest.fixture(scope="module")
def long_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """`flat` and `nested`: the same rows, five a request, in two long row groups of many pages."""
    path = tmp_path_factory.mktemp("long")
    row = np.arange(2 * LONG)
    request = row // 5
    rng = np.random.default_rng(4)
    items = rng.integers(0, 1 << 40, 2 * LONG // 5 + 200)  # of a request up to 199 of them
    lists = [items[i : i + i % 200] for i in request.tolist()]
    columns = {
        "id": row,
        "request": request,
        "user": request % 7,
        "age": pa.array(request / 3, mask=request % 11 == 0),
        "history": pa.array(lists, pa.list_(pa.int64())),
        "score": pa.array(rng.random(len(row)), mask=rng.random(len(row)) < 0.2),
        "text": [str(i) for i in row],
    }
    (path / "flat").mkdir()
    pq.write_table(
        pa.table(columns),
        path / "flat" / "a.parquet",
        row_group_size=LONG,
        data_page_size=4096,
        data_page_version="2.0",
    )
    convert_table(
        open_parquet(ParquetSource(uri=str(path / "flat")), ""),
        open_location(str(path / "nested")),
        ConversionOptions(
            request_key="request", request_columns=SHARED, has_row_key=True, rows_per_group=LONG
        ),
    )
    return str(path)


LONG_STORIES: dict[str, Story] = {
    "rows together": lambda base: base.filter("id % 10000 < 300").derive(twice="score * 2"),
    "few rows all over": lambda base: base.filter("id % 97 = 0").pad_sequence("history", length=4),
    "the last row": lambda base: base.filter("id = 39999"),
    "a request's column": lambda base: base.filter("request % 3000 < 20").derive(older="age + 1"),
    "a shared column made before": lambda base: (
        base.derive(even="user % 2 = 0").filter("even and id % 5000 < 600").downsample(70, seed=2)
    ),
}


@pytest.mark.parametrize("off", [(), ("kernels",), ("deduplication",), ("page_decoding",)])
@pytest.mark.parametrize("chunk_rows", [LONG, 2 * LONG])
@pytest.mark.parametrize("table", ["flat", "nested"])
@pytest.mark.parametrize("story", LONG_STORIES.values(), ids=LONG_STORIES)
def test_rows_left_of_long_row_groups_are_the_same(
    long_folder: str, table: str, story: Story, chunk_rows: int, off: tuple[str, ...]
) -> None:
    plan = plan_of(f"{long_folder}/{table}", story, **dict.fromkeys(off, False))
    assert plan.first_look is not None
    for group in groups_of(plan, chunk_rows):
        [mine] = read_group(plan, group, chunk_rows, looks_first=True)
        [theirs] = read_group(plan, group, chunk_rows)
        assert mine.table.equals(theirs.table)
        assert [c.rows for c in mine.header.counts] == [c.rows for c in theirs.header.counts]
        assert mine.header.idle_share == theirs.header.idle_share


@pytest.mark.parametrize(
    ("story", "looks_first"), [("rows together", True), ("few rows all over", False)]
)
def test_a_reader_looks_first_once_rows_that_are_left_lie_together(
    long_folder: str, story: str, looks_first: bool
) -> None:
    plan = plan_of(f"{long_folder}/flat", LONG_STORIES[story])
    recorder = Recorder(plan.table)
    plan = replace(plan, table=recorder)
    maker = ChunkMaker({"training": Stream(plan=plan, chunk_rows=LONG)}.__getitem__)
    [group, _] = groups_of(plan, LONG)
    for _ in range(4):
        maker.make("training", Task(position=0, group=group, chunk=0))
    assert recorder.chosen == ([600] if looks_first else [])
