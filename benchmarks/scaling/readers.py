"""The product's pool of readers, with readers as slow as they are told.

The pool puts one reader on each data node. A slow reader makes its piece as any other does and
sleeps until the piece has taken its time; only then does the piece go into the object store.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import ray

from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.scaling.cluster import DATA_LABELS
from benchmarks.scaling.sources import Source
from pipeline_runtime.errors import LastmileError
from pipeline_runtime.feed.actor_readers import Reader, start_pool
from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.pieces import unpack

_LOOK_SECONDS = 0.2
# Eight readers that start at once on two cores take half a minute.
_START_SECONDS = 180.0


def slowed(rows_per_second: float) -> type[Reader]:
    """Readers that take a piece's rows / `rows_per_second` seconds for it at least, work in it."""

    class SlowReader(Reader):
        def make(self, role: str, task: Task) -> pa.Table:
            started = time.perf_counter()
            block = super().make(role, task)
            num_rows = sum(piece.header.num_rows for piece in unpack(block))
            time.sleep(rest_seconds(num_rows, rows_per_second, time.perf_counter() - started))
            return block

    return SlowReader


def rest_seconds(num_rows: int, rows_per_second: float, spent_seconds: float) -> float:
    """What is left to sleep of a piece's time; nothing of one that took longer."""
    return max(0.0, num_rows / rows_per_second - spent_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """A pool that is up; `streams` are references by role, `pid` is of the pool's process."""

    pool: Any
    streams: Mapping[str, Any]
    pid: int

    def wait_for(self, num_readers: int) -> None:
        """Wait until so many answer, no more and no fewer. Raises BenchmarkError in the end."""
        deadline = time.monotonic() + _START_SECONDS
        while (found := len(ray.get(self.pool.readers.remote(self.streams)))) != num_readers:
            if time.monotonic() > deadline:
                raise BenchmarkError(f"readers: must be {num_readers}, got {found}")
            time.sleep(_LOOK_SECONDS)


@contextmanager
def open_readers(sources: Sequence[Source], reader: type[Reader]) -> Iterator[Readers]:
    """A pool on the data nodes for the time of a context; its readers end with it."""
    streams = {source.units: source.stream for source in sources}
    pool, held = start_pool(streams, _ignore, DATA_LABELS, 0, reader)
    try:
        yield Readers(pool=pool, streams=held, pid=ray.get(pool.__ray_call__.remote(_pid)))
    finally:
        ray.kill(pool)


def _ignore(error: LastmileError) -> None:
    """Ray raises the failure in the trainer too; there is no monitor to tell."""
    del error


def _pid(pool: object) -> int:
    """Of the process that the pool is called in."""
    del pool
    return os.getpid()
