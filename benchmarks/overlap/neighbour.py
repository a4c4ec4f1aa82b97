"""A process that makes chunks for nobody, like a data worker, while a model trains beside it."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.making.maker import ChunkMaker, Stream
from pipeline_runtime.feed.transport.segments import Segments
from pipeline_runtime.feed.transport.wire import share
from pipeline_runtime.plan.groups import Group

# While it is not wanted it looks so often whether it is.
_REST_SECONDS: Final = 0.05
# From the word until it is at work, or no more.
_SETTLE_SECONDS: Final = 0.3

# A context in which it works, at so many rows per second at most.
Beside = Callable[[float], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def start_neighbour(stream: Stream, groups: Sequence[Group], core: int) -> Iterator[Beside]:
    """The process, which rests on a core until it is wanted, and ends with the context."""
    spawning = multiprocessing.get_context("spawn")
    pace = spawning.Value("d", 0.0)
    is_up = spawning.Event()
    process = spawning.Process(target=_work, args=(stream, groups, core, pace, is_up), daemon=True)

    @contextlib.contextmanager
    def beside(rows_per_second: float) -> Iterator[None]:
        pace.value = rows_per_second
        time.sleep(_SETTLE_SECONDS)
        try:
            yield
        finally:
            pace.value = 0.0
            time.sleep(_SETTLE_SECONDS)
        if not process.is_alive():
            raise RuntimeError(f"the neighbour ended with {process.exitcode}, see what it printed")

    process.start()
    try:
        while process.is_alive() and not is_up.wait(_SETTLE_SECONDS):
            pass
        yield beside
    finally:
        process.kill()
        process.join()


def _work(stream: Stream, groups: Sequence[Group], core: int, pace: Any, is_up: Any) -> None:
    """Chunks over and over, written to memory that would be shared with their trainer."""
    os.sched_setaffinity(0, {core})
    maker, segments = ChunkMaker(lambda _: stream), Segments()
    tasks = [
        Task(position=position, group=group, chunk=chunk)
        for position, group in enumerate(groups)
        for chunk in range(group.num_chunks(stream.chunk_rows))
    ]
    for made, task in enumerate(itertools.cycle(tasks)):
        if made == len(tasks):
            is_up.set()  # once through all: kernels are loaded, and files are in memory
        while made >= len(tasks) and not pace.value:
            time.sleep(_REST_SECONDS)
        started = time.perf_counter()
        chunk = maker.make("training", task)
        block = share([chunk], segments, os.getpid())
        segments.free([block.segment.name])
        if pace.value:
            due = started + chunk.header.num_rows / pace.value
            time.sleep(max(0.0, due - time.perf_counter()))
