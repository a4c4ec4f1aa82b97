"""The command line of a benchmark."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.harness.cells import Cell, Document
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.merging import check_version, merge_results
from benchmarks.harness.report import (
    VERSION,
    Beginning,
    Benchmark,
    build_results,
    judge,
    write_results,
)

# Options that are places, not settings of the measurement.
_PLACES = ("data", "output", "name", "redraw", "add")


def build_parser(
    module: str, text: str | None, *, rows: int = 0, rounds: int = 0, adds: bool = False
) -> argparse.ArgumentParser:
    """Return a parser with the options that most benchmarks share.

    Args:
        text: of the help, the module's docstring.
        rows, rounds: defaults; no option if 0.
        adds: there is an option to keep the cells of earlier runs.
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
    if adds:
        keeps = "keep the existing results, except for the cells that are measured now"
        parser.add_argument("--add", action="store_true", help=keeps)
    parser.add_argument("--name", help="the results are named after the benchmark, and this")
    parser.add_argument(
        "--redraw", action="store_true", help="measure nothing; write page and picture again"
    )
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
    if options.redraw:
        path = options.output / f"{benchmark.name}.json"
        print(write_results(benchmark, json.loads(path.read_text()), options.output))
        return 0
    beginning = Beginning()
    try:
        before = _read_before(options, benchmark)
        cells = list(measure(options))
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    settings = {k: v for k, v in vars(options).items() if k not in _PLACES and v not in (None, "")}
    results = build_results(
        benchmark, beginning.describe(benchmark.module, arguments), settings, cells
    )
    try:
        results = results if before is None else merge_results(benchmark, before, results)
    except BenchmarkError as error:
        alone = options.output / "alone"
        write_results(benchmark, results, alone)
        print(f"error: {error} The results of this run are in {alone}.", file=sys.stderr)
        return 1
    print(write_results(benchmark, results, options.output))
    is_missed = any(row["met"] is False for row in judge(benchmark, results))
    return int(fails_if_missed and is_missed)


def _read_before(options: argparse.Namespace, benchmark: Benchmark) -> Document | None:
    """Return the results that the cells of this run are added to, or None."""
    path = options.output / f"{benchmark.name}.json"
    if not getattr(options, "add", False) or not path.exists():
        return None
    before: Document = json.loads(path.read_text())
    check_version(before, VERSION)
    return before


def split(text: str) -> tuple[str, ...]:
    """Return the parts of an option's value that are separated by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
