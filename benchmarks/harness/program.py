"""The command line of a benchmark."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.harness.cells import Cell
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.report import Beginning, Benchmark, build_results, judge, write_results

# Options that are places, not settings of the measurement.
_PLACES: Final = ("data", "output", "name", "redraw")


def build_parser(
    module: str, text: str | None, *, rows: int = 0, rounds: int = 0
) -> argparse.ArgumentParser:
    """Return a parser with the options that most benchmarks share.

    Args:
        text: of the help, the module's docstring.
        rows, rounds: defaults; no option if 0.
    """
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{module}", description=text, formatter_class=formatter
    )
    if rows:
        parser.add_argument("--rows", type=int, default=rows, help="rows of the table")
    if rounds:
        parser.add_argument("--rounds", type=int, default=rounds, help="rounds that count")
    parser.add_argument("--data", type=Path, default=Path("build"), help="folder of the tables")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--name", help="the results are named after the benchmark, and this")
    redraws = "measure nothing; write page and picture again"
    parser.add_argument("--redraw", action="store_true", help=redraws)
    return parser


def run(
    benchmark: Benchmark,
    parser: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], Iterable[Cell]],
    arguments: Sequence[str] | None = None,
    *,
    fails_if_missed: bool = False,
) -> int:
    """Measure, write the results and print the page.

    Returns the exit code: 1 if the benchmark failed or refused its figures, which writes nothing;
    or if a target is missed and `fails_if_missed`.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = parser.parse_args(arguments)
    if options.name:
        benchmark = replace(benchmark, name=f"{benchmark.name}-{options.name}")
    path = options.output / f"{benchmark.name}.json"
    if options.redraw:
        print(write_results(benchmark, json.loads(path.read_text()), options.output))
        return 0
    beginning = Beginning()
    try:
        cells = list(measure(options))
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    settings = {k: v for k, v in vars(options).items() if k not in _PLACES and v not in (None, "")}
    circumstances = beginning.describe(benchmark.module, arguments)
    results = build_results(benchmark, circumstances, settings, cells)
    print(write_results(benchmark, results, options.output))
    is_missed = any(row["met"] is False for row in judge(benchmark, results))
    return int(fails_if_missed and is_missed)


def split(text: str) -> tuple[str, ...]:
    """Return the parts of an option's value that are separated by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
