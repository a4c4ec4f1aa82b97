"""Readers of one machine: threads of the trainer's process, or processes once the trainer binds.

Threads begin at once and copy nothing, but hold Python's lock for a fifth of their time: a training
loop of many short operators loses up to a third of its rate to them, to processes a twentieth
(benchmarks/overlap). Processes take seconds to start, memory, and a copy of each batch. So a rank
begins with threads, and looks at the share of its time that it waits for rows to be made:

    threads      it waits little: the trainer binds, or threads that slow it -> processes
    processes    it waits much: they make rows more slowly than they are used -> threads, for good

While readers of one kind deliver what they were asked for, the other is asked for what follows.
Rows are the same. Where processes do not start, threads go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import ray

from pipeline_runtime.errors import FeedError, LastmileError
from pipeline_runtime.feed.actor_readers import ActorCrew, start_pool
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.pieces import Piece, ReadyPiece
from pipeline_runtime.feed.ray_data import broadcast_side_tables
from pipeline_runtime.feed.reader_feed import Crew, ReaderFeed
from pipeline_runtime.feed.thread_readers import ThreadCrew, ThreadReaders, threads_per_rank
from pipeline_runtime.feed.wire import Sending
from pipeline_runtime.plan.groups import Group

# Seconds over which a rank's waiting is looked at.
WINDOW_SECONDS: Final = 10.0
# Share of them: a trainer that waits more is fed faster by threads. They cost it 0.2 to 0.3 of its
# rate, so that processes are worth it up to there.
MAX_WAITED_SHARE: Final = 0.25


class SwitchingCrew:
    """Threads and processes, of which one kind is asked at a time.

    Args:
        open_processes: starts those; raises FeedError if that cannot be.
        clock: in seconds; tests have one of their own.
    """

    def __init__(
        self,
        threads: Crew,
        open_processes: Callable[[], Crew],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._threads = threads
        self._open_processes = open_processes
        self._clock = clock
        self._processes: Crew | None = None
        self._asked: Crew = threads  # what follows
        self._may_try = True
        self._crews: dict[str, Crew] = {}  # of every reader that there was
        self._tickets: dict[Hashable, Crew] = {}  # of calls that are not taken
        self._waited = Waited()  # the rank's, once it has waited
        self._window: tuple[float, float] | None = None  # time used and waited at its beginning

    @property
    def call_seconds(self) -> float:
        return self._asked.call_seconds

    def readers(self) -> Sequence[str]:
        self._judge()
        names = self._look_for_processes()
        if not names:
            names = self._threads.readers()
        crew = self._asked
        self._crews.update(dict.fromkeys(names, crew))
        return names

    def _judge(self) -> None:
        """At the end of a window: who is asked from now on."""
        used = self._clock() - self._waited.paused
        if self._window is None:
            self._window = (used, self._waited.production)
        elapsed = used - self._window[0]
        if elapsed < WINDOW_SECONDS:
            return
        waits_much = (self._waited.production - self._window[1]) / elapsed > MAX_WAITED_SHARE
        if self._asked is not self._threads and waits_much:
            self._give_up()
        elif self._may_try and not waits_much:
            self._may_try = False
            try:
                self._processes = self._open_processes()
            except (FeedError, ray.exceptions.RayError):
                self._give_up()
        self._window = None

    def _look_for_processes(self) -> Sequence[str]:
        """Those that can be asked; none while they start, or if they are not wanted."""
        if self._processes is None:
            return ()
        try:
            names = self._processes.readers()
        except (FeedError, ray.exceptions.RayError):
            self._give_up()
            return ()
        before, self._asked = self._asked, self._processes if names else self._threads
        if self._asked is not before:
            self._window = None
        return names

    def _give_up(self) -> None:
        """Ask processes for nothing any more; what they were asked for comes."""
        self._processes, self._asked = None, self._threads

    def worker(self, reader: str) -> str:
        return self._crews[reader].worker(reader)

    def ask(self, reader: str, role: str, tasks: Sequence[Task]) -> Hashable:
        crew = self._crews[reader]
        ticket = crew.ask(reader, role, tasks)
        self._tickets[ticket] = crew
        return ticket

    def wait(self, tickets: Sequence[Hashable], waited: Waited) -> Hashable | None:
        """See Crew. Of two kinds those first that are not asked any more: they end soon."""
        self._waited = waited
        former = [ticket for ticket in tickets if self._tickets[ticket] is not self._asked]
        crew = self._tickets[former[0]] if former else self._asked
        return crew.wait(former or tickets, waited)

    def take(self, ticket: Hashable, waited: Waited) -> Sequence[Piece | ReadyPiece]:
        return self._tickets.pop(ticket).take(ticket, waited)

    def lose(self, reader: str) -> None:
        crew = self._crews[reader]
        crew.lose(reader)

    def close(self) -> None:
        for crew in {self._threads, *self._crews.values()}:
            crew.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchingReaders:
    """Opens feeds of one machine, in the rank's own process; an evaluation's over threads alone."""

    threads: ThreadReaders
    sending: Sending
    broadcast: bool  # side tables are read once for all processes
    on_failure: Callable[[LastmileError], None]

    def open(self, role: str, rank: int, groups: Sequence[Group], *, in_order: bool) -> ReaderFeed:
        """A feed of these groups; see `feed.base.FeedSource`."""
        if role != "training":
            return self.threads.open(role, rank, groups, in_order=in_order)
        threads = ThreadCrew(self.threads.streams, threads_per_rank(self.threads.ranks_here))
        return ReaderFeed(
            crew=SwitchingCrew(threads, self._open_processes),
            role=role,
            groups=groups,
            piece_rows=self.threads.streams[role].piece_rows,
            in_order=in_order,
        )

    def _open_processes(self) -> Crew:
        streams: Mapping[str, Any] = self.threads.streams
        if self.broadcast:
            streams = {
                role: replace(stream, plan=broadcast_side_tables(stream.plan))
                for role, stream in streams.items()
            }
        pool, held = start_pool(
            streams,
            self.on_failure,
            labels=None,
            num_trainers=self.threads.ranks_here,
            name="lastmile-readers",
        )
        return ActorCrew(pool, held, self.sending)
