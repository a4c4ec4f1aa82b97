"""Measure the gain of memory shared with a trainer: `python -m benchmarks.shared_memory`.

A reader, a process, makes ready batches on one core, and this process takes them on the other and
does nothing with them: through memory that both have mapped, and through Ray's object store
(`pipelineOptions.debug.sharedMemory: false`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from benchmarks.dataloading.tables import make_table
from benchmarks.dataloading.workloads import Workload
from benchmarks.harness.cells import Cell
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric
from benchmarks.harness.rounds import Rounds, Sample, measure
from benchmarks.overlap.sessions import PROCESSES, Bench, find_cores, open_bench
from pipeline_runtime.allocator import keep_freed_memory
from pipeline_runtime.feed.over_ray.actor_readers import ActorReaders
from pipeline_runtime.feed.transport.wire import Sending

BENCHMARK = Benchmark(
    name="shared-memory",
    module="shared_memory",
    title="Memory shared with a trainer",
    text="One reader, a process, on one core, and a process that takes its batches on the other. "
    "The rate is that of delivered rows in the middle 80 % of them; the seconds are those of the "
    "taking process, with Ray's threads.",
    metrics=(
        Metric(name="rowsPerSecond", label="thousand rows/s", scale=1e-3),
        Metric(name="takingSeconds", label="s to take a million rows"),
    ),
    cell_label="work",
    arm_label="by",
)


def compare(options: argparse.Namespace) -> Iterator[Cell]:
    """Measure both ways at each level of work."""
    cores = find_cores()
    root = make_table(options.data, options.rows).roots["flat"]
    keep_freed_memory()
    torch.set_num_threads(1)
    for level in ("none", "heavy"):
        with open_bench(Workload(level=level, root=root), cores) as bench:
            arms = {"object store": through_objects(bench), "shared memory": bench}
            passes = {way: partial(run_pass, one) for way, one in arms.items()}
            yield measure(level, passes, Rounds(count=options.rounds))


def through_objects(bench: Bench) -> Bench:
    """Return the same reader, which sends what it makes through Ray's object store."""
    readers = bench.readers[PROCESSES]
    assert isinstance(readers, ActorReaders)
    copied = replace(readers, sending=Sending(shared_memory=False))
    return replace(bench, readers={**bench.readers, PROCESSES: copied})


def run_pass(bench: Bench) -> Sample:
    """Take all batches of the reader that is a process."""
    session = bench.run(PROCESSES)
    _, rows = session.taken[-1]
    seconds = session.cpu_seconds / rows * 1e6
    values = {"rowsPerSecond": session.rows_per_second, "takingSeconds": seconds}
    return Sample(values, session.checksum.to_json())


if __name__ == "__main__":
    parser = build_parser("shared_memory", __doc__, rows=2_000_000, rounds=7)
    sys.exit(run(BENCHMARK, parser, compare))
