"""The command line, and the files that it writes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.iceberg.cells import CELLS, Bench
from benchmarks.iceberg.report import build_markdown, draw
from benchmarks.records import Beginning, Document, write_results

NAME = "iceberg"
DEFAULT_ROWS = 1_000_000
DEFAULT_LARGE_ROWS = 4_000_000  # half a million rows a file
DEFAULT_GROWTH_ROWS = 250_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the results; return 1 if a target is missed or a cell fails."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = _parse(arguments)
    bench = Bench(
        data=options.data,
        rows=options.rows,
        large_rows=options.large_rows,
        growth_rows=options.growth_rows,
        rounds=options.rounds,
    )
    whole = Beginning()
    found = _read_cells(options.output) if options.add else {}
    for name in options.cells:
        print(f"{name}:", file=sys.stderr)
        found[name] = _measure(name, bench, arguments)
        kept = [found[name] for name in CELLS if name in found]
        results = {
            "version": 1,
            "benchmark": NAME,
            **whole.describe(NAME, arguments),
            "cells": [cell.circumstances for cell in kept],
            "rows": [row for cell in kept for row in cell.rows],
        }
        # After each cell: a run that is stopped keeps those before.
        page = write_results(
            NAME, results, options.output, build_markdown=build_markdown, draw=draw
        )
    print(page)
    rows = [row for name in options.cells for row in found[name].rows]
    return 1 if any(row.get("is_met") is False for row in rows) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The rows of a cell; when it was measured, and on how many rows."""

    circumstances: Document
    rows: Sequence[Document]


def _measure(name: str, bench: Bench, arguments: Sequence[str]) -> Measured:
    """Measure a cell; one that fails leaves the others."""
    beginning = Beginning()
    try:
        rows = list(CELLS[name](bench))
    except BenchmarkError as error:
        print(f"error: {name}: {error}", file=sys.stderr)
        names = {"subject": "Lastmile", "peer": "–", "measure": name}
        rows = [{**names, "not_run": " ".join(str(error).split()), "is_met": False}]
    known = beginning.describe(NAME, arguments)
    kept = ("commit", "finishedAt", "minutes", "loadAverage")
    sizes = {
        "rows": bench.rows,
        "sideRows": bench.main().side_rows(),
        "largeRows": bench.large_rows,
        "growthRows": bench.growth_rows,
    }
    return Measured(
        circumstances={"name": name, **{key: known[key] for key in kept}, **sizes},
        rows=[{"cell": name, **row} for row in rows],
    )


def _read_cells(folder: Path) -> dict[str, Measured]:
    """Return the cells of earlier results by name."""
    path = folder / f"{NAME}.json"
    if not path.exists():
        return {}
    results = json.loads(path.read_text())
    return {
        cell["name"]: Measured(
            circumstances=cell,
            rows=[row for row in results["rows"] if row["cell"] == cell["name"]],
        )
        for cell in results["cells"]
    }


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{NAME}", description=__doc__)
    add = parser.add_argument
    add("--cells", nargs="+", choices=CELLS, default=list(CELLS), metavar="CELL", help=_names())
    add("--rows", type=int, default=DEFAULT_ROWS, help="impressions")
    add("--large-rows", type=int, default=DEFAULT_LARGE_ROWS, help="impressions, for the memory")
    add("--growth-rows", type=int, default=DEFAULT_GROWTH_ROWS, help="of the smallest table")
    add("--rounds", type=int, default=5, help="epochs of each program")
    add("--add", action="store_true", help="keep existing results of other cells")
    add("--data", type=Path, default=Path("build"), help="folder of the tables")
    add("--output", type=Path, default=Path("benchmarks/results"))
    return parser.parse_args(arguments)


def _names() -> str:
    return f"of {', '.join(CELLS)}; all if absent"
