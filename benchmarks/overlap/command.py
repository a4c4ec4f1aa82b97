"""The benchmark's command line: the run, and the files it writes."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from benchmarks import records
from benchmarks.dataloading.reporting.bars import MAX_LOAD
from benchmarks.dataloading.tables import make_table
from benchmarks.dataloading.workloads import Workload
from benchmarks.overlap.report import build_markdown, draw
from benchmarks.overlap.rounds import measure
from pipeline_runtime.allocator import keep_freed_memory

NAME: Final = "overlap"
LEVELS: Final = ("none", "heavy")
DEFAULT_ROWS: Final = 2_000_000
DEFAULT_ROUNDS: Final = 7


def main() -> int:
    """Measure, print the table, and write JSON, table and picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overlap", description=__doc__)
    parser.add_argument("--rows", type=int, default=DEFAULT_ROWS, help="input rows")
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS)
    parser.add_argument("--work", nargs="+", choices=LEVELS, default=LEVELS)
    parser.add_argument("--data", type=Path, default=Path("build"), help="folder of the table")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("error: the trainer and the data need a core each, got one", file=sys.stderr)
        return 1
    beginning = records.Beginning()
    root = make_table(options.data, options.rows).roots["flat"]
    keep_freed_memory()  # as `lastmile` does: read as a process loads Arrow, so in another one
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        levels = [
            process.submit(
                measure, Workload(level=level, root=root), options.rounds, (cores[0], cores[1])
            ).result()
            for level in options.work
        ]
    results = {
        "version": 3,
        "benchmark": NAME,
        "indicative": _explain_indicative(options, beginning.load, levels),
        **beginning.describe(NAME, sys.argv[1:]),
        "rows": options.rows,
        "rounds": options.rounds,
        "levels": levels,
    }
    records.print_results(NAME, results, options.output, build_markdown, draw)
    return 0


def _explain_indicative(
    options: argparse.Namespace, load: float, levels: Sequence[records.Document]
) -> list[str]:
    """Return the reasons why this run can judge no target; nothing if it can judge one."""
    reasons = []
    if options.rows < DEFAULT_ROWS:
        reasons.append(f"{options.rows:,} rows of {DEFAULT_ROWS:,}")
    fewest = min(point["calm_rounds"] for level in levels for point in level["points"])
    if fewest < DEFAULT_ROUNDS:
        reasons.append(f"{fewest} calm rounds of {DEFAULT_ROUNDS}")
    if load > MAX_LOAD:
        reasons.append(f"other work ran beside it: load average {load} at the start")
    return reasons
