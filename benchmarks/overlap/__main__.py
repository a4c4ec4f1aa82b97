"""`python -m benchmarks.overlap`: training and loading, alone and together.

    model            batches frozen in memory                               F
    feed, by each    batches taken, nothing done with them                  S, the better of the two
    both, by each    the training as it is                                  R, ideally min(F, S)

Models from small to large are tried first; those whose S/F is closest to 0.5 (the model waits for
data), 1 and 2 (data wait for the model) are measured. docs/benchmarks.md has the method.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Final

from benchmarks.dataloading.tables import make_table
from benchmarks.dataloading.workloads import Workload
from benchmarks.harness.cells import Cell
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric, Target
from benchmarks.overlap.levels import AUTO, OF_SLOWER, POINTS, RATE, WAITED, compare_level
from benchmarks.overlap.sessions import find_cores
from pipeline_runtime.allocator import keep_freed_memory

TARGETS: Final = {0.5: 0.95, 1.0: 0.90, 2.0: 0.95}  # of R / min(F, S), by S/F

BENCHMARK = Benchmark(
    name="overlap",
    module="overlap",
    title="Training while loading",
    text="The trainer on one core, readers and collation on the other. F is the rate of the model "
    "alone, S that of the better feed alone.",
    metrics=(
        Metric(name=RATE, label="thousand rows/s", scale=1e-3, is_compared=False, is_drawn=False),
        Metric(name=OF_SLOWER, label="rate / min(F, S)", is_compared=False),
        Metric(name=WAITED, label="share of time waited", is_compared=False, is_drawn=False),
    ),
    targets=tuple(
        Target(
            text=f"rate / min(F, S), at least {at_least}",
            metric=OF_SLOWER,
            arms=(AUTO,),
            cells=[f"{level}, S/F near {point:g}" for level in POINTS],
            at_least=at_least,
            of_ratio=False,
        )
        for point, at_least in TARGETS.items()
    ),
    cell_label="work",
    arm_label="session",
    fact_labels={"feedToModel": "S/F", "auto": "`feed: Auto` settles on", "setAside": "set aside"},
)


def compare(options: argparse.Namespace) -> Iterator[Cell]:
    """Measure all levels of work in another process."""
    cores = find_cores()
    root = make_table(options.data, options.rows).roots["flat"]
    keep_freed_memory()  # Arrow reads it when it is loaded, so it holds for the process below
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        for level in POINTS:
            workload = Workload(level=level, root=root)
            yield from process.submit(compare_level, workload, options.rounds, cores).result()


if __name__ == "__main__":
    parser = build_parser("overlap", __doc__, rows=2_000_000, rounds=7)
    sys.exit(run(BENCHMARK, parser, compare))
