"""The feed over readers: a rank leases its groups to them and takes the chunks that they make.

The rank's own process coordinates its rows: it knows which chunks were delivered, asks readers for
chunks ahead of need, leases the chunks of a lost reader again, and gives a part of a slow reader's
chunks to another one before an epoch waits for them. A reader that leaves delivers the chunks that
it was asked for, and others make the rest. The chunks ahead are bounded in bytes. If the bound is
less than a chunk per reader, it is higher, since more readers would bring nothing otherwise. All
epochs are one stream, so the first chunks of the next epoch are made while this one ends. Readers
are threads or processes of this machine (`local`), or actors on the data workers (`over_ray`),
behind `Crew`.

A call asks for one or more chunks: as many as the reader makes in `Crew.call_seconds`, by its
recent chunks, and at most its share of the remaining ones, so that all readers end together.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pipeline_runtime.feed.base import Waited, WorkerUsage
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.feed.leases import Ledger, Task
from pipeline_runtime.feed.reader_usage import Paces, UsageMeter
from pipeline_runtime.plan.groups import Group

# Calls to a reader at a time: the one that it works on, and the next one.
_CALLS_PER_READER = 2
# Bytes of the chunks of a call, unless a single one has more.
_CALL_BYTES = 32 << 20
# Bytes of chunks ahead of the trainer, made or being made: two of the largest (plan.groups). With
# more readers than such chunks, it is one chunk per reader, up to a limit.
CREDIT_BYTES = 512 << 20
MAX_CREDIT_BYTES = 4 << 30
# A lower bound on the seconds of a chunk, so that nothing is divided by zero.
_SHORTEST = 1e-6
# Weight of a new chunk in the moving average of the size of chunks.
_SIZE_SMOOTHING = 0.3


class ReaderLost(Exception):
    """A reader no longer exists, and the chunks that it had not delivered are lost."""


class Crew(Protocol):
    """Readers by their names, and the calls to them."""

    @property
    def call_seconds(self) -> float:
        """Seconds of a reader's work that are worth a call; 0 if a call costs nothing."""
        ...

    def readers(self) -> Sequence[str]:
        """Return the readers that can be asked now; another call may return others.

        A reader that is no longer returned delivers what it was asked for, or is lost.
        """
        ...

    def worker(self, reader: str) -> str:
        """Return the data worker of a reader, which may no longer exist."""
        ...

    def ask(self, reader: str, role: str, tasks: Sequence[Task]) -> Hashable:
        """Ask for chunks by one call, without waiting; return the ticket of the call."""
        ...

    def wait(self, tickets: Sequence[Hashable], waited: Waited) -> Hashable | None:
        """Wait until a call is answered, or a second or two have passed; add the time to `waited`.

        Return the ticket of an answered call, or None.
        """
        ...

    def take(self, ticket: Hashable, waited: Waited) -> Sequence[Chunk]:
        """Return the chunks of a call. Raises ReaderLost, or the error that the reader raised."""
        ...

    def lose(self, reader: str) -> None:
        """Never return this reader again."""
        ...

    def close(self) -> None:
        """Drop the calls whose chunks were not taken."""
        ...


def _do_nothing() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderFeed:
    """Chunks of one rank's groups of one stream.

    Attributes:
        on_wait: called every second or two, whether chunks come or not; may raise to end the feed.
    """

    crew: Crew
    role: str
    groups: Sequence[Group]
    chunk_rows: int
    in_order: bool
    on_wait: Callable[[], None] = _do_nothing

    def chunks(
        self, waited: Waited, usage: WorkerUsage | None = None
    ) -> Generator[Chunk, None, None]:
        """Yield chunks as they are made, or in the groups' order; add the blocked time to `waited`.

        Raises FeedError if readers keep dying, SourceError or StepError from the work itself.
        """
        return _Pass(self, waited, usage or WorkerUsage()).run()


@dataclass(frozen=True, slots=True)
class _Asked:
    """Chunks that a reader was asked for by a call."""

    reader: str
    tasks: Sequence[Task]


class _Pass:
    """One pass over the groups."""

    def __init__(self, feed: ReaderFeed, waited: Waited, usage: WorkerUsage) -> None:
        self._feed = feed
        self._meter = UsageMeter(usage, waited)
        self._waited = waited
        self._ledger = Ledger(feed.groups, feed.chunk_rows)
        self._paces = Paces()
        self._asked: dict[Hashable, _Asked] = {}
        # If the order is kept: chunks that were made before their turn.
        self._made: dict[tuple[int, int], Chunk] = {}
        self._turn = (0, 0)  # if the order is kept: the place of the chunk to yield next
        self._ready: deque[Chunk] = deque()  # chunks to yield next
        self._chunk_bytes = _expected_bytes(feed)

    def run(self) -> Generator[Chunk, None, None]:
        try:
            while self._ask() or self._asked:
                self._wait()
                self._feed.on_wait()
                while self._ready:
                    self._ask()  # before the trainer is busy with this chunk
                    yield self._ready.popleft()
        finally:
            self._feed.crew.close()

    def _ask(self) -> bool:
        """Ask readers for chunks, the idlest first; return whether any is left to ask for."""
        crew = self._feed.crew
        load = Counter(asked.reader for asked in self._asked.values())
        readers = crew.readers()
        self._meter.answer([crew.worker(name) for name in readers])
        if readers:  # otherwise one was lost, and the crew looks for the others again
            self._ledger.keep(readers)
        while free := [name for name in readers if load[name] < _CALLS_PER_READER]:
            # No reader gets a second call while another has none, since credit may run out.
            least = min(load[name] for name in free)
            reader = self._ledger.choose([name for name in free if load[name] == least])
            tasks = self._take(reader, self._num_tasks(reader, len(readers)))
            if not tasks:
                break
            self._asked[crew.ask(reader, self._feed.role, tasks)] = _Asked(reader, tasks)
            load[reader] += 1
        return self._ledger.num_left > 0

    def _take(self, reader: str, num_tasks: int) -> list[Task]:
        tasks: list[Task] = []
        for _ in range(num_tasks):
            task = self._ledger.take(reader, self._paces.slow(), self._paces.read_share)
            if task is None:
                break
            tasks.append(task)
            if self._ledger.was_lost(task):
                break  # it may have killed its reader, and would take other chunks with it
        return tasks

    def _num_tasks(self, reader: str, num_readers: int) -> int:
        """Return the number of chunks that a call may ask for; at least 1 if no call is open."""
        calls = num_readers * _CALLS_PER_READER
        seconds = max(self._paces.seconds_per_chunk(reader), _SHORTEST)
        worthwhile = self._feed.crew.call_seconds / seconds
        fitting, left = _CALL_BYTES / self._chunk_bytes, self._ledger.num_left / calls
        num_tasks = max(1, int(min(worthwhile, fitting, left)))
        asked = [len(asked.tasks) for asked in self._asked.values()]
        most_ahead = calls * max(num_tasks, *asked, 1)  # a reader that joins gets one
        usual, most = (int(c / self._chunk_bytes) for c in (CREDIT_BYTES, MAX_CREDIT_BYTES))
        most_ahead = min(max(1, usual, min(num_readers, most)), most_ahead)
        ahead = sum(asked) + len(self._made) + len(self._ready)
        if self._asked and len(asked) >= calls:  # some of readers that have left
            return 0
        return max(0 if self._asked else 1, min(num_tasks, most_ahead - ahead))

    def _wait(self) -> None:
        """Take the chunks of one more call, if they are made in time and their reader lives."""
        crew = self._feed.crew
        ticket = crew.wait(list(self._asked), self._waited)
        if ticket is None:
            return
        asked = self._asked.pop(ticket)
        try:
            chunks = crew.take(ticket, self._waited)
        except ReaderLost:
            self._lose(asked)
            return
        for task, chunk in zip(asked.tasks, chunks, strict=True):
            self._deliver(asked.reader, task, chunk)

    def _deliver(self, reader: str, task: Task, chunk: Chunk) -> None:
        num_units = len(task.group.units) if chunk.header.is_last else 0
        self._meter.deliver(reader, self._feed.crew.worker(reader), chunk.header, num_units)
        self._paces.note(reader, chunk.header)
        self._chunk_bytes += _SIZE_SMOOTHING * (max(1, chunk.num_bytes) - self._chunk_bytes)
        if not self._feed.in_order:
            self._ready.append(chunk)
            return
        self._made[task.place] = chunk
        while (made := self._made.pop(self._turn, None)) is not None:
            position, index = self._turn
            self._turn = (position + 1, 0) if made.header.is_last else (position, index + 1)
            self._ready.append(made)

    def _lose(self, first: _Asked) -> None:
        """Lease the undelivered chunks of a lost reader again."""
        owed = [t for t, asked in self._asked.items() if asked.reader == first.reader]
        tasks = [*first.tasks, *(task for ticket in owed for task in self._asked.pop(ticket).tasks)]
        self._feed.crew.lose(first.reader)
        self._ledger.lose(first.reader, tasks)


def _expected_bytes(feed: ReaderFeed) -> float:
    """Return an upper bound on the bytes of a chunk: those of all columns of the largest group."""
    return (
        max(
            (
                sum(unit.num_bytes for unit in group.units)
                * min(1.0, feed.chunk_rows / max(1, sum(unit.num_rows for unit in group.units)))
                for group in feed.groups
            ),
            default=1.0,
        )
        or 1.0
    )
