"""Readers that are slowed; imported by their processes, so nothing heavy is imported here.

A slow reader makes its chunks as any other does, and sleeps after each until its time is over. The
time for packing is part of that: the next chunk has so much less. The header reports all of it as
reading.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from pipeline_runtime.errors import LastmileError
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.making.maker import ChunkMaker
from pipeline_runtime.feed.over_ray.reader_actor import Beside, Reader
from pipeline_runtime.feed.transport.wire import Block, Wire


def slowed(rows_per_second: float) -> type[Reader]:
    """Return readers that take at least the rows of a chunk / `rows_per_second` seconds for it."""

    class SlowMaker(ChunkMaker):
        finished = packed = 0.0  # the last chunk, and its call; by time.perf_counter

        def make(self, role: str, task: Task) -> Chunk:
            started = time.perf_counter()
            packing = max(0.0, self.packed - self.finished)
            idle = started - max(self.packed, self.finished)
            chunk = super().make(role, task)
            spent = time.perf_counter() - started + packing
            slept = max(0.0, chunk.header.num_rows / rows_per_second - spent)
            time.sleep(slept)
            self.finished = time.perf_counter()
            read, *others = chunk.header.counts
            counts = (replace(read, seconds=read.seconds + slept), *others)
            seconds = chunk.header.read_seconds + slept
            header = replace(chunk.header, counts=counts, gap_seconds=idle, read_seconds=seconds)
            return replace(chunk, header=header)

    class SlowReader(Reader):
        maker = SlowMaker

        def make(
            self, role: str, tasks: Sequence[Task], wire: Wire, beside: Beside | None = None
        ) -> Block:
            block = super().make(role, tasks, wire, beside)
            assert isinstance(self._maker, SlowMaker)
            self._maker.packed = time.perf_counter()
            return block

    return SlowReader


def ignore_failure(error: LastmileError) -> None:
    """Ignore a failure: Ray raises it in the trainer too, and there is no monitor."""
    del error
