"""The feed over readers: a rank leases its groups to them and takes the pieces that they make.

The rank's own process is the coordinator of its rows: it knows what was delivered, asks readers for
pieces ahead of need, leases again what a lost reader still owed, and a part of what a slow one
would keep an epoch waiting for. A reader that leaves delivers what it was asked for, and others go
on with the rest. What is ahead is bounded in bytes; where that is less than a piece of each reader,
the bound is higher, since more readers would bring nothing. All epochs are one stream, so that the
next one's first pieces are made while this one ends. Readers are threads of this process
(`local`) or actors on the data workers (`over_ray`), behind `Crew`.

A call asks for one piece or several: as many as the reader makes in `Crew.call_seconds`, by its
late pieces, and no more than its share of what is left, so that all end together.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pipeline_runtime.feed.base import Waited, WorkerUsage
from pipeline_runtime.feed.leases import Ledger, Task
from pipeline_runtime.feed.pieces import Piece, ReadyPiece
from pipeline_runtime.feed.reader_usage import Paces, UsageMeter
from pipeline_runtime.plan.groups import Group

# Calls to a reader at a time: one that it works on, one to go on with.
_CALLS_PER_READER = 2
# Bytes of the pieces of a call, unless a single one has more.
_CALL_BYTES = 32 << 20
# Pieces ahead of the trainer, made or in the making: two of the largest (plan.groups); if readers
# are more than these, one of each up to a limit.
CREDIT_BYTES = 512 << 20
MAX_CREDIT_BYTES = 4 << 30
# Seconds that a piece takes at least.
_SHORTEST = 1e-6
# How much of the estimated size of a piece a new one replaces.
_SIZE_SMOOTHING = 0.3


class ReaderLost(Exception):
    """A reader has gone, and what it made and did not deliver with it."""


class Crew(Protocol):
    """Readers, by their names, and what they are asked."""

    @property
    def call_seconds(self) -> float:
        """Seconds of a reader's work that make a call worth its while; 0: it costs nothing."""
        ...

    def readers(self) -> Sequence[str]:
        """Names of the readers that can be asked now; another call may give others.

        One that is not named any more delivers what it was asked for, or is lost.
        """
        ...

    def worker(self, reader: str) -> str:
        """The data worker that a reader is on, which may have gone since."""
        ...

    def ask(self, reader: str, role: str, tasks: Sequence[Task]) -> Hashable:
        """Ask for pieces by one call, without waiting; the ticket stands for them."""
        ...

    def wait(self, tickets: Sequence[Hashable], waited: Waited) -> Hashable | None:
        """Wait until one's are made, or a second or two have passed; the time goes to `waited`."""
        ...

    def take(self, ticket: Hashable, waited: Waited) -> Sequence[Piece | ReadyPiece]:
        """The pieces, as asked for. Raises ReaderLost, or what the reader raised."""
        ...

    def lose(self, reader: str) -> None:
        """Never name this reader again."""
        ...

    def close(self) -> None:
        """Let go of what was asked and not taken."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderFeed:
    """Pieces of one rank's groups of one stream."""

    crew: Crew
    role: str
    groups: Sequence[Group]
    piece_rows: int
    in_order: bool

    def pieces(
        self, waited: Waited, usage: WorkerUsage | None = None
    ) -> Generator[Piece | ReadyPiece, None, None]:
        """Pieces as they are made, or in the groups' order; `waited` grows by the time blocked.

        Raises FeedError if readers keep dying, SourceError or StepError from the work itself.
        """
        return _Pass(self, waited, usage or WorkerUsage()).run()


@dataclass(frozen=True, slots=True)
class _Asked:
    """Pieces that a reader was asked for by a call."""

    reader: str
    tasks: Sequence[Task]


class _Pass:
    """One pass over the groups."""

    def __init__(self, feed: ReaderFeed, waited: Waited, usage: WorkerUsage) -> None:
        self._feed = feed
        self._meter = UsageMeter(usage, waited)
        self._waited = waited
        self._ledger = Ledger(feed.groups, feed.piece_rows)
        self._paces = Paces()
        self._asked: dict[Hashable, _Asked] = {}
        # In order: those before their turn.
        self._made: dict[tuple[int, int], Piece | ReadyPiece] = {}
        self._turn = (0, 0)  # in order: the place of the piece that is given out next
        self._ready: deque[Piece | ReadyPiece] = deque()  # that are given out next
        self._piece_bytes = _expected_bytes(feed)

    def run(self) -> Generator[Piece | ReadyPiece, None, None]:
        try:
            while self._ask() or self._asked:
                self._wait()
                while self._ready:
                    self._ask()  # before the trainer is busy with this piece
                    yield self._ready.popleft()
        finally:
            self._feed.crew.close()

    def _ask(self) -> bool:
        """Ask readers for pieces, the idlest first; whether any is left to ask for."""
        crew = self._feed.crew
        load = Counter(asked.reader for asked in self._asked.values())
        readers = crew.readers()
        self._meter.answer([crew.worker(name) for name in readers])
        if readers:  # else one was lost, and the others are to be asked for again
            self._ledger.keep(readers)
        while free := [name for name in readers if load[name] < _CALLS_PER_READER]:
            # Nobody is asked twice while another has nothing: credit may end there.
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
                break  # its reader may have died of it: what is asked with it would go along
        return tasks

    def _num_tasks(self, reader: str, num_readers: int) -> int:
        """Return the number of pieces that a call may ask for; 1 at least if none is asked for."""
        calls = num_readers * _CALLS_PER_READER
        seconds = max(self._paces.seconds_per_piece(reader), _SHORTEST)
        worthwhile = self._feed.crew.call_seconds / seconds
        fitting, left = _CALL_BYTES / self._piece_bytes, self._ledger.num_left / calls
        num_tasks = max(1, int(min(worthwhile, fitting, left)))
        asked = [len(asked.tasks) for asked in self._asked.values()]
        most_ahead = calls * max(num_tasks, *asked, 1)  # a reader that joins is asked for one
        usual, most = (int(c / self._piece_bytes) for c in (CREDIT_BYTES, MAX_CREDIT_BYTES))
        most_ahead = min(max(1, usual, min(num_readers, most)), most_ahead)
        ahead = sum(asked) + len(self._made) + len(self._ready)
        if self._asked and len(asked) >= calls:  # some by readers that have left
            return 0
        return max(0 if self._asked else 1, min(num_tasks, most_ahead - ahead))

    def _wait(self) -> None:
        """Take the pieces of one more call, if they are made in time and their reader lives."""
        crew = self._feed.crew
        ticket = crew.wait(list(self._asked), self._waited)
        if ticket is None:
            return
        asked = self._asked.pop(ticket)
        try:
            pieces = crew.take(ticket, self._waited)
        except ReaderLost:
            self._lose(asked)
            return
        for task, piece in zip(asked.tasks, pieces, strict=True):
            self._deliver(asked.reader, task, piece)

    def _deliver(self, reader: str, task: Task, piece: Piece | ReadyPiece) -> None:
        num_units = len(task.group.units) if piece.header.is_last else 0
        self._meter.deliver(reader, self._feed.crew.worker(reader), piece.header, num_units)
        self._paces.note(reader, piece.header)
        self._piece_bytes += _SIZE_SMOOTHING * (max(1, piece.num_bytes) - self._piece_bytes)
        if not self._feed.in_order:
            self._ready.append(piece)
            return
        self._made[task.place] = piece
        while (made := self._made.pop(self._turn, None)) is not None:
            position, index = self._turn
            self._turn = (position + 1, 0) if made.header.is_last else (position, index + 1)
            self._ready.append(made)

    def _lose(self, first: _Asked) -> None:
        """Lease again what the reader owed."""
        owed = [t for t, asked in self._asked.items() if asked.reader == first.reader]
        tasks = [*first.tasks, *(task for ticket in owed for task in self._asked.pop(ticket).tasks)]
        self._feed.crew.lose(first.reader)
        self._ledger.lose(first.reader, tasks)


def _expected_bytes(feed: ReaderFeed) -> float:
    """An upper bound before the first piece has come: all columns of the largest group."""
    return (
        max(
            (
                sum(unit.num_bytes for unit in group.units)
                * min(1.0, feed.piece_rows / max(1, sum(unit.num_rows for unit in group.units)))
                for group in feed.groups
            ),
            default=1.0,
        )
        or 1.0
    )
