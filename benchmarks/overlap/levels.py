"""The cells of one level of work: models are chosen, and all sessions of each are measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from statistics import median
from typing import Any, Final

import torch

from benchmarks.dataloading.workloads import Workload
from benchmarks.harness.cells import Cell
from benchmarks.harness.rounds import Rounds, Sample, measure
from benchmarks.overlap.sessions import (
    FROZEN,
    MODELS,
    PROCESSES,
    READERS,
    THREADS,
    Bench,
    open_bench,
)
from pipeline_runtime.feed.local.switching import MAX_WAITED_SHARE

POINTS: Final = {"none": (1.0, 2.0), "heavy": (0.5, 1.0, 2.0)}  # S/F; no model waits without work
MODEL, AUTO = "model", "both, Auto"
Inputs = tuple[str, Mapping[str, Any] | None]  # of batches; the model that is trained on them
RATE, OF_SLOWER, WAITED = "rowsPerSecond", "ofSlower", "waitedShare"
# A machine that is never calm ends the repeating; the results then have the number of rounds.
_MAX_TRIES_PER_ROUND: Final = 2
_TRIED_STEPS: Final = 12  # of each model that might be measured


def compare_level(workload: Workload, rounds: int, cores: tuple[int, int]) -> list[Cell]:
    """Choose the model whose S/F is nearest to each point, and measure all sessions with it."""
    torch.set_num_threads(1)
    cells = []
    with open_bench(workload, cores) as bench:
        steps = len(bench.run(PROCESSES).taken)  # both warm up
        bench.run(THREADS)
        feed_rate = bench.run(THREADS).rows_per_second
        tried = [bench.run(FROZEN, model, steps=_TRIED_STEPS).rows_per_second for model in MODELS]
        for point in POINTS[workload.level]:
            distances = [abs(math.log(feed_rate / rate / point)) for rate in tried]
            model = MODELS[distances.index(min(distances))]
            sources: dict[str, Inputs] = {MODEL: (FROZEN, model)}
            sources |= {f"feed, {readers}": (readers, None) for readers in READERS}
            sources |= {f"both, {readers}": (readers, model) for readers in READERS}
            cell = measure(
                f"{workload.level}, S/F near {point:g}",
                {arm: partial(run_session, bench, steps, *one) for arm, one in sources.items()},
                Rounds(
                    count=rounds,
                    warmups=0,
                    max_count=rounds * _MAX_TRIES_PER_ROUND,
                    calibration=(RATE, [MODEL]),
                ),
            )
            derive(cell)
            cells.append(cell)
    return cells


def run_session(bench: Bench, steps: int, source: str, model: Mapping[str, Any] | None) -> Sample:
    """Measure a session."""
    session = bench.run(source, model, steps=steps)
    return Sample({RATE: session.rows_per_second, WAITED: session.waited_share})


def derive(cell: Cell) -> None:
    """Add the rates relative to the slower of model and feed, round by round."""
    model = cell.arms[MODEL][RATE]
    feeds = (cell.arms[f"feed, {readers}"][RATE] for readers in READERS)
    feed = [max(pair) for pair in zip(*feeds, strict=True)]
    slower = [min(pair) for pair in zip(model, feed, strict=True)]
    both = {readers: cell.arms[f"both, {readers}"] for readers in READERS}
    for values in both.values():
        values[OF_SLOWER] = [a / b for a, b in zip(values[RATE], slower, strict=True)]
    is_model_slow = all(median(values[WAITED]) <= MAX_WAITED_SHARE for values in both.values())
    settled = PROCESSES if is_model_slow else THREADS
    cell.arms[AUTO] = {OF_SLOWER: both[settled][OF_SLOWER]}
    cell.facts["auto"] = settled
    cell.facts["feedToModel"] = round(median(a / b for a, b in zip(feed, model, strict=True)), 2)
