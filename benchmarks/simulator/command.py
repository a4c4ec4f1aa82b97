"""The benchmark's command line: the runs, and the files it writes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.report import Beginning, write_files
from benchmarks.simulator.figure import draw
from benchmarks.simulator.live_run import write_table
from benchmarks.simulator.observing import observe
from benchmarks.simulator.profiles import PROFILES
from benchmarks.simulator.report import build_markdown
from benchmarks.simulator.results import Compared, build_results
from benchmarks.simulator.simulating import Costs, fit, predict
from pipeline_runtime.allocator import keep_freed_memory

NAME = "simulator"
FULL_SEEDS = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 and write nothing if a run breaks off."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse_options(arguments)
    beginning = Beginning()
    keep_freed_memory()  # as `lastmile` does, for the readers' nodes
    try:
        compared, costs = compare(options)
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    environment = beginning.describe(NAME, arguments)
    results = build_results(compared, costs, options.share, environment)
    print(write_files(NAME, results, options.output, build_page=build_markdown, draw=draw))
    return 0


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; exit with an error if it is wrong."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description="Run the same profiles on raylets of this machine and in the simulator.",
    )
    add = parser.add_argument
    add("--share", type=float, default=1.0, metavar="X", help="of each profile's rows, up to 1")
    add("--seeds", type=int, default=FULL_SEEDS, metavar="N", help="simulated of each profile")
    add("--data", type=Path, default=Path("build"), metavar="DIR", help="folder for sample data")
    add("--output", type=Path, default=Path("benchmarks/results"), metavar="DIR")
    options = parser.parse_args(arguments)
    if not 0.0 < options.share <= 1.0:
        parser.error(f"--share: must be above 0 and at most 1, got {options.share}")
    if options.seeds < 1:
        parser.error(f"--seeds: must be 1 or more, got {options.seeds}")
    return options


def compare(options: argparse.Namespace) -> tuple[list[Compared], Costs]:
    """Run every profile, fit the simulator by some, simulate all."""
    root = write_table(options.data)
    runs = [observe(profile.shortened(options.share), root) for profile in PROFILES]
    costs = fit([run for run in runs if not run.profile.is_predicted])
    seeds = range(1, options.seeds + 1)
    compared = [
        Compared(
            observed=run,
            simulated=[predict(run.profile, costs, seed) for seed in seeds],
        )
        for run in runs
    ]
    return compared, costs
