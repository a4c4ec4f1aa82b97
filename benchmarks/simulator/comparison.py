"""Compare the simulator with a run on raylets of this machine: `make bench-simulator`."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import Final

from benchmarks.harness.cells import Cell, Document, Values
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.machine import MAX_LOAD
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric, Target, cells_of
from benchmarks.harness.statistics import rounded
from benchmarks.simulator.live_run import observe, write_table
from benchmarks.simulator.profiles import PROFILES, Profile
from benchmarks.simulator.simulating import Costs, fit, predict
from benchmarks.simulator.watching import Figures, RealRun
from pipeline_runtime.allocator import keep_freed_memory

SEEDS: Final = range(1, 21)
REAL, SIMULATED = "real", "simulated"
# Targets of the simulator for every profile.
MAX_RATE_ERROR: Final = 0.10
MAX_IDLE_ERROR: Final = 0.15
MAX_WORKERS_ERROR: Final = 1


def find_doubts(results: Document) -> list[str]:
    """Return why results are indicative."""
    before, after = results["loadAverage"]
    # Pods are load themselves.
    load = before if results["benchmark"] == PODS else max(before, after)
    reasons = {
        f"{results['settings']['share']:g} of the rows": results["settings"]["share"] < 1.0,
        f"other work ran at the same time (load average {load}), which delays workers": (
            load > MAX_LOAD
        ),
    }
    return [reason for reason, holds in reasons.items() if holds]


def describe_costs(results: Document) -> Iterator[str]:
    """Yield the costs to which the simulator was fitted."""
    [costs] = [cell.facts["costs"] for cell in cells_of(results) if "costs" in cell.facts]
    yield (
        f"\nFitted to the runs that are not predicted: beside the sleeps, a step costs "
        f"{costs['step_seconds'] * 1e3:.2g} ms, a row {costs['row_seconds'] * 1e6:.2g} µs, reading "
        f"is {costs['read_share']:.1%} of a busy worker's time, and a worker delivers "
        f"{costs['start_seconds']:.3g} s after its request."
    )


def _within(text: str, metric: str, error: float) -> tuple[Target, Target]:
    low, high = 1.0 - error, 1.0 + error
    text = f"{text} of the real run's, at"
    return (
        Target(text=f"{text} least {low:.0%}", metric=metric, at_least=low, by_bound=False),
        Target(text=f"{text} most {high:.0%}", metric=metric, at_most=high, by_bound=False),
    )


BENCHMARK = Benchmark(
    name="simulator",
    module="simulator",
    title="The simulator beside real runs",
    text=(f"One real run of each profile, and {len(SEEDS)} simulated seeds, which are the rounds."),
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
        *_within("rows per second", "rowsPerSecond", MAX_RATE_ERROR),
        *_within("idle seconds", "idleSeconds", MAX_IDLE_ERROR),
        Target(
            text=f"workers at the end of each phase within {MAX_WORKERS_ERROR} of the real run's",
            metric="workersError",
            at_most=MAX_WORKERS_ERROR,
            of_ratio=False,
            by_bound=False,
        ),
    ),
    cell_label="profile",
    arm_label="run",
    fact_labels={
        "workersReal": "workers at the ends of phases",
        "workersSimulated": "simulated",
        "required": "busy workers that the sleeps require",
        "startSeconds": "started workers delivered after, s",
    },
    add_lines=describe_costs,
    find_doubts=find_doubts,
)
# The results on pods, which tests/e2e/test_simulator.py writes.
PODS: Final = "simulator-pods"


def compare(watch: Callable[[Profile], RealRun], share: float = 1.0) -> Iterator[Cell]:
    """Run every profile, fit the simulator by some, simulate all."""
    real = [watch(profile.shortened(share)) for profile in PROFILES]
    costs = fit([one for one in real if not one.profile.is_predicted])
    for one in real:
        yield build_cell(one, [predict(one.profile, costs, seed) for seed in SEEDS], costs)


def build_cell(real: RealRun, simulated: Sequence[Figures], costs: Costs) -> Cell:
    """Return the cell of a profile."""
    profile, mine = real.profile, real.figures
    columns = zip(*(one.workers for one in simulated), strict=True)
    workers = [statistics.median_low(numbers) for numbers in columns]
    error = max(abs(a - b) for a, b in zip_longest(mine.workers, workers, fillvalue=0))
    facts: Document = {
        "workersReal": mine.workers,
        "workersSimulated": workers,
        "required": [rounded(number) for number in profile.required()],
        "startSeconds": [rounded(seconds) for seconds in real.starts],
    }
    if profile.is_predicted:
        facts["costs"] = {name: rounded(value) for name, value in asdict(costs).items()}
    return Cell(
        name=f"{profile.name}{', predicted' if profile.is_predicted else ''}",
        base=REAL,
        arms={
            REAL: _values([mine] * len(simulated)),
            SIMULATED: _values(simulated) | {"workersError": [error]},
        },
        facts=facts,
    )


def _values(figures: Sequence[Figures]) -> Values:
    return {
        "rowsPerSecond": [one.rows_per_second for one in figures],
        "idleSeconds": [one.idle_seconds for one in figures],
    }


def measure(options: argparse.Namespace) -> Iterable[Cell]:
    """Compare with runs on raylets of this machine."""
    if not 0.0 < options.share <= 1.0:
        raise BenchmarkError(f"--share: must be above 0 and at most 1, but is {options.share}")
    keep_freed_memory()  # as `lastmile` does, for the readers' nodes
    root = write_table(options.data)
    return compare(lambda profile: observe(profile, root), options.share)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark."""
    parser = build_parser("simulator", __doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of each profile's rows, up to 1")
    return run(BENCHMARK, parser, measure, arguments)
