"""Readers of one machine: threads of the trainer's process, or processes once the trainer binds.

Threads start at once and copy nothing, but hold Python's lock for a fifth of their time. A training
loop of many short operators loses up to a third of its rate to threads, and less to processes
(benchmarks/overlap). Processes need seconds to start, memory, and a copy of each batch. So a rank
that is alone on its machine begins with threads, and measures its share of time waiting for rows:

    threads      it waits little: the trainer binds, or the threads slow it down -> processes,
                 if the rest of the run is long enough to make up for their start
    processes    it waits much: they make rows too slowly -> threads, until the end

Processes start while the training goes on, and are asked once all of them run. Until then, and if
they do not start, threads make the rows. While readers of one kind deliver the chunks that they
were asked for, the other kind is asked for the next ones. The rows are the same.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

from pipeline_runtime.errors import LastmileError
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.local.process_readers import ProcessCrew, ProcessReaders
from pipeline_runtime.feed.local.thread_readers import ThreadCrew, ThreadReaders
from pipeline_runtime.feed.reader_feed import Crew, ReaderFeed
from pipeline_runtime.feed.reader_usage import WARMING_SECONDS
from pipeline_runtime.plan.groups import Group

# Seconds over which a rank's waiting is measured.
WINDOW_SECONDS: Final = 10.0
# Threads serve a trainer faster if it waits for a larger share of them. They cost it 0.2 to 0.3 of
# its rate, so processes pay off up to that share.
MAX_WAITED_SHARE: Final = 0.25
# Processes are started if training goes on for longer: their start takes seconds of every core.
MIN_LEFT_SECONDS: Final = 60.0

# Errors of opening processes: a side table cannot be read, or the machine has no room.
_FAILURES = (LastmileError, OSError, ValueError)


class Threads(Crew, Protocol):
    """Readers that cost nothing while they are not asked."""

    def rest(self) -> None:
        """Drop the rows that were read ahead; the threads are not asked for a while."""
        ...


class Processes(Crew, Protocol):
    """Readers that take a while to start."""

    @property
    def is_growing(self) -> bool:
        """Return whether more readers are starting."""
        ...


class SwitchingCrew:
    """Threads and processes, of which one kind is asked at a time.

    Args:
        open_processes: starts the processes; raises LastmileError or OSError if it cannot.
        num_groups: the rank's groups, by which the remaining time is estimated.
        clock: in seconds; a fake in tests.
        opener: calls `open_processes` while the training goes on; at once in tests.
    """

    def __init__(
        self,
        threads: Threads,
        open_processes: Callable[[], Processes],
        num_groups: int,
        clock: Callable[[], float] = time.perf_counter,
        opener: Executor | None = None,
    ) -> None:
        self._threads = threads
        self._open_processes = open_processes
        self._num_groups = num_groups
        self._num_begun = 0
        self._started: float | None = None  # time used when the first window began
        self._clock = clock
        self._opener = opener or ThreadPoolExecutor(1, "lastmile-processes")
        self._opening: Future[Processes] | None = None
        self._processes: Processes | None = None  # while they are wanted
        self._leaving: Crew | None = None  # unwanted processes that still owe chunks
        self._asked: Crew = threads  # the crew to ask for the next chunks
        self._may_try = True
        self._crews: dict[str, Crew] = {}  # by reader, former ones included
        self._tickets: dict[Hashable, str] = {}  # ticket of a call that was not taken -> its reader
        self._waited = Waited()  # the rank's, once it has waited
        self._judges_from = float("-inf")
        self._window: tuple[float, float] | None = None  # time used and waited at its beginning

    @property
    def call_seconds(self) -> float:
        return self._asked.call_seconds

    def readers(self) -> Sequence[str]:
        self._judge()
        names = self._look_for_processes() or self._threads.readers()
        self._crews.update(dict.fromkeys(names, self._asked))
        if self._leaving is not None and not self._tickets_of(self._leaving):
            self._leaving.close()
            self._leaving = None
        return names

    def _judge(self) -> None:
        """Choose the kind of readers to ask from now on, at the end of a window."""
        if self._clock() < self._judges_from:
            return
        used = self._clock() - self._waited.paused
        if self._window is None:
            self._window = (used, self._waited.production)
        if self._started is None:
            self._started = used
        elapsed = used - self._window[0]
        if elapsed < WINDOW_SECONDS:
            return
        waits_much = (self._waited.production - self._window[1]) / elapsed > MAX_WAITED_SHARE
        if self._asked is not self._threads and waits_much:
            self._give_up()
        elif self._may_try and not waits_much and self._seconds_left(used) > MIN_LEFT_SECONDS:
            self._may_try = False
            self._opening = self._opener.submit(self._open_processes)
        self._window = None

    def _seconds_left(self, used: float) -> float:
        """Estimate the remaining seconds of training by its rate so far, after `used` seconds."""
        assert self._started is not None
        num_left = self._num_groups - self._num_begun
        return (used - self._started) * num_left / max(1, self._num_begun)

    def _look_for_processes(self) -> Sequence[str]:
        """Return the processes that can be asked; none while they start, or if not wanted."""
        try:
            if self._opening is not None and self._opening.done():
                opening, self._opening = self._opening, None
                self._processes = opening.result()
            names = self._processes.readers() if self._processes is not None else ()
        except _FAILURES:
            self._give_up()
            return ()
        if self._processes is None or (self._asked is self._threads and self._processes.is_growing):
            return ()
        before, self._asked = self._asked, self._processes if names else self._threads
        if self._asked is not before:
            # The waiting counts again once the processes are warm.
            self._judges_from, self._window = self._clock() + WARMING_SECONDS, None
            if names:
                self._threads.rest()
        return names

    def _give_up(self) -> None:
        """Stop asking processes; they still deliver the chunks that they were asked for."""
        self._leaving, self._processes, self._asked = self._processes, None, self._threads

    def worker(self, reader: str) -> str:
        return self._crews[reader].worker(reader)

    def ask(self, reader: str, role: str, tasks: Sequence[Task]) -> Hashable:
        ticket = self._crews[reader].ask(reader, role, tasks)
        self._tickets[ticket] = reader
        self._num_begun = max(self._num_begun, *(task.position + 1 for task in tasks))
        return ticket

    def wait(self, tickets: Sequence[Hashable], waited: Waited) -> Hashable | None:
        """See Crew. With calls to both kinds, take a finished one of threads, or wait for others.

        Waiting for processes ends after a second, waiting for threads only after a minute.
        """
        self._waited = waited
        of_threads = [t for t in tickets if self._crews[self._tickets[t]] is self._threads]
        others = [ticket for ticket in tickets if ticket not in of_threads]
        if not others:
            return self._threads.wait(of_threads, waited)
        made = (ticket for ticket in of_threads if isinstance(ticket, Future) and ticket.done())
        ready = next(made, None)
        if ready is not None:
            return ready
        return self._crews[self._tickets[others[0]]].wait(others, waited)

    def take(self, ticket: Hashable, waited: Waited) -> Sequence[Chunk]:
        crew = self._crews[self._tickets.pop(ticket)]
        return crew.take(ticket, waited)

    def lose(self, reader: str) -> None:
        self._tickets = {ticket: name for ticket, name in self._tickets.items() if name != reader}
        self._crews[reader].lose(reader)

    def close(self) -> None:
        self._opener.shutdown(cancel_futures=True)
        if self._opening is not None and not self._opening.cancelled():
            with contextlib.suppress(*_FAILURES):
                self._processes = self._opening.result()
        for crew in (self._threads, self._processes, self._leaving):
            if crew is not None:
                crew.close()

    def _tickets_of(self, crew: Crew) -> list[Hashable]:
        return [t for t, reader in self._tickets.items() if self._crews[reader] is crew]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchingReaders:
    """Opens feeds of a machine's only rank, in its process; an evaluation has threads alone."""

    threads: ThreadReaders
    processes: ProcessReaders

    def open(self, role: str, rank: int, groups: Sequence[Group], *, in_order: bool) -> ReaderFeed:
        """Open a feed of these groups; see `feed.base.FeedSource`."""
        if role != "training":
            return self.threads.open(role, rank, groups, in_order=in_order)
        threads = ThreadCrew(self.threads.streams, self.threads.num_threads)
        return ReaderFeed(
            crew=SwitchingCrew(threads, self._open_processes, len(groups)),
            role=role,
            groups=groups,
            chunk_rows=self.threads.streams[role].chunk_rows,
            in_order=in_order,
        )

    def _open_processes(self) -> Processes:
        pool, sending = self.processes.start(), self.processes.sending
        return ProcessCrew(pool, sending, owns_pool=True)
