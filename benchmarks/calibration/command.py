"""Measure how often compare errs, and what it detects: `python -m benchmarks.calibration`.

A/A comparisons of real trainings of the built-in model, three seeds each, must give a verdict in at
most 5 % of the cases. Comparisons with a variant that trains on fewer rows give the power curve.
The command fails if the false verdicts are more.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.calibration.comparisons import KEPT_SHARES, POWER_SEEDS, Job, run_job
from benchmarks.calibration.report import (
    build_markdown,
    count_false_positives,
    count_power,
    draw,
    list_differences,
)
from benchmarks.harness.cells import Document
from benchmarks.harness.report import Beginning, write_files
from pipeline_runtime.comparison.intervals import MIN_SEEDS

NAME = "calibration"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; see the module's docstring."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{NAME}", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--comparisons", type=int, default=200, help="A/A comparisons")
    parser.add_argument("--power", type=int, default=40, help="comparisons for each difference")
    parser.add_argument("--rows", type=int, default=8_000, help="rows to train on")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args(arguments)
    beginning = Beginning()
    jobs = [Job(index=i, num_rows=options.rows, is_power=True) for i in range(options.power)]
    jobs += [
        Job(index=i, num_rows=options.rows, is_power=False) for i in range(options.comparisons)
    ]
    rows = []
    # Torch's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, mp_context=context) as pool:
        for number, results in enumerate(pool.map(run_job, jobs), start=1):
            rows += [result.to_row() for result in results]
            print(f"\r{number} of {len(jobs)} logs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    found = count_false_positives(rows)
    given: Sequence[str] = sys.argv[1:] if arguments is None else arguments
    trainings = 2 * MIN_SEEDS * options.comparisons
    trainings += (1 + len(KEPT_SHARES)) * max(POWER_SEEDS) * options.power
    document: Document = {
        "version": 2,
        "benchmark": NAME,
        **beginning.describe(NAME, given),
        "numRows": options.rows,
        "trainings": trainings,
        "falsePositives": found,
        "power": count_power(rows),
        "rows": list_differences(rows),
    }
    print(write_files(NAME, document, options.output, build_page=build_markdown, draw=draw))
    return 0 if all(entry["isMet"] for entry in found) else 1
