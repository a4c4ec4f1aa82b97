"""The product's pool of readers, one on each data node."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray

from benchmarks.harness.errors import BenchmarkError
from benchmarks.scaling.ray_cluster import DATA_LABELS
from benchmarks.scaling.slow_readers import ignore_failure
from benchmarks.scaling.units import Source
from pipeline_runtime.feed.over_ray.actor_readers import start_pool
from pipeline_runtime.feed.over_ray.reader_actor import Reader, Reporter

_LOOK_SECONDS = 0.2
_START_SECONDS = 180.0  # eight readers that start at once on two cores take half a minute


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """A running pool; `streams` are references by role, `pid` is that of the pool's process."""

    pool: Any
    streams: Mapping[str, Any]
    pid: int

    def wait_for(self, num_readers: int) -> None:
        """Wait until exactly this many answer. Raises BenchmarkError if they never do."""
        deadline = time.monotonic() + _START_SECONDS
        while (found := len(ray.get(self.pool.readers.remote(self.streams)).actors)) != num_readers:
            if time.monotonic() > deadline:
                raise BenchmarkError(f"readers: must be {num_readers}, got {found}")
            time.sleep(_LOOK_SECONDS)


@contextmanager
def open_readers(sources: Sequence[Source], reader: type[Reader]) -> Iterator[Readers]:
    """Start a pool on the data nodes; its readers end with it."""
    streams = {source.units: source.stream for source in sources}
    pool, held = start_pool(streams, Reporter(on_failure=ignore_failure), DATA_LABELS, 0, reader)
    try:
        # A lambda, whose module the pool need not import.
        pid = ray.get(pool.__ray_call__.remote(lambda _: os.getpid()))
        yield Readers(pool=pool, streams=held, pid=pid)
    finally:
        ray.kill(pool)
