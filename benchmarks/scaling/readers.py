"""The product's pool of readers, one on each data node, and the tables that they read.

The row groups of a table all have one size, each a unit and a chunk. Readers lease groups of one
unit. The files are not compressed, so that readers, who share the trainer's cores here, have time
to sleep.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, Final

import ray

from benchmarks.dataloading.workloads import BATCH_SIZE, Workload, build_experiment
from benchmarks.harness.errors import BenchmarkError
from benchmarks.scaling.ray_cluster import DATA_LABELS
from benchmarks.scaling.slow_readers import ignore_failure
from pipeline_runtime.feed.making.batching import Batching
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.feed.over_ray.actor_readers import start_pool
from pipeline_runtime.feed.over_ray.reader_actor import Reader, Reporter
from pipeline_runtime.plan import build_plan
from pipeline_runtime.plan.groups import Group
from pipeline_runtime.sample_data import write_sample_data
from pipeline_runtime.sample_data.options import SampleDataOptions

_LOOK_SECONDS: Final = 0.2
_START_SECONDS: Final = 180.0  # eight readers that start at once on two cores take half a minute


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A stream of chunks of `stream.chunk_rows` rows; `units` names it, and is its role."""

    units: str
    stream: Stream

    def groups(self, num_groups: int) -> list[Group]:
        """Return groups in the table's order; a table with fewer starts over, an epoch each."""
        plan, rows = self.stream.plan, self.stream.chunk_rows
        epochs = (plan.groups(epoch, rows) for epoch in count())
        return list(islice(chain.from_iterable(epochs), num_groups))


def make_source(units: str, data: Path, *, rows: int, unit_rows: int) -> Source:
    """Write the table unless it exists, and plan it with all columns and no steps.

    Args:
        units: a name for units of this size, which is a row group.
    """
    folder = data / f"scaling-{rows}-{unit_rows}"
    options = SampleDataOptions(rows=rows, rows_per_group=unit_rows, days=1, compression="none")
    write_sample_data(folder, options)
    workload = Workload(level="none", root=str(folder))
    plan = build_plan(build_experiment(workload), workload.root).training
    batching = Batching(batch_size=BATCH_SIZE, weight_column=None, label_column=None)
    return Source(units=units, stream=Stream(plan=plan, chunk_rows=unit_rows, batching=batching))


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """A running pool; `streams` are references by role, `pid` is that of the pool's process."""

    pool: Any
    streams: Mapping[str, Any]
    pid: int

    def wait_for(self, num_readers: int) -> None:
        """Wait until exactly this many answer."""
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
