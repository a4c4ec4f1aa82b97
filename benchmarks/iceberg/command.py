"""The command line, and the files that it writes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.iceberg.cells import CELLS, Bench
from benchmarks.iceberg.report import build_markdown, draw
from benchmarks.records import Beginning, Document, print_results

NAME = "iceberg"
DEFAULT_ROWS = 1_000_000
DEFAULT_LARGE_ROWS = 4_000_000  # half a million rows a file


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the results; return 1 if a target is missed or a cell fails."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = _parse(arguments)
    bench = Bench(
        data=options.data,
        rows=options.rows,
        large_rows=options.large_rows,
        rounds=options.rounds,
    )
    whole = Beginning()
    found = _read_cells(options.output) if options.add else {}
    for name in options.cells:
        print(f"{name}:", file=sys.stderr)
        found[name] = _measure(name, bench, arguments)
    cells = [found[name] for name in CELLS if name in found]
    results = {
        "version": 1,
        "benchmark": NAME,
        **whole.describe(NAME, arguments),
        "settings": {
            "rows": options.rows,
            "sideRows": bench.main().side_rows(),
            "largeRows": options.large_rows,
        },
        "cells": cells,
    }
    print_results(NAME, results, options.output, build_markdown, draw)
    rows = [row for name in options.cells for row in found[name]["rows"]]
    return 1 if any(row.get("is_met") is False for row in rows) else 0


def _measure(name: str, bench: Bench, arguments: Sequence[str]) -> Document:
    """Return the rows of a cell, and when it was measured; a cell that fails leaves the others."""
    beginning = Beginning()
    try:
        rows = list(CELLS[name](bench))
    except BenchmarkError as error:
        print(f"error: {name}: {error}", file=sys.stderr)
        names = {"subject": "Lastmile", "peer": "–", "measure": name}
        rows = [{**names, "not_run": str(error), "is_met": False}]
    circumstances = beginning.describe(NAME, arguments)
    kept = ("commit", "finishedAt", "minutes", "loadAverage")
    facts = {key: circumstances[key] for key in kept}
    return {"name": name, "rounds": bench.rounds, **facts, "rows": rows}


def _read_cells(folder: Path) -> dict[str, Document]:
    """Return the cells of earlier results by name."""
    path = folder / f"{NAME}.json"
    cells = json.loads(path.read_text())["cells"] if path.exists() else []
    return {cell["name"]: cell for cell in cells}


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{NAME}", description=__doc__)
    add = parser.add_argument
    add("--cells", nargs="+", choices=CELLS, default=list(CELLS), metavar="CELL", help=_names())
    add("--rows", type=int, default=DEFAULT_ROWS, help="impressions")
    add("--large-rows", type=int, default=DEFAULT_LARGE_ROWS, help="impressions, for the memory")
    add("--rounds", type=int, default=5)
    add("--add", action="store_true", help="keep existing results of other cells")
    add("--data", type=Path, default=Path("build"), help="folder of the tables")
    add("--output", type=Path, default=Path("benchmarks/results"))
    return parser.parse_args(arguments)


def _names() -> str:
    return f"of {', '.join(CELLS)}; all if absent"
