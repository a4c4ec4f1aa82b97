"""Sessions in turn, round by round, and what a point's rounds say."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch

from benchmarks.dataloading.measuring.rounds import MAX_OFF
from benchmarks.dataloading.reporting.comparisons import describe_ratio
from benchmarks.dataloading.reporting.ratios import pair_ratios
from benchmarks.dataloading.reporting.results import spread
from benchmarks.dataloading.workloads import Workload
from benchmarks.overlap.sessions import (
    BESIDE,
    BOTH,
    FEEDS,
    KINDS,
    MODEL,
    MODELS,
    PROCESSES,
    READERS,
    THREADS,
    Bench,
    Kind,
    Session,
    open_bench,
)
from benchmarks.records import Document
from benchmarks.turns import in_turn
from pipeline_runtime.feed.local.switching import MAX_WAITED_SHARE

TARGETS: Final = (0.5, 1.0, 2.0)  # S/F
BARS: Final = {0.5: 0.95, 1.0: 0.90, 2.0: 0.95}  # of min(F, S)
# A machine that is never calm ends the repeating; the results then say how many rounds there are.
MAX_TRIES_A_ROUND: Final = 2
_TRIED_STEPS: Final = 12  # of each model that might go on

Round = Mapping[Kind, Session]  # each kind once


def measure(workload: Workload, rounds: int, cores: tuple[int, int]) -> Document:
    """All rounds of one level of work.

    Args:
        rounds: that shall count.
        cores: the trainer's and the data's.
    """
    torch.set_num_threads(1)
    with open_bench(workload, cores) as bench:
        return _measure(bench, rounds)


def _measure(bench: Bench, rounds: int) -> Document:
    level = bench.workload.level
    steps = len(bench.run(FEEDS[PROCESSES], MODELS[0]).taken)  # both warm up
    bench.run(FEEDS[THREADS], MODELS[0])
    feed_rate = bench.run(FEEDS[THREADS], MODELS[0]).rows_per_second
    tried = [bench.run(MODEL, model, steps=_TRIED_STEPS).rows_per_second for model in MODELS]
    _say(f"{level}: feed {feed_rate:,.0f} rows/s; models {[round(r) for r in tried]}")
    points = {
        target: _Point(bench, index, steps, pace=tried[index])
        for target in TARGETS
        for index in [min(range(len(tried)), key=lambda i: _miss(feed_rate / tried[i], target))]
    }
    for _ in range(rounds * MAX_TRIES_A_ROUND):
        for target, point in points.items():
            if len(find_calm(point.model_rates)) < rounds:
                rates = point.measure()
                _say(f"{level} {target}: {rates}")
    return {
        "work": level,
        "batches": steps,
        "points": [point.describe(target, rounds) for target, point in points.items()],
    }


def find_distances(model_rates: Sequence[float]) -> list[float]:
    """Return the relative distance of each round's model alone from the median."""
    median = statistics.median(model_rates or [1.0])
    return [abs(rate / median - 1) for rate in model_rates]


def find_calm(model_rates: Sequence[float]) -> list[int]:
    """The rounds in which the machine was calm."""
    distances = find_distances(model_rates)
    return [index for index, distance in enumerate(distances) if distance <= MAX_OFF]


class _Point:
    """One model and its rounds."""

    def __init__(self, bench: Bench, model: int, steps: int, *, pace: float) -> None:
        self._run: Callable[[Kind], Session] = lambda kind: bench.run(
            kind, MODELS[model], steps=steps, pace=pace
        )
        self._model = MODELS[model]
        self._rounds: list[Round] = []

    @property
    def model_rates(self) -> list[float]:
        return [found[MODEL].rows_per_second for found in self._rounds]

    def measure(self) -> Mapping[str, int]:
        """One round; delivered rows per second by kind."""
        kinds = in_turn(KINDS, len(self._rounds))
        self._rounds.append({kind: self._run(kind) for kind in kinds})
        return {str(k): round(s.rows_per_second) for k, s in self._rounds[-1].items()}

    def describe(self, target: float, wanted: int) -> Document:
        """The calmest rounds."""
        distances = find_distances(self.model_rates)
        nearest = sorted(range(len(distances)), key=distances.__getitem__)[:wanted]
        kept = [self._rounds[index] for index in sorted(nearest)]
        return {
            "wanted": target,
            "model": {
                **self._model,
                "dense": len(self._model["dense"]),
                "categorical": len(self._model["categorical"]),
            },
            "calm_rounds": min(wanted, len(find_calm(self.model_rates))),
            "set_aside": len(self._rounds) - len(kept),
            **_describe(target, {kind: [found[kind] for found in kept] for kind in KINDS}),
        }


def _miss(ratio: float, target: float) -> float:
    return abs(math.log(ratio / target))


def _describe(target: float, found: Mapping[Kind, Sequence[Session]]) -> Document:
    rates = {kind: [s.rows_per_second for s in sessions] for kind, sessions in found.items()}
    feed = [max(pair) for pair in zip(*(rates[kind] for kind in FEEDS.values()), strict=True)]
    slower = _slower(rates[MODEL], feed)
    left = _slower(rates[BESIDE], feed)  # by what the cores take from each other
    waited = {readers: [s.waited_share for s in found[BOTH[readers]]] for readers in READERS}
    by_readers = {
        readers: _describe_ratios(rates[BOTH[readers]], slower)
        | {"waited_share": spread(waited[readers])}
        for readers in READERS
    }
    waits_little = max(map(statistics.median, waited.values())) <= MAX_WAITED_SHARE
    settles = PROCESSES if waits_little else THREADS
    low = by_readers[settles]["ratio_low"]
    return {
        "feed_to_model": spread(s / f for s, f in zip(feed, rates[MODEL], strict=True)),
        "rows_per_second": {str(kind): spread(values) for kind, values in rates.items()},
        "readers": by_readers,
        "left": _describe_ratios(left, slower),
        "auto": settles,
        "auto_of_left": _describe_ratios(rates[BOTH[settles]], left),
        "at_least": BARS[target],
        "met": None if low is None else low >= BARS[target],
    }


def _slower(model: Sequence[float], feed: Sequence[float]) -> list[float]:
    return [min(pair) for pair in zip(model, feed, strict=True)]


def _describe_ratios(both: Sequence[float], slower: Sequence[float]) -> Document:
    return describe_ratio(pair_ratios(both, slower))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
