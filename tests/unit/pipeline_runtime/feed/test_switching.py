"""Threads or processes by what a rank waits for: each kind where it is faster, every chunk once."""

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_runtime.errors import FeedError
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.chunk import Chunk, Header
from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.local.switching import WINDOW_SECONDS, Processes, SwitchingCrew, Threads
from pipeline_runtime.feed.reader_feed import ReaderFeed, ReaderLost
from pipeline_runtime.feed.reader_usage import WARMING_SECONDS
from pipeline_runtime.plan import Group
from pipeline_runtime.sources import Unit

STEP_SECONDS = 1.0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class AtOnce(Executor):
    """Does what it is given before it answers."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except FeedError as error:
            future.set_exception(error)
        return future


class TimedCrew:
    """Readers of a kind, of which a rank waits so many seconds for each chunk.

    Args:
        hidden_looks: how often nobody is up.
        lonely_looks: how often then only the first is.
        losses: how many calls end with the loss of their reader.
    """

    call_seconds = 0.0

    def __init__(
        self,
        kind: str,
        clock: Clock,
        waits: float,
        *,
        hidden_looks: int = 0,
        lonely_looks: int = 0,
        losses: int = 0,
    ) -> None:
        self.kind = kind
        self.made: list[int] = []
        self.closed = 0
        self.rests = 0
        self._lonely_looks = lonely_looks
        self._clock, self._waits = clock, waits
        self._hidden_looks, self._losses = hidden_looks, losses
        self._names = [f"{kind}-0", f"{kind}-1"]
        self._asked: dict[Hashable, tuple[str, Sequence[Task]]] = {}
        self._count = 0

    def readers(self) -> Sequence[str]:
        if self._hidden_looks > 0:
            self._hidden_looks -= 1
            return ()
        if self._lonely_looks > 0:
            self._lonely_looks -= 1
            return (self._names[0],)
        return tuple(self._names)

    @property
    def is_growing(self) -> bool:
        return self._hidden_looks + self._lonely_looks > 0

    def rest(self) -> None:
        self.rests += 1

    def worker(self, reader: str) -> str:
        assert reader.startswith(self.kind)
        return self.kind

    def ask(self, reader: str, role: str, tasks: Sequence[Task]) -> Hashable:
        assert reader in self._names
        self._count += 1
        ticket = (self.kind, self._count)
        self._asked[ticket] = (reader, tasks)
        return ticket

    def wait(self, tickets: Sequence[Hashable], waited: Waited) -> Hashable | None:
        assert tickets
        assert all(ticket in self._asked for ticket in tickets)
        self._clock.now += self._waits
        waited.production += self._waits
        return tickets[0]

    def take(self, ticket: Hashable, waited: Waited) -> list[Chunk]:
        _, tasks = self._asked.pop(ticket)
        if self._losses > 0:
            self._losses -= 1
            raise ReaderLost
        self.made += [task.group.index for task in tasks]
        return [_chunk(task) for task in tasks]

    def lose(self, reader: str) -> None:
        self._names.remove(reader)
        self._names.append(f"{reader}-again")
        self._asked = {t: asked for t, asked in self._asked.items() if asked[0] != reader}

    def close(self) -> None:
        self.closed += 1


def _chunk(task: Task) -> Chunk:
    header = Header(epoch=0, group=task.group.index, chunk=0, is_last=True, num_rows=1, counts=())
    return Chunk(header=header, rows=pa.table({"x": [task.group.index]}))


def train(
    clock: Clock,
    threads: Threads,
    processes: Callable[[], Processes],
    num_groups: int,
    *,
    paused: float = 0,
) -> list[int]:
    """The groups that a rank trained on, in order, which takes a second each."""
    units = [Unit(place="f", index=i, num_rows=1, num_bytes=1) for i in range(num_groups)]
    feed = ReaderFeed(
        crew=SwitchingCrew(threads, processes, num_groups, clock, AtOnce()),
        role="training",
        groups=[Group(epoch=0, index=i, units=(unit,)) for i, unit in enumerate(units)],
        chunk_rows=1,
        in_order=True,
    )
    waited, found = Waited(), []
    for chunk in feed.chunks(waited):
        found.append(chunk.header.group)
        clock.now += STEP_SECONDS + paused
        waited.paused += paused
    return found


def test_a_trainer_that_hardly_waits_is_fed_by_processes_once_they_are_up() -> None:
    clock = Clock()
    threads = TimedCrew("threads", clock, waits=0.05)
    processes = TimedCrew("processes", clock, waits=0.05, hidden_looks=3)

    assert train(clock, threads, lambda: processes, 100) == list(range(100))

    assert len(threads.made) in range(10, 25)
    assert len(threads.made) + len(processes.made) == 100
    assert (threads.closed, processes.closed) == (1, 1)
    assert threads.rests == 1


def test_threads_make_the_rows_until_all_processes_are_up() -> None:
    clock = Clock()
    threads = TimedCrew("threads", clock, waits=0.05)
    processes = TimedCrew("processes", clock, waits=0.05, hidden_looks=3, lonely_looks=30)

    assert train(clock, threads, lambda: processes, 100) == list(range(100))

    assert len(threads.made) in range(25, 35)  # there are two looks a chunk


def test_no_process_is_started_for_what_is_left_of_a_short_run() -> None:
    clock = Clock()
    threads = TimedCrew("threads", clock, waits=0.05)
    assert train(clock, threads, _not_wanted, 60) == list(range(60))


def test_a_trainer_that_waits_is_fed_by_threads() -> None:
    clock = Clock()
    threads = TimedCrew("threads", clock, waits=0.5)
    assert train(clock, threads, _not_wanted, 200) == list(range(200))


def test_pauses_are_no_time_in_which_it_might_have_waited() -> None:
    clock = Clock()
    threads = TimedCrew("threads", clock, waits=0.5)
    assert train(clock, threads, _not_wanted, 200, paused=10) == list(range(200))


def test_processes_that_are_too_slow_give_way_for_good() -> None:
    clock = Clock()
    threads = TimedCrew("threads", clock, waits=0.1)
    processes = TimedCrew("processes", clock, waits=1.0)
    opened: list[Processes] = []

    def open_processes() -> Processes:
        opened.append(processes)
        return processes

    assert train(clock, threads, open_processes, 200) == list(range(200))
    assert opened == [processes]
    assert processes.closed == 1
    assert len(processes.made) in range(1, int(WARMING_SECONDS + WINDOW_SECONDS) + 5)


def test_processes_are_judged_once_they_are_warm() -> None:
    clock = Clock()

    class Warming(TimedCrew):
        def wait(self, tickets: Sequence[Hashable], waited: Waited) -> Hashable | None:
            self._waits = 1.0 if len(self.made) < WARMING_SECONDS / 2 else 0.0
            return super().wait(tickets, waited)

    threads, processes = TimedCrew("threads", clock, 0.1), Warming("processes", clock, 1.0)
    assert train(clock, threads, lambda: processes, 200) == list(range(200))
    assert len(processes.made) > 170


@pytest.mark.parametrize("when", ["at once", "later"])
def test_where_no_process_starts_threads_go_on(when: str) -> None:
    clock = Clock()
    threads = TimedCrew("threads", clock, waits=0.1)

    class Broken(TimedCrew):
        def readers(self) -> Sequence[str]:
            raise FeedError("no data worker comes up")

    def open_processes() -> Processes:
        if when == "at once":
            raise FeedError("no coordinator comes up")
        return Broken("processes", clock, waits=0.1)

    assert train(clock, threads, open_processes, 100) == list(range(100))
    assert len(threads.made) == 100


@given(
    waits=st.tuples(st.floats(0, 2), st.floats(0, 2)),
    looks=st.tuples(st.integers(0, 30), st.integers(0, 30)),
    losses=st.integers(0, 3),
    num_groups=st.integers(0, 160),
)
def test_every_chunk_comes_once(
    waits: tuple[float, float], looks: tuple[int, int], losses: int, num_groups: int
) -> None:
    clock = Clock()
    threads = TimedCrew("threads", clock, waits[0])
    hidden, lonely = looks
    processes = TimedCrew(
        "processes", clock, waits[1], hidden_looks=hidden, lonely_looks=lonely, losses=losses
    )
    assert train(clock, threads, lambda: processes, num_groups) == list(range(num_groups))


def _not_wanted() -> Any:
    raise AssertionError("processes would be slower")
