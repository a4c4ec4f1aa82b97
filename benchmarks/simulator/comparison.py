"""Compare the simulator with runs on pods: `make bench-simulator`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple
from itertools import zip_longest
from typing import Final

from benchmarks.harness.cells import Cell, Document, Values
from benchmarks.harness.machine import MAX_LOAD
from benchmarks.harness.report import Benchmark, Metric, Target
from benchmarks.harness.statistics import rounded
from benchmarks.simulator.profiles import PROFILES, Profile
from benchmarks.simulator.simulating import Costs, fit, predict
from benchmarks.simulator.watching import Figures, RealRun

SEEDS: Final = range(1, 21)
REAL, SIMULATED = "real", "simulated"


def find_doubts(results: Document) -> list[str]:
    """Return why results are indicative."""
    load = results["loadAverage"][0]  # before: the pods are load themselves
    other = f"other work ran at the same time (load average {load}), which delays workers"
    return [other] * (load > MAX_LOAD)


def _limit_ratio(text: str, metric: str, error: float) -> Iterator[Target]:
    """Yield the targets for a metric: at most this error of the real run's, up and down."""
    text, low, high = f"{text} of the real run's, at", 1.0 - error, 1.0 + error
    yield Target(text=f"{text} least {low:.0%}", metric=metric, at_least=low, by_bound=False)
    yield Target(text=f"{text} most {high:.0%}", metric=metric, at_most=high, by_bound=False)


BENCHMARK = Benchmark(
    name="simulator",
    module="simulator",
    title="The simulator beside real runs",
    text=f"One real run of each profile, and {len(SEEDS)} simulated seeds, which are the rounds.",
    metrics=(
        Metric(name="rowsPerSecond", label="rows per second"),
        Metric(name="idleSeconds", label="seconds idle"),
        Metric(
            name="workersError",
            label="workers at the end of a phase: largest difference",
            is_compared=False,
            is_drawn=False,
        ),
    ),
    targets=(
        *_limit_ratio("rows per second", "rowsPerSecond", 0.10),
        *_limit_ratio("idle seconds", "idleSeconds", 0.15),
        Target(
            text="workers at the end of each phase within 1 of the real run's",
            metric="workersError",
            at_most=1,
            of_ratio=False,
            by_bound=False,
        ),
    ),
    cell_label="profile",
    arm_label="run",
    fact_labels={
        "workersReal": "workers at the ends of phases",
        "workersSimulated": "simulated",
        "startSeconds": "started workers delivered after, s",
        "costs": "fitted: s beside the sleeps of a step and a row, share of reading, start, s",
    },
    find_doubts=find_doubts,
)


def compare(watch: Callable[[Profile], RealRun]) -> Iterator[Cell]:
    """Run every profile, fit the simulator by some, simulate all."""
    real = [watch(profile) for profile in PROFILES]
    costs = fit([one for one in real if not one.profile.is_predicted])
    for one in real:
        yield build_cell(one, [predict(one.profile, costs, seed) for seed in SEEDS], costs)


def build_cell(real: RealRun, simulated: Sequence[Figures], costs: Costs) -> Cell:
    """Return the cell of a profile; that of the predicted one has the fitted costs."""
    profile, mine = real.profile, real.figures
    columns = zip(*(one.workers for one in simulated), strict=True)
    workers = [statistics.median_low(numbers) for numbers in columns]
    error = max(abs(a - b) for a, b in zip_longest(mine.workers, workers, fillvalue=0))
    facts: Document = {
        "workersReal": mine.workers,
        "workersSimulated": workers,
        "startSeconds": [rounded(seconds) for seconds in real.starts],
    }
    if profile.is_predicted:
        facts["costs"] = [rounded(value) for value in astuple(costs)]
    arms = {
        REAL: _values([mine] * len(simulated)),
        SIMULATED: _values(simulated) | {"workersError": [error]},
    }
    name = f"{profile.name}{', predicted' if profile.is_predicted else ''}"
    return Cell(name=name, base=REAL, arms=arms, facts=facts)


def _values(figures: Sequence[Figures]) -> Values:
    return {
        "rowsPerSecond": [one.rows_per_second for one in figures],
        "idleSeconds": [one.idle_seconds for one in figures],
    }
