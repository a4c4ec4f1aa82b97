"""Measure the gain of reading ahead from a slow store: `python -m benchmarks.read_ahead`.

One reader, a thread, reads a table from a slow store, and a consumer discards its chunks, all on
one core, as for a reader of a data worker: with and without `pipelineOptions.debug.readAhead`. The
store is local files; each read takes a latency, and then time for its bytes.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import fsspec
import numpy as np
from fsspec.implementations.local import LocalFileSystem

from benchmarks.dataloading.tables import make_table
from benchmarks.dataloading.workloads import Workload, build_experiment
from benchmarks.harness.cells import Cell
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric
from benchmarks.harness.rounds import Rounds, Sample, measure
from pipeline_runtime.allocator import keep_freed_memory
from pipeline_runtime.config.texts.storage_uri import SCHEMES_VARIABLE
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.chunk import Batches
from pipeline_runtime.feed.local.thread_readers import ThreadReaders, threads_per_rank
from pipeline_runtime.feed.making.batching import batching_of
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.kernels import warm
from pipeline_runtime.plan import Group, build_plan

LATENCY_SECONDS: Final = 0.03  # of an object store, to the first byte
RATES: Final = (50, 200, 1000)  # MB/s of one request: slow, usual, nearly free
BENCHMARK = Benchmark(
    name="read-ahead",
    module="read_ahead",
    title="Reading ahead from a store",
    text=f"One reader on one core; a store that gives the first byte after {LATENCY_SECONDS:g} s.",
    metrics=(Metric(name="rowsPerSecond", label="rows/s"),),
    cell_label="work, MB/s",
    arm_label="reading ahead",
)


class SlowStore(LocalFileSystem):  # type: ignore[misc]
    """Local files, read as slowly as from a store."""

    protocol = "slow"
    bytes_per_second: ClassVar[float] = 1e9

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = super()._strip_protocol(path.removeprefix("slow://"))
        return stripped

    def _open(self, path: str, *_: Any, **__: Any) -> io.FileIO:
        return _SlowFile(path)


class _SlowFile(io.FileIO):
    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size) or b""
        time.sleep(LATENCY_SECONDS + len(data) / SlowStore.bytes_per_second)
        return data


def compare(options: argparse.Namespace) -> Iterator[Cell]:
    """Measure each level of work at each speed of the store."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    keep_freed_memory()
    warm()
    fsspec.register_implementation("slow", SlowStore, clobber=True)
    os.environ[SCHEMES_VARIABLE] = "slow"
    root = str(Path(make_table(options.data, options.rows).roots["flat"]).absolute())
    for level in ("none", "heavy"):
        stream, groups = open_stream(Workload(level=level, root=root))
        for rate in RATES:
            SlowStore.bytes_per_second = rate * 1e6
            arms = {
                name: partial(run_pass, stream, groups, reads_ahead=name == "on")
                for name in ("off", "on")
            }
            yield measure(f"{level}, {rate}", arms, Rounds(count=options.rounds))


def open_stream(workload: Workload) -> tuple[Stream, Sequence[Group]]:
    """Open the workload's table on the store."""
    experiment = build_experiment(workload)
    plan = build_plan(experiment, f"slow://{workload.root}")
    rows = plan.training
    batching = batching_of(plan.delivery, rows, experiment.spec.training)
    stream = Stream(plan=rows, chunk_rows=rows.chunk_rows, batching=batching)
    return stream, rows.groups(0, rows.chunk_rows)


def run_pass(stream: Stream, groups: Sequence[Group], *, reads_ahead: bool) -> Sample:
    """Run one pass by one reader."""
    plan = replace(stream.plan, reads_ahead=reads_ahead)
    readers = ThreadReaders(
        streams={"training": replace(stream, plan=plan)}, num_threads=threads_per_rank(1)
    )
    feed = readers.open("training", 0, groups, in_order=False)
    checksum = 0
    started = time.perf_counter()
    for chunk in feed.chunks(Waited()):
        assert isinstance(chunk.rows, Batches)
        checksum = (checksum + int(np.sum(chunk.rows.hashes, dtype=np.uint64))) % 2**64
    seconds = time.perf_counter() - started
    num_rows = sum(unit.num_rows for group in groups for unit in group.units)
    return Sample({"rowsPerSecond": num_rows / seconds}, checksum)


if __name__ == "__main__":
    parser = build_parser("read_ahead", __doc__, rows=500_000, rounds=7)
    sys.exit(run(BENCHMARK, parser, compare))
