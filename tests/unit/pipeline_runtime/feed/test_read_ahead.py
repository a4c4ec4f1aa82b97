"""Reading ahead from a store: the next rows are read during other work, and stay the same."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem
from hypothesis import given
from hypothesis import strategies as st

from pipeline_runtime import Pipeline
from pipeline_runtime.config.steps import PipelineOptions
from pipeline_runtime.config.texts.storage_uri import SCHEMES_VARIABLE
from pipeline_runtime.errors import SourceError, StepError
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.local.thread_readers import ThreadReaders, threads_per_rank
from pipeline_runtime.feed.making.maker import ChunkMaker, Stream
from pipeline_runtime.feed.making.work import read_group
from pipeline_runtime.plan import Group, build_plan, plan_groups

CHUNK_ROWS = 10
NUM_ROWS, GROUP_ROWS = 200, 25
WAIT_SECONDS = 30


class Watched(LocalFileSystem):  # type: ignore[misc]
    """A store that counts opened files, one per row group read, and can delay them."""

    protocol = "watched"
    opened = 0
    gate = Event()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = super()._strip_protocol(path.removeprefix("watched://"))
        return stripped

    def _open(self, path: str, *arguments: Any, **options: Any) -> Any:
        assert Watched.gate.wait(WAIT_SECONDS)
        Watched.opened += 1
        return super()._open(path, *arguments, **options)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv(SCHEMES_VARIABLE, "watched")
    fsspec.register_implementation("watched", Watched, clobber=True)
    rows = {
        "id": range(NUM_ROWS),
        "x": [i % 7 for i in range(NUM_ROWS)],
        "text": [str(i) if i != 60 else "ten" for i in range(NUM_ROWS)],
    }
    pq.write_table(pa.table(rows), tmp_path / "a.parquet", row_group_size=GROUP_ROWS)
    Watched.gate.set()
    yield f"watched://{tmp_path}/a.parquet"
    Watched.gate.set()


def open_stream(
    uri: str, chunk_rows: int = GROUP_ROWS, derive: str = "x + 1", **options: Any
) -> tuple[Stream, list[Group]]:
    base = Pipeline.read_parquet(uri, row_key="id").filter("x > 1").derive(y=derive)
    base = base.with_options(**options) if options else base
    plan = build_plan(base.experiment("ahead"), "").training
    groups = plan_groups(
        plan.scan.units, seed=0, epoch=0, shuffle=plan.shuffle, chunk_rows=chunk_rows
    )
    return Stream(plan=plan, chunk_rows=chunk_rows), list(groups)


def wait_until_opened(times: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while Watched.opened < times and time.monotonic() < deadline:
        time.sleep(0.01)
    assert Watched.opened == times


def make(maker: ChunkMaker, task: Task) -> pa.Table:
    chunk = maker.make("training", task)
    return chunk.table


def first_of(group: Group) -> Task:
    return Task(position=group.index, group=group, chunk=0)


def test_only_a_store_is_read_ahead_and_only_if_enabled(store: str) -> None:
    assert open_stream(store)[0].plan.reads_ahead
    assert not open_stream(store.removeprefix("watched://"))[0].plan.reads_ahead
    assert not open_stream(store, read_ahead=False)[0].plan.reads_ahead
    assert PipelineOptions().debug.read_ahead


def test_the_next_group_is_read_ahead(store: str) -> None:
    stream, groups = open_stream(store)
    maker = ChunkMaker(lambda role: stream)
    before = Watched.opened
    maker.make("training", first_of(groups[0]))
    assert Watched.opened == before + 1
    maker.read_ahead("training", first_of(groups[1]))
    wait_until_opened(before + 2)
    maker.read_ahead("training", first_of(groups[1]))  # already read
    maker.read_ahead("training", first_of(groups[0]))  # already made
    made = make(maker, first_of(groups[1]))
    assert Watched.opened == before + 2
    [wanted] = read_group(stream.plan, groups[1], GROUP_ROWS)
    assert made == wanted.table


def test_reading_ahead_does_not_wait_for_the_store(store: str) -> None:
    stream, groups = open_stream(store)
    maker = ChunkMaker(lambda role: stream)
    Watched.gate.clear()
    maker.read_ahead("training", first_of(groups[0]))
    Watched.gate.set()
    assert maker.make("training", first_of(groups[0])).header.group == 0


def test_nothing_is_read_twice_with_several_trainers(store: str) -> None:
    stream, groups = open_stream(store)
    maker = ChunkMaker(lambda role: stream)
    before = Watched.opened
    for told in range(0, len(groups), 4):  # two calls of two trainers
        for group in groups[told : told + 4]:
            maker.read_ahead("training", first_of(group))
        for group in groups[told : told + 4]:
            make(maker, first_of(group))
    assert Watched.opened == before + len(groups)


def test_nothing_is_read_twice_by_calls_of_several_chunks(store: str) -> None:
    stream, groups = open_stream(store)
    maker = ChunkMaker(lambda role: stream)
    before = Watched.opened
    maker.read_ahead("training", first_of(groups[0]))
    maker.read_ahead("training", first_of(groups[4]))  # first group of the next call
    for call in (groups[:4], groups[4:]):
        for group, following in zip(call, [*call[1:], None], strict=True):
            if following is not None:
                maker.read_ahead("training", first_of(following), is_next=True)
            make(maker, first_of(group))
    assert Watched.opened == before + len(groups)


def test_unused_rows_are_evicted(store: str) -> None:
    stream, groups = open_stream(store)
    maker = ChunkMaker(lambda role: stream)
    for group in groups[:2]:
        maker.read_ahead("training", first_of(group))
    for _ in range(12):
        for group in groups[4:]:
            make(maker, first_of(group))
    wait_until_opened(before := Watched.opened)
    maker.read_ahead("training", first_of(groups[2]))
    wait_until_opened(before + 1)


@given(data=st.data(), chunk_rows=st.sampled_from([CHUNK_ROWS, GROUP_ROWS, 60]))
def test_chunks_do_not_depend_on_the_order_of_requests(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, chunk_rows: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "rows.parquet"
    if not path.exists():
        rows = {"id": range(NUM_ROWS), "x": [i % 7 for i in range(NUM_ROWS)]}
        pq.write_table(pa.table(rows), path, row_group_size=GROUP_ROWS)
    stream, groups = open_stream(str(path), chunk_rows)
    ahead = replace(stream, plan=replace(stream.plan, reads_ahead=True))
    maker, plain = ChunkMaker(lambda role: ahead), ChunkMaker(lambda role: stream)
    tasks = [
        Task(position=group.index, group=group, chunk=chunk)
        for group in groups
        for chunk in range(group.num_chunks(chunk_rows))
    ]
    asked = data.draw(st.lists(st.sampled_from(tasks), max_size=12))
    for task in asked or tasks:
        for early in data.draw(st.lists(st.sampled_from(tasks), max_size=3)):
            maker.read_ahead("training", early)
        assert make(maker, task) == make(plain, task)
    maker.rest()


def test_threads_deliver_every_row_of_a_store(store: str) -> None:
    stream, groups = open_stream(store, CHUNK_ROWS)
    source = ThreadReaders(streams={"training": stream}, num_threads=threads_per_rank(1))
    feed = source.open("training", 0, groups, in_order=True)
    found = [chunk.table for chunk in feed.chunks(Waited())]
    wanted = [p.table for g in groups for p in read_group(stream.plan, g, CHUNK_ROWS)]
    assert pa.concat_tables(found) == pa.concat_tables(wanted)


def test_a_read_error_is_raised_on_request(store: str) -> None:
    stream, groups = open_stream(store)
    maker = ChunkMaker(lambda role: stream)
    path = Path(store.removeprefix("watched://"))
    path.write_bytes(path.read_bytes()[:100])
    maker.read_ahead("training", first_of(groups[0]))
    with pytest.raises(SourceError, match=r"a\.parquet"):
        maker.make("training", first_of(groups[0]))


def test_a_failing_row_is_named_after_reading_ahead(store: str) -> None:
    stream, groups = open_stream(store, derive="cast(text as bigint)")
    maker = ChunkMaker(lambda role: stream)
    bad = 60 // GROUP_ROWS
    [group] = [group for group in groups if group.units[0].index == bad]
    maker.read_ahead("training", first_of(group))
    with pytest.raises(StepError, match=rf"a\.parquet, row group {bad}"):
        maker.make("training", first_of(group))
