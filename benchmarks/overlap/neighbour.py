"""A process that makes unused chunks, like a data worker, while a model trains beside it."""

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

# Interval at which the resting process checks if it must work.
_REST_SECONDS: Final = 0.05
# Time until the process has begun or stopped to work after it was told.
_SETTLE_SECONDS: Final = 0.3

# A context in which the process works, at no more than the given rows per second.
Beside = Callable[[float], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def start_neighbour(stream: Stream, groups: Sequence[Group], core: int) -> Iterator[Beside]:
    """Start the process, which rests on a core until it must work, and ends with the context."""
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
    """Make chunks again and again, in memory that would be shared with their trainer."""
    os.sched_setaffinity(0, {core})
    maker, segments = ChunkMaker(lambda _: stream), Segments()
    tasks = [
        Task(position=position, group=group, chunk=chunk)
        for position, group in enumerate(groups)
        for chunk in range(group.num_chunks(stream.chunk_rows))
    ]
    for made, task in enumerate(itertools.cycle(tasks)):
        if made == len(tasks):
            is_up.set()  # after all tasks, kernels are loaded and files are in memory
        while made >= len(tasks) and not pace.value:
            time.sleep(_REST_SECONDS)
        started = time.perf_counter()
        chunk = maker.make("training", task)
        block = share([chunk], segments, os.getpid())
        segments.free([block.segment.name])
        if pace.value:
            due = started + chunk.header.num_rows / pace.value
            time.sleep(max(0.0, due - time.perf_counter()))
