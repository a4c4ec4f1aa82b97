"""The benchmark's command line: the run, and the files it writes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks import records
from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.scaling.elastic import Stages
from benchmarks.scaling.figure import draw
from benchmarks.scaling.report import build_markdown
from benchmarks.scaling.results import (
    FULL_NODES,
    FULL_ROUNDS,
    FULL_SECONDS,
    Document,
    build_results,
)
from benchmarks.scaling.schedule import Settings, run_schedule
from pipeline_runtime.allocator import keep_freed_memory

NAME = "scaling"
DEFAULT_ROWS = 524_288  # 32 normal units, a gigabyte; passes that need more begin again


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if nodes do not come up or rows differ, and then nothing is written."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse_options(arguments)
    torch.set_num_threads(1)
    beginning = records.Beginning()
    keep_freed_memory()  # as `lastmile` does, for the readers' nodes
    try:
        measured = run_schedule(build_settings(options))
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    environment = beginning.describe(NAME, arguments)
    print(write_results(build_results(measured, environment), options.output))
    return 0


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; exit with an error if it is wrong."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{NAME}",
        description="Measure the benefit and cost of 1 to 8 data-worker nodes.",
    )
    add = parser.add_argument
    add("--nodes", type=_numbers, default=FULL_NODES, metavar="A,B,…", help="of data workers")
    add("--stages", type=_numbers, default=(4, 8, 3), metavar="A,B,C", help="nodes, join, leave")
    add("--rounds", type=int, default=FULL_ROUNDS, metavar="N")
    add("--seconds", type=float, default=FULL_SECONDS, metavar="S", help="of a pass")
    add("--rows", type=int, default=DEFAULT_ROWS, metavar="N", help="of the table")
    add("--data", type=Path, default=Path("build"), metavar="DIR", help="folder for sample data")
    add("--output", type=Path, default=Path("benchmarks/results"), metavar="DIR")
    options = parser.parse_args(arguments)
    if len(options.stages) != 3 or not options.stages[0] < options.stages[1] > options.stages[2]:
        parser.error(f"--stages: must be few, more and few again, got {options.stages}")
    return options


def _numbers(text: str) -> tuple[int, ...]:
    """Numbers of nodes, 1 or more."""
    numbers = tuple(map(int, text.split(",")))
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {text!r}")
    return numbers


def build_settings(options: argparse.Namespace) -> Settings:
    """Build the settings from options."""
    first, most, last = options.stages
    return Settings(
        data=options.data,
        rows=options.rows,
        nodes=tuple(sorted(set(options.nodes))),
        rounds=options.rounds,
        seconds=options.seconds,
        stages=Stages(first=first, most=most, last=last),
    )


def write_results(results: Document, folder: Path) -> str:
    """Write the JSON, the table and the picture; the table's text."""
    return records.write_results(NAME, results, folder, build_markdown=build_markdown, draw=draw)
