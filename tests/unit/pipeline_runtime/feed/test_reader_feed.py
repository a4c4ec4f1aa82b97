"""The feed over readers: whatever they do, every chunk once, in order if asked, never far ahead."""

import time
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_tests import examples

from pipeline_runtime import Pipeline
from pipeline_runtime.errors import FeedError, StepError
from pipeline_runtime.feed import reader_feed
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.chunk import Chunk, Header, StepCount
from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.local.thread_readers import ThreadReaders, threads_per_rank
from pipeline_runtime.feed.making.maker import ChunkMaker, Stream
from pipeline_runtime.feed.making.work import read_group
from pipeline_runtime.feed.reader_feed import ReaderFeed, ReaderLost
from pipeline_runtime.plan import Group, build_plan, plan_groups
from pipeline_runtime.sources import Unit

CHUNK_ROWS = 10


def groups_of(lengths: Sequence[int]) -> list[Group]:
    units = [Unit(place="f", index=i, num_rows=n, num_bytes=n) for i, n in enumerate(lengths)]
    return [Group(epoch=0, index=i, units=(unit,)) for i, unit in enumerate(units)]


def make_chunk(task: Task) -> Chunk:
    last = task.group.num_chunks(CHUNK_ROWS) - 1
    header = Header(
        epoch=0,
        group=task.group.index,
        chunk=task.chunk,
        is_last=task.chunk == last,
        num_rows=1,
        counts=(StepCount(rows=1, num_bytes=1, seconds=0.3),),
    )
    return Chunk(header=header, rows=pa.table({"place": [f"{task.place}"]}))


class DrawnCrew:
    """Readers that finish in a drawn order, come late and go when they like."""

    def __init__(self, draw: Any, num_readers: int, losses: int) -> None:
        self._draw = draw
        self._names = [f"r{i}" for i in range(num_readers)]
        self._next = num_readers
        self._losses = losses
        self.call_seconds = draw(st.sampled_from([0.0, 1.0]))
        self._tickets: dict[int, tuple[str, Sequence[Task]]] = {}
        self._gone: set[str] = set()
        self._count = 0
        self.most_asked = 0
        self.is_closed = False

    def readers(self) -> Sequence[str]:
        if self._names and self._draw(st.integers(0, 9)) == 0:
            self._names.pop(0)  # it makes what it was asked for, and nothing more
        if not self._names or self._draw(st.booleans()):
            self._names.append(f"r{self._next}")
            self._next += 1
        return tuple(self._names[:4])

    def worker(self, reader: str) -> str:
        return reader

    def ask(self, reader: str, role: str, tasks: Sequence[Task]) -> Hashable:
        assert role == "training"
        assert tasks
        self._count += 1
        self._tickets[self._count] = (reader, tasks)
        self.most_asked = max(self.most_asked, len(self._tickets))
        return self._count

    def wait(self, tickets: Sequence[Any], waited: Waited) -> Hashable | None:
        assert tickets, "a reader is there and nobody is asked: it would stay so for ever"
        assert set(tickets) <= set(self._tickets)
        return self._draw(st.sampled_from([None, *tickets]))

    def take(self, ticket: Any, waited: Waited) -> list[Chunk]:
        reader, tasks = self._tickets.pop(ticket)
        if reader in self._gone or (self._losses and self._draw(st.integers(0, 4)) == 0):
            self._losses -= 1
            raise ReaderLost
        return [make_chunk(task) for task in tasks]

    def lose(self, reader: str) -> None:
        self._names = [name for name in self._names if name != reader]
        self._tickets = {t: asked for t, asked in self._tickets.items() if asked[0] != reader}

    def close(self) -> None:
        self.is_closed = True


@settings(max_examples=examples(20))
@given(
    data=st.data(),
    lengths=st.lists(st.integers(0, 75), max_size=6),
    in_order=st.booleans(),
    credit=st.sampled_from([1, 3, 100]),  # chunks that may be ahead
)
def test_every_chunk_comes_once(
    data: st.DataObject, lengths: list[int], in_order: bool, credit: int
) -> None:
    crew = DrawnCrew(data.draw, num_readers=data.draw(st.integers(0, 3)), losses=5)
    feed = ReaderFeed(
        crew=crew,
        role="training",
        groups=groups_of(lengths),
        chunk_rows=CHUNK_ROWS,
        in_order=in_order,
    )
    with pytest.MonkeyPatch.context() as patch:
        size = make_chunk(Task(position=0, group=groups_of([1])[0], chunk=0)).table.nbytes
        patch.setattr(reader_feed, "CREDIT_BYTES", credit * max(size, CHUNK_ROWS) * 1.5)
        places = [(p.header.group, p.header.chunk) for p in feed.chunks(Waited())]
    wanted = [
        (group.index, chunk)
        for group in feed.groups
        for chunk in range(group.num_chunks(CHUNK_ROWS))
    ]
    assert (places if in_order else sorted(places)) == wanted
    assert crew.is_closed
    assert crew.most_asked <= 8  # two a reader, of at most four


class PromptCrew:
    """Two readers that make what they were asked for in the order of the calls."""

    def __init__(self, call_seconds: float) -> None:
        self.call_seconds = call_seconds
        self.calls: list[tuple[str, Sequence[Task]]] = []

    def readers(self) -> Sequence[str]:
        return ("a", "b")

    def worker(self, reader: str) -> str:
        return reader

    def ask(self, reader: str, role: str, tasks: Sequence[Task]) -> Hashable:
        self.calls.append((reader, tasks))
        return len(self.calls) - 1

    def wait(self, tickets: Sequence[Any], waited: Waited) -> Hashable | None:
        return min(tickets)  # type: ignore[no-any-return]

    def take(self, ticket: Any, waited: Waited) -> list[Chunk]:
        return [make_chunk(task) for task in self.calls[ticket][1]]

    def lose(self, reader: str) -> None:
        raise AssertionError(f"nobody is lost: {reader}")

    def close(self) -> None:
        pass


class ManyCrew(PromptCrew):
    """More readers than there are chunks that may be ahead by their bytes."""

    def readers(self) -> Sequence[str]:
        return tuple(f"r{index}" for index in range(24))


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("lengths", [[CHUNK_ROWS] * 240, [10 * CHUNK_ROWS] * 24])
def test_no_reader_is_idle_for_want_of_credit(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int], in_order: bool
) -> None:
    size = make_chunk(Task(position=0, group=groups_of([1])[0], chunk=0)).table.nbytes
    monkeypatch.setattr(reader_feed, "CREDIT_BYTES", 3 * max(size, CHUNK_ROWS))
    crew = ManyCrew(call_seconds=0.0)
    groups = groups_of(lengths)
    feed = ReaderFeed(
        crew=crew, role="training", groups=groups, chunk_rows=CHUNK_ROWS, in_order=in_order
    )
    chunks = feed.chunks(Waited())
    for _ in range(100):
        next(chunks)
    asked = [reader for reader, _ in crew.calls]
    assert set(asked[:24]) == set(crew.readers())  # one each before the first came
    assert len(asked) <= 100 + 24
    if not in_order or max(lengths) == CHUNK_ROWS:  # else later groups' chunks wait for the first's
        assert min(asked.count(reader) for reader in crew.readers()) >= 3


@pytest.mark.parametrize(
    ("call_seconds", "most"),
    [
        pytest.param(1.0, 3, id="three chunks of 0.3 s are worth a call"),
        pytest.param(0.0, 1, id="a call costs nothing"),
    ],
)
@pytest.mark.parametrize("in_order", [True, False])
def test_a_call_is_worth_its_while_and_the_last_ones_are_small(
    call_seconds: float, most: int, in_order: bool
) -> None:
    crew = PromptCrew(call_seconds)
    groups = groups_of([CHUNK_ROWS] * 60)
    feed = ReaderFeed(
        crew=crew, role="training", groups=groups, chunk_rows=CHUNK_ROWS, in_order=in_order
    )
    found = [chunk.header.group for chunk in feed.chunks(Waited())]
    lengths = [len(tasks) for _, tasks in crew.calls]
    assert found == list(range(60))
    assert lengths[0] == lengths[-1] == 1  # nothing is known yet; nobody is kept waiting
    assert max(lengths) == most
    assert sum(lengths) == 60


class JoinedCrew(PromptCrew):
    """The second reader comes once the first has made something."""

    def readers(self) -> Sequence[str]:
        return ("a", "b") if len(self.calls) > 8 else ("a",)


@pytest.mark.parametrize("in_order", [True, False])
def test_a_reader_that_joins_is_asked_at_once(in_order: bool) -> None:
    crew = JoinedCrew(call_seconds=3.0)
    groups = groups_of([CHUNK_ROWS] * 400)
    feed = ReaderFeed(
        crew=crew, role="training", groups=groups, chunk_rows=CHUNK_ROWS, in_order=in_order
    )
    assert len(list(feed.chunks(Waited()))) == 400
    assert [reader for reader, _ in crew.calls[9:12]].count("b") == 2


class DeadlyCrew(PromptCrew):
    """One of the groups kills whoever works on it; another reader of the same name comes."""

    deadly = 47

    def take(self, ticket: Any, waited: Waited) -> list[Chunk]:
        if any(task.group.index == self.deadly for task in self.calls[ticket][1]):
            raise ReaderLost
        return super().take(ticket, waited)

    def lose(self, reader: str) -> None:
        pass


@pytest.mark.parametrize("in_order", [True, False])
def test_the_group_that_kills_its_readers_is_the_one_that_is_named(in_order: bool) -> None:
    crew = DeadlyCrew(call_seconds=100.0)
    groups = groups_of([CHUNK_ROWS] * 200)
    feed = ReaderFeed(
        crew=crew, role="training", groups=groups, chunk_rows=CHUNK_ROWS, in_order=in_order
    )
    with pytest.raises(FeedError, match=rf"group {crew.deadly} .*epoch 0.*\b11\b"):
        list(feed.chunks(Waited()))


def test_a_call_is_bounded_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    size = make_chunk(Task(position=0, group=groups_of([1])[0], chunk=0)).table.nbytes
    monkeypatch.setattr(reader_feed, "_CALL_BYTES", 2.5 * max(size, CHUNK_ROWS))
    crew = PromptCrew(call_seconds=100.0)
    groups = groups_of([CHUNK_ROWS] * 60)
    feed = ReaderFeed(
        crew=crew, role="training", groups=groups, chunk_rows=CHUNK_ROWS, in_order=False
    )
    assert len(list(feed.chunks(Waited()))) == 60
    assert max(len(tasks) for _, tasks in crew.calls) == 2


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "t").mkdir()
    rows = {"id": range(200), "x": [i % 7 for i in range(200)], "text": ["ten"] * 200}
    pq.write_table(pa.table(rows), tmp_path / "t/a.parquet", row_group_size=25)
    return tmp_path


def threads_over(root: Path, pipeline: Pipeline, *, in_order: bool) -> tuple[ReaderFeed, Stream]:
    plan = build_plan(pipeline.experiment("threads"), str(root)).training
    stream = Stream(plan=plan, chunk_rows=CHUNK_ROWS)
    groups = plan_groups(
        plan.scan.units, seed=0, epoch=0, shuffle=plan.shuffle, chunk_rows=CHUNK_ROWS
    )
    source = ThreadReaders(streams={"training": stream}, num_threads=threads_per_rank(1))
    return source.open("training", 0, groups, in_order=in_order), stream


@pytest.mark.parametrize("in_order", [True, False])
def test_threads_make_the_chunks_of_the_groups(root: Path, in_order: bool) -> None:
    base = Pipeline.read_parquet("t/", row_key="id").filter("x > 1")
    feed, stream = threads_over(root, base, in_order=in_order)
    found = list(feed.chunks(waited := Waited()))
    wanted = [p for g in feed.groups for p in read_group(stream.plan, g, CHUNK_ROWS)]
    if not in_order:
        found.sort(key=lambda chunk: (chunk.header.group, chunk.header.chunk))
    assert [chunk.table for chunk in found] == [chunk.table for chunk in wanted]
    assert waited.production > 0


def test_what_a_thread_raises_is_raised(root: Path) -> None:
    base = Pipeline.read_parquet("t/", row_key="id").derive(y="cast(text as bigint)")
    feed, _ = threads_over(root, base, in_order=False)
    with pytest.raises(StepError, match=r"a\.parquet, row group \d"):
        list(feed.chunks(Waited()))


def test_a_chunk_asked_again_is_the_same(root: Path) -> None:
    feed, stream = threads_over(root, Pipeline.read_parquet("t/", row_key="id"), in_order=True)
    group = feed.groups[0]
    whole = list(read_group(stream.plan, group, CHUNK_ROWS))
    assert len(whole) == 3  # 25 rows of the row group, ten a chunk
    maker = ChunkMaker(lambda role: stream)
    for index in (1, 2, 0, 1, 2, 2):  # as readers are asked after others were lost
        task = Task(position=0, group=group, chunk=index)
        assert maker.make("training", task).table == whole[index].table


WAITER = """
import time
from pipeline_runtime.feed.making.waiting import waiting

def wait(table):
    with waiting():
        time.sleep(0.3)
    return table
"""


def test_a_wait_for_inference_workers_is_not_time_of_its_step(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "waiting_step.py").write_text(WAITER)
    monkeypatch.syspath_prepend(tmp_path)
    base = Pipeline.read_parquet("t/", row_key="id").map("waiting_step:wait")
    feed, stream = threads_over(root, base, in_order=True)
    maker = ChunkMaker(lambda role: stream)
    began = time.perf_counter()
    header = maker.make("training", Task(position=0, group=feed.groups[0], chunk=0)).header
    assert header.waiting_seconds >= 0.3
    spent = sum(count.seconds for count in header.counts) + header.waiting_seconds
    assert spent <= time.perf_counter() - began
