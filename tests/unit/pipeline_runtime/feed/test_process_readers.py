"""Readers that are processes of this machine make the chunks of the groups, each once."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_runtime import Pipeline
from pipeline_runtime.errors import FeedError, StepError
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.local import process_readers
from pipeline_runtime.feed.local.process_readers import ProcessReaders
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.feed.making.work import read_group
from pipeline_runtime.feed.reader_feed import ReaderFeed, ReaderLost
from pipeline_runtime.feed.transport.wire import Sending
from pipeline_runtime.plan import build_plan, plan_groups

CHUNK_ROWS = 10
STEPS = """
import re
import pyarrow.compute as pc

def double(table):
    return table.set_column(0, "id", pc.multiply(table.column("id"), 2))

def hold(table):
    if table.num_rows:
        re.match(r"(a+)+$", "a" * 60 + "b")  # in C, for years
    return table

def interrupt(table):
    if table.num_rows:
        raise KeyboardInterrupt
    return table
"""
Open = Callable[..., ReaderFeed]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "t").mkdir()
    rows = {"id": range(200), "text": ["ten"] * 200}
    pq.write_table(pa.table(rows), tmp_path / "t/a.parquet", row_group_size=25)
    (tmp_path / "blocked").mkdir()
    pq.write_table(pa.table({"id": [3, 4, 5]}), tmp_path / "blocked/a.parquet")
    (tmp_path / "process_steps.py").write_text(STEPS)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    return tmp_path


@pytest.fixture
def opened() -> Iterator[list[ProcessReaders]]:
    """Close what a test opens."""
    readers: list[ProcessReaders] = []
    yield readers
    for each in readers:
        each.close()


@pytest.fixture
def open_feed(root: Path, opened: list[ProcessReaders]) -> Open:
    def open_one(pipeline: Pipeline, sending: Sending, *, in_order: bool = True) -> ReaderFeed:
        plan = build_plan(pipeline.experiment("processes"), str(root)).training
        streams = {"training": Stream(plan=plan, chunk_rows=CHUNK_ROWS)}
        opened.append(ProcessReaders(streams=streams, sending=sending, num_readers=2))
        groups = plan_groups(
            plan.scan.units, seed=0, epoch=0, shuffle=plan.shuffle, chunk_rows=CHUNK_ROWS
        )
        return opened[-1].open("training", 0, groups, in_order=in_order)

    return open_one


def make_pipeline() -> Pipeline:
    steps = Pipeline.read_parquet("t/", row_key="id")
    return steps.anti_join("blocked/", on=["id"]).map("process_steps:double")


def find_tables(chunks: Iterator[Chunk]) -> list[pa.Table]:
    return [chunk.table for chunk in chunks]


@pytest.mark.parametrize("shares", [True, False], ids=["shared memory", "pipes"])
def test_chunks_are_those_of_the_groups(open_feed: Open, root: Path, shares: bool) -> None:
    feed = open_feed(make_pipeline(), Sending(shared_memory=shares))
    plan = build_plan(make_pipeline().experiment("here"), str(root)).training
    wanted = [chunk.table for g in feed.groups for chunk in read_group(plan, g, CHUNK_ROWS)]
    assert find_tables(feed.chunks(Waited())) == wanted


def test_a_killed_reader_costs_no_chunk(open_feed: Open, opened: list[ProcessReaders]) -> None:
    feed = open_feed(make_pipeline(), Sending(), in_order=False)
    chunks = feed.chunks(Waited())
    found = [next(chunks)]
    assert opened[0]._pool is not None
    killed = {reader.process.pid for reader in opened[0]._pool._readers.values()}
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    found += chunks
    assert len(found) == len({(p.header.group, p.header.chunk) for p in found}) == 24
    assert sum(chunk.header.num_rows for chunk in found) == 197
    assert not killed & {reader.process.pid for reader in opened[0]._pool._readers.values()}


def test_an_error_of_the_work_is_raised_here(open_feed: Open) -> None:
    broken = Pipeline.read_parquet("t/", row_key="id").derive(y="cast(text as bigint)")
    feed = open_feed(broken, Sending(), in_order=False)
    with pytest.raises(StepError, match=r"a\.parquet, row group \d"):
        list(feed.chunks(Waited()))


def test_an_error_that_is_no_exception_is_raised_here(open_feed: Open) -> None:
    interrupted = Pipeline.read_parquet("t/", row_key="id").map("process_steps:interrupt")
    with pytest.raises(RuntimeError, match="KeyboardInterrupt"):
        list(open_feed(interrupted, Sending()).chunks(Waited()))


def test_chunks_in_the_memory_of_a_dead_reader_are_lost(
    open_feed: Open, opened: list[ProcessReaders]
) -> None:
    feed = open_feed(make_pipeline(), Sending())
    crew, pool = feed.crew, opened[0]._pool
    assert pool is not None
    while not crew.readers():
        pool.receive(1.0)
    reader = crew.readers()[0]
    task = Task(position=0, group=feed.groups[0], chunk=0)
    taken, left = (crew.ask(reader, "training", [task]) for _ in range(2))
    while pool._open:
        pool.receive(1.0)
    pool._readers[reader].process.kill()
    while reader in pool._readers:
        pool.receive(1.0)
    with pytest.raises(ReaderLost):
        crew.take(taken, Waited())
    crew.close()  # which lets go of the other
    assert left not in pool._answers


@pytest.mark.skipif(sys.platform != "linux", reason="SIGIO ends a process on Linux alone")
def test_a_reader_ends_with_the_trainer_whatever_it_is_doing(
    open_feed: Open, opened: list[ProcessReaders], monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = open_feed(Pipeline.read_parquet("t/", row_key="id").map("process_steps:hold"), Sending())
    crew, pool = feed.crew, opened[0]._pool
    assert pool is not None
    while len(crew.readers()) < 2:
        pool.receive(1.0)
    for reader in crew.readers():
        crew.ask(reader, "training", [Task(position=0, group=feed.groups[0], chunk=0)])
    pool.receive(2.0)  # until they are busy
    gone, other = pool._readers.values()
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), gone.lifeline)  # closes it, as the trainer's end does
    assert gone.process.wait(30) == -signal.SIGIO
    monkeypatch.setattr(process_readers, "_END_SECONDS", 0.1)
    pool.close()
    assert other.process.poll() == -signal.SIGKILL


def test_pools_of_one_process_name_their_readers_apart(
    open_feed: Open, opened: list[ProcessReaders]
) -> None:
    for _ in range(2):
        open_feed(make_pipeline(), Sending())
    names = [name for readers in opened if readers._pool for name in readers._pool._readers]
    assert len(names) == len(set(names)) == 4


def test_readers_end_with_their_feeds(
    open_feed: Open, opened: list[ProcessReaders], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_readers, "_END_SECONDS", 60.0)  # else they are killed
    chunks = open_feed(make_pipeline(), Sending()).chunks(Waited())
    next(chunks)
    assert opened[0]._pool is not None
    processes = [reader.process for reader in opened[0]._pool._readers.values()]
    opened[0].close()
    assert [process.poll() for process in processes] == [0, 0]


def test_readers_that_never_come_up_end_the_run(
    open_feed: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_readers, "_PROGRAM", "raise SystemExit(7)")
    with pytest.raises(FeedError, match="code 7"):
        next(open_feed(make_pipeline(), Sending()).chunks(Waited()))
