"""The command line of a benchmark."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.harness.cells import Cell, Document
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.report import (
    Beginning,
    Benchmark,
    build_results,
    cells_of,
    judge,
    write_results,
)

# Options that are places, not settings of the measurement.
_PLACES: Final = ("data", "output", "name", "redraw", "add")
_OF_A_RUN: Final = ("command", "commit", "finishedAt", "minutes", "machine", "loadAverage")


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
    if getattr(options, "add", False) and path.exists():
        try:
            results = _merge(benchmark, json.loads(path.read_text()), results)
        except BenchmarkError as error:
            alone = options.output / "alone"
            write_results(benchmark, results, alone)
            print(f"error: {error} The results of this run are in {alone}.", file=sys.stderr)
            return 1
    print(write_results(benchmark, results, options.output))
    is_missed = any(row["met"] is False for row in judge(benchmark, results))
    return int(fails_if_missed and is_missed)


def split(text: str) -> tuple[str, ...]:
    """Return the parts of an option's value that are separated by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _merge(benchmark: Benchmark, before: Document, now: Document) -> Document:
    """Return results with the cells of both, for benchmarks that take hours.

    Both sides of a ratio come from one run, perhaps on another machine: an arm that was measured
    again leaves the cell of before, and the new cell of that name stands beside it. The fact `run`
    of a cell is the index of its run in `runs`.
    """
    _check_equal("rows", before["settings"].get("rows"), now["settings"].get("rows"))
    doubts = (bool(benchmark.find_doubts(results)) for results in (before, now))
    _check_equal("being only indicative", *doubts)
    runs = before.get("runs") or [{name: before[name] for name in _OF_A_RUN}]
    measured = {cell.name: cell for cell in cells_of(now)}
    names = list(dict.fromkeys([*(cell.name for cell in cells_of(before)), *measured]))
    cells = []
    for cell in cells_of(before):
        cell.facts.setdefault("run", 0)
        if again := measured.get(cell.name):
            for fact in ("rows", "checksum"):
                _check_equal(f"{cell.name}: {fact}", cell.facts.get(fact), again.facts.get(fact))
            for arm in again.arms.keys() - {cell.base}:
                cell.arms.pop(arm, None)
        if cell.arms.keys() - {cell.base}:
            cells.append(cell)
    for cell in measured.values():
        cell.facts["run"] = len(runs)
        cells.append(cell)
    entries = [cell.to_json() for cell in sorted(cells, key=lambda cell: names.index(cell.name))]
    runs = [*runs, {name: now[name] for name in _OF_A_RUN}]
    return {**now, "versions": before["versions"] | now["versions"], "runs": runs, "cells": entries}


def _check_equal(what: str, before: Any, now: Any) -> None:
    if before != now:
        raise BenchmarkError(
            f"--add: {what} must be as in the existing results, {before!r}, but is {now!r}. "
            "Measure without --add, or into another folder."
        )
