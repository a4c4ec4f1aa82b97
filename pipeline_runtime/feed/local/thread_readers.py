"""Readers that are threads of the trainer's process: the fastest on one machine, nothing is sent.

Decoding and the steps' kernels run without Python's lock. Steps that call the user's Python hold
it, so their readers are processes (`process_readers`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.making.maker import ChunkMaker, Stream
from pipeline_runtime.feed.reader_feed import ReaderFeed
from pipeline_runtime.plan.groups import Group

# A consumer that waits may look at something else this often.
_WAIT_SECONDS = 1.0


class ThreadCrew:
    """As many threads as this rank has cores."""

    call_seconds = 0.0  # a call costs next to nothing

    def __init__(self, streams: Mapping[str, Stream], num_threads: int) -> None:
        self._makers = {f"thread-{i}": ChunkMaker(streams.__getitem__) for i in range(num_threads)}
        # One executor per maker, so that the chunks of a group are made one after another.
        self._threads = {name: ThreadPoolExecutor(1, f"lastmile-{name}") for name in self._makers}

    def readers(self) -> Sequence[str]:
        return tuple(self._makers)

    def worker(self, reader: str) -> str:
        return "here"

    def ask(self, reader: str, role: str, tasks: Sequence[Task]) -> Hashable:
        maker = self._makers[reader]
        maker.read_ahead(role, tasks[0])
        return self._threads[reader].submit(lambda: [maker.make(role, task) for task in tasks])

    def wait(self, tickets: Sequence[Hashable], waited: Waited) -> Hashable | None:
        started = time.perf_counter()
        futures = [ticket for ticket in tickets if isinstance(ticket, Future)]
        done, _ = wait(futures, _WAIT_SECONDS, FIRST_COMPLETED)
        waited.production += time.perf_counter() - started
        return next((future for future in futures if future in done), None)

    def take(self, ticket: Hashable, waited: Waited) -> Sequence[Chunk]:
        assert isinstance(ticket, Future)
        chunks: Sequence[Chunk] = ticket.result()
        return chunks

    def lose(self, reader: str) -> None:
        raise AssertionError(f"a thread cannot be lost: {reader}")

    def rest(self) -> None:
        """Drop the rows that were read ahead, once the open calls are answered."""
        for name, maker in self._makers.items():
            self._threads[name].submit(maker.rest)

    def close(self) -> None:
        for name, maker in self._makers.items():
            self._threads[name].shutdown(wait=False, cancel_futures=True)
            maker.close()


def threads_per_rank(ranks_here: int) -> int:
    """Return a rank's share of the cores that this process may use, if ranks share a machine."""
    return max(1, len(os.sched_getaffinity(0)) // ranks_here)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadReaders:
    """Opens feeds over threads, in the rank's own process.

    Attributes:
        streams: streams by role.
        num_threads: reader threads of each feed, see `threads_per_rank`.
    """

    streams: Mapping[str, Stream]
    num_threads: int

    def open(self, role: str, rank: int, groups: Sequence[Group], *, in_order: bool) -> ReaderFeed:
        """Open a feed of these groups; see `feed.base.FeedSource`."""
        return ReaderFeed(
            crew=ThreadCrew(self.streams, self.num_threads),
            role=role,
            groups=groups,
            chunk_rows=self.streams[role].chunk_rows,
            in_order=in_order,
        )
