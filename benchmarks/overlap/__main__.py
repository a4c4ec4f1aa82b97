"""`python -m benchmarks.overlap`: training and loading, alone and together.

The built-in model trains on one core, by its own loop; readers and collation have another core.
Readers are threads of the trainer's process, or a process of their own, with all of Ray on the
data's core. Each session reads the same table, and is measured in delivered rows per second in the
middle 80 % of them:

    model            batches frozen in memory, at least 64 different ones   F
    feed, by each    batches taken, nothing done with them                  S, the better of the two
    both, by each    the training as it is                                  R, ideally min(F, S)
    model, beside    frozen batches, while a process makes unused chunks on the other core

Models from small to large are tried first; those whose S/F is closest to 0.5 (the model waits for
data), 1 and 2 (data wait for the model) are measured. The targets are for the readers that `feed:
Auto` settles on, by its own rule: threads while the trainer waits much for rows. The loss of
`model, beside` is the share of cores, caches and memory that no feed can give back.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Final

import torch

from benchmarks.dataloading.tables import make_table
from benchmarks.dataloading.workloads import Workload
from benchmarks.harness.cells import Cell
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric, Target
from benchmarks.harness.rounds import Rounds, Sample, measure
from benchmarks.overlap.sessions import (
    BESIDE,
    BOTH,
    FEEDS,
    KINDS,
    MODEL,
    MODELS,
    PROCESSES,
    THREADS,
    Bench,
    Kind,
    find_cores,
    open_bench,
)
from pipeline_runtime.allocator import keep_freed_memory
from pipeline_runtime.feed.local.switching import MAX_WAITED_SHARE

LEVELS: Final = ("none", "heavy")
POINTS: Final = {0.5: 0.95, 1.0: 0.90, 2.0: 0.95}  # S/F, and the target for R / min(F, S)
AUTO: Final = "both, Auto"
RATE: Final = "rowsPerSecond"
# A machine that is never calm ends the repeating; the results then say how many rounds there are.
MAX_TRIES_PER_ROUND: Final = 2
_TRIED_STEPS: Final = 12  # of each model that might be measured

BENCHMARK = Benchmark(
    name="overlap",
    module="overlap",
    title="Training while loading",
    text="The trainer on one core, readers and collation on the other. F is the rate of the model "
    "alone, S that of the better feed alone; what F loses beside an unrelated process is lost to "
    "caches and memory of the machine.",
    metrics=(
        Metric(name=RATE, label="thousand rows/s", scale=1e-3, is_compared=False, is_drawn=False),
        Metric(name="ofSlower", label="rate / min(F, S)", is_compared=False),
        Metric(name="ofLeft", label="rate / min(F beside, S)", is_compared=False, is_drawn=False),
        Metric(name="waitedShare", label="share of time waited", is_compared=False, is_drawn=False),
    ),
    targets=tuple(
        Target(
            text=f"rate / min(F, S), at least {at_least}",
            metric="ofSlower",
            arms=(AUTO,),
            cells=[f"{level}, S/F near {point:g}" for level in LEVELS],
            at_least=at_least,
            of_ratio=False,
        )
        for point, at_least in POINTS.items()
    ),
    cell_label="work",
    arm_label="session",
    fact_labels={"feedToModel": "S/F", "auto": "`feed: Auto` settles on", "setAside": "set aside"},
)


def compare(options: argparse.Namespace) -> Iterator[Cell]:
    """Measure each level of work in a process of its own."""
    cores = find_cores()
    root = make_table(options.data, options.rows).roots["flat"]
    keep_freed_memory()  # Arrow reads it when it is loaded, so it holds for the processes below
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        for level in options.work:
            workload = Workload(level=level, root=root)
            yield from process.submit(compare_level, workload, options.rounds, cores).result()


def compare_level(workload: Workload, rounds: int, cores: tuple[int, int]) -> list[Cell]:
    """Choose the models, and measure all sessions of each; the cores are the trainer's and the
    data's."""
    torch.set_num_threads(1)
    with open_bench(workload, cores) as bench:
        steps = len(bench.run(FEEDS[PROCESSES], MODELS[0]).taken)  # both warm up
        bench.run(FEEDS[THREADS], MODELS[0])
        feed_rate = bench.run(FEEDS[THREADS], MODELS[0]).rows_per_second
        tried = [bench.run(MODEL, model, steps=_TRIED_STEPS).rows_per_second for model in MODELS]
        return [
            compare_point(bench, point, rounds, steps, find_nearest(tried, feed_rate, point), tried)
            for point in POINTS
        ]


def find_nearest(model_rates: Sequence[float], feed_rate: float, point: float) -> int:
    """Return the index of the model whose S/F is nearest to a point."""
    return min(
        range(len(model_rates)), key=lambda i: abs(math.log(feed_rate / model_rates[i] / point))
    )


def compare_point(
    bench: Bench, point: float, rounds: int, steps: int, index: int, tried: Sequence[float]
) -> Cell:
    """Measure all sessions with one model."""

    def run_session(kind: Kind) -> Sample:
        session = bench.run(kind, MODELS[index], steps=steps, pace=tried[index])
        values = {RATE: session.rows_per_second}
        return Sample(
            values | ({"waitedShare": session.waited_share} if kind in BOTH.values() else {})
        )

    cell = measure(
        f"{bench.workload.level}, S/F near {point:g}",
        {str(kind): partial(run_session, kind) for kind in KINDS},
        Rounds(
            count=rounds,
            warmups=0,
            max_count=rounds * MAX_TRIES_PER_ROUND,
            calibration=(RATE, [str(MODEL)]),
        ),
    )
    derive(cell)
    return cell


def derive(cell: Cell) -> None:
    """Add the rates relative to the slower of model and feed, round by round."""

    def rates(kind: Kind) -> list[float]:
        return cell.arms[str(kind)][RATE]

    feed = [max(pair) for pair in zip(*(rates(kind) for kind in FEEDS.values()), strict=True)]
    slower = [min(pair) for pair in zip(rates(MODEL), feed, strict=True)]
    left = [min(pair) for pair in zip(rates(BESIDE), feed, strict=True)]
    for kind in BOTH.values():
        cell.arms[str(kind)]["ofSlower"] = _divide(rates(kind), slower)
    cell.arms[str(BESIDE)]["ofSlower"] = _divide(left, slower)
    waited = [statistics.median(cell.arms[str(kind)]["waitedShare"]) for kind in BOTH.values()]
    settled = PROCESSES if max(waited) <= MAX_WAITED_SHARE else THREADS
    both = rates(BOTH[settled])
    cell.arms[AUTO] = {"ofSlower": _divide(both, slower), "ofLeft": _divide(both, left)}
    cell.facts["auto"] = settled
    cell.facts["feedToModel"] = round(statistics.median(_divide(feed, rates(MODEL))), 2)


def _divide(mine: Sequence[float], others: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(mine, others, strict=True)]


if __name__ == "__main__":
    parser = build_parser("overlap", __doc__, rows=2_000_000, rounds=7)
    parser.add_argument("--work", nargs="+", choices=LEVELS, default=LEVELS)
    sys.exit(run(BENCHMARK, parser, compare))
