"""Trains a model on this machine's GPU, fed by `Pipeline.loader` and by a DataLoader.

Without a GPU it trains on the CPU, only to see that it works.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final

from benchmarks.dataloading.tables import make_table
from benchmarks.gpu.on_device import has_gpu
from benchmarks.harness.cells import Cell
from benchmarks.harness.children import Child
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric
from benchmarks.harness.rounds import Rounds, Sample, measure
from pipeline_runtime.allocator import keep_freed_memory

WAYS: Final = ("DataLoader", "Pipeline.loader")  # the first one is the base
BENCHMARK = Benchmark(
    name="gpu",
    module="gpu",
    title="Training on a GPU",
    text="Rows that the model was trained on per second, in whole epochs, and the share of the "
    "loop's time until batches came. All arms trained on the same rows, by checksum. How it is "
    "measured: [docs/benchmarks.md](../../docs/benchmarks.md#on-a-gpu).",
    metrics=(
        Metric(name="samplesPerSecond", label="thousand samples/s", scale=1e-3),
        Metric(name="waitedShare", label="waited", is_compared=False, is_drawn=False),
    ),
    cell_label="device",
    arm_label="fed by",
)


def compare(options: argparse.Namespace) -> Iterator[Cell]:
    """Train in both ways, each in a process of its own, since a DataLoader forks its workers."""
    device = "cuda" if has_gpu() else "cpu"
    root = make_table(options.data.absolute(), options.rows).roots["flat"]
    keep_freed_memory()  # Arrow reads it when it is loaded, so it holds for the processes below
    with ExitStack() as stack:
        command = ["-m", "benchmarks.gpu.training"]
        processes = {
            way: stack.enter_context(Child(way, [*command, way, root, device])) for way in WAYS
        }
        arms = {way: partial(train_epoch, process) for way, process in processes.items()}
        yield measure(processes[WAYS[0]].hello, arms, Rounds(count=options.rounds))


def train_epoch(process: Child) -> Sample:
    """Train one epoch in a process."""
    found = process.ask(None)
    return Sample(found["values"], found["checksum"])


if __name__ == "__main__":
    sys.exit(run(BENCHMARK, build_parser("gpu", __doc__, rows=4_000_000, rounds=5), compare))
