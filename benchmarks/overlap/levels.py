"""The cells of one level of work: models are chosen, and all sessions of each are measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch

from benchmarks.dataloading.workloads import Workload
from benchmarks.harness.cells import Cell
from benchmarks.harness.rounds import Rounds, Sample, measure
from benchmarks.overlap.sessions import (
    BOTH,
    FEEDS,
    KINDS,
    MODEL,
    MODELS,
    PROCESSES,
    THREADS,
    Bench,
    Kind,
    open_bench,
)
from pipeline_runtime.feed.local.switching import MAX_WAITED_SHARE

POINTS: Final = {"none": (1.0, 2.0), "heavy": (0.5, 1.0, 2.0)}  # S/F; no model waits without work
AUTO: Final = "both, Auto"
RATE: Final = "rowsPerSecond"
# A machine that is never calm ends the repeating; the results then have the number of rounds.
_MAX_TRIES_PER_ROUND: Final = 2
_TRIED_STEPS: Final = 12  # of each model that might be measured


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
            compare_point(bench, point, rounds, steps, find_nearest(tried, feed_rate, point))
            for point in POINTS[workload.level]
        ]


def find_nearest(rates: Sequence[float], feed_rate: float, point: float) -> Mapping[str, Any]:
    """Return the model whose S/F is nearest to a point, by the rates of all models."""

    def find_distance(index: int) -> float:
        return abs(math.log(feed_rate / rates[index] / point))

    return MODELS[min(range(len(MODELS)), key=find_distance)]


def compare_point(
    bench: Bench, point: float, rounds: int, steps: int, model: Mapping[str, Any]
) -> Cell:
    """Measure all sessions with one model."""

    def run_session(kind: Kind) -> Sample:
        session = bench.run(kind, model, steps=steps)
        values = {RATE: session.rows_per_second}
        if kind in BOTH.values():
            values["waitedShare"] = session.waited_share
        return Sample(values)

    cell = measure(
        f"{bench.workload.level}, S/F near {point:g}",
        {str(kind): partial(run_session, kind) for kind in KINDS},
        Rounds(
            count=rounds,
            warmups=0,
            max_count=rounds * _MAX_TRIES_PER_ROUND,
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
    for kind in BOTH.values():
        cell.arms[str(kind)]["ofSlower"] = _divide(rates(kind), slower)
    waited = [statistics.median(cell.arms[str(kind)]["waitedShare"]) for kind in BOTH.values()]
    settled = PROCESSES if max(waited) <= MAX_WAITED_SHARE else THREADS
    cell.arms[AUTO] = {"ofSlower": cell.arms[str(BOTH[settled])]["ofSlower"]}
    cell.facts["auto"] = settled
    cell.facts["feedToModel"] = round(statistics.median(_divide(feed, rates(MODEL))), 2)


def _divide(mine: Sequence[float], others: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(mine, others, strict=True)]
