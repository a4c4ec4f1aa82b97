"""Measure how often `lastmile compare` errs, and what it detects: `make bench-calibration`.

A/A comparisons of real trainings of the built-in model, three seeds each, must give a verdict in at
most 5 % of the cases. Comparisons with a variant that trains on fewer rows show the power; there is
one for five A/A comparisons. The command fails if the false verdicts are more.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain, repeat

from benchmarks.calibration.comparisons import KEPT_SHARES, Compared, compare_equal, compare_kept
from benchmarks.harness.cells import Cell, Values
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric, Target
from pipeline_runtime.comparison.intervals import MIN_SEEDS

MAX_FALSE_VERDICTS = 0.05
EQUAL = "equal variants"
_METRICS = ("auc", "loss")
_A_A_PER_POWER = 5


def _arm(name: str, seeds: int) -> str:
    return f"{name}, {seeds} seeds"


COMPARE = _arm("compare", MIN_SEEDS)

BENCHMARK = Benchmark(
    name="calibration",
    module="calibration",
    title="Calibration of lastmile compare",
    text=(
        "Each comparison has a click log of its own. Verdicts about equal variants are false. "
        "Unpaired means add the noise of seeds and rows of both variants. Rows alone is a "
        "bootstrap of the difference between one training of each, which leaves out the noise of "
        "training."
    ),
    metrics=[
        Metric(
            name=f"{metric}{name}",
            label=f"{label} by {metric}",
            scale=scale,
            is_compared=False,
            is_drawn=name == "Found",
        )
        for name, label, scale in (
            ("Found", "verdicts, % of comparisons", 100.0),
            ("Width", "interval ÷ compare's", 1.0),
            ("Difference", "1,000 × mean difference", 1000.0),
        )
        for metric in _METRICS
    ],
    targets=[
        Target(
            text=f"at most {MAX_FALSE_VERDICTS:.0%} false verdicts by {metric}",
            metric=f"{metric}Found",
            arms=(COMPARE,),
            cells=(EQUAL,),
            at_most=MAX_FALSE_VERDICTS,
            of_ratio=False,
            by_bound=False,
        )
        for metric in _METRICS
    ],
    cell_label="the other variant",
    arm_label="interval",
    x_label="rows that the other variant keeps, %",
    fact_labels={"comparisons": "comparisons"},
)


def measure(options: argparse.Namespace) -> Iterator[Cell]:
    """Train and compare; yield a cell for equal variants and for each share of rows."""
    num_power = options.rounds // _A_A_PER_POWER
    if not num_power:
        raise BenchmarkError(f"--rounds: must be at least {_A_A_PER_POWER}; got {options.rounds}")
    found: list[Compared] = []
    # Torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context) as pool:
        power = pool.map(compare_kept, range(num_power), repeat(options.rows))
        equal = pool.map(compare_equal, range(options.rounds), repeat(options.rows))
        for number, results in enumerate(chain(power, equal), start=1):
            found += results
            print(f"\rlog {number}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for share in (1.0, *KEPT_SHARES):
        yield build_cell([one for one in found if one.kept_share == share])


def build_cell(found: Sequence[Compared]) -> Cell:
    """Return the cell of comparisons that are alike but for seeds and metric."""
    share = found[0].kept_share
    is_equal = share == 1.0
    arms: dict[str, Values] = {}
    for seeds in sorted({one.seeds for one in found}):
        mine, unpaired, alone = (
            arms.setdefault(_arm(name, seeds), {}) for name in ("compare", "unpaired", "rows alone")
        )
        for metric in _METRICS:
            rows = [one for one in found if (one.seeds, one.metric) == (seeds, metric)]
            mine[f"{metric}Found"] = [statistics.fmean(one.found for one in rows)]
            unpaired[f"{metric}Found"] = [statistics.fmean(one.unpaired for one in rows)]
            if is_equal:
                alone[f"{metric}Found"] = [statistics.fmean(one.rows_alone for one in rows)]
                widths = [one.unpaired_width for one in rows]
                unpaired[f"{metric}Width"] = [statistics.median(widths)]
            else:
                mine[f"{metric}Difference"] = [statistics.fmean(one.difference for one in rows)]
    return Cell(
        name=EQUAL if is_equal else f"trains on {share:.0%} of the rows",
        base=COMPARE,
        arms={name: values for name, values in arms.items() if values},
        x=None if is_equal else 100.0 * share,
        facts={"comparisons": len(rows)},
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark."""
    parser = build_parser("calibration", __doc__, rows=8_000, rounds=200)
    return run(BENCHMARK, parser, measure, arguments, fails_if_missed=True)


if __name__ == "__main__":  # a worker process imports this module too
    sys.exit(main())
