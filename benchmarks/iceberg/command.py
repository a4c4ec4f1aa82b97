"""The command line, and the files that it writes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.iceberg.lakes import make_lake
from benchmarks.iceberg.report import build_markdown, draw, summarise
from benchmarks.iceberg.rounds import Processes, measure
from benchmarks.iceberg.targets import TARGETS
from benchmarks.records import Beginning, print_results

NAME = "iceberg"
DEFAULT_ROWS = 1_000_000
DEFAULT_LARGE_ROWS = 4_000_000  # of one day: half a million rows a file
DEFAULT_DAYS = 4
SMALL_ROWS = 10_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the results; return 1 if a target is missed or programs disagree."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = _parse(arguments)
    beginning = Beginning()
    targets = [t for t in TARGETS if _matches(options.only, t.subject.name, t.peer.name)]
    lake = make_lake(options.data, options.rows, days=DEFAULT_DAYS)
    lakes = {False: lake, True: lake}
    if any(target.is_large for target in targets):
        lakes[True] = make_lake(options.data, options.large_rows, days=1)
    small = make_lake(options.data, SMALL_ROWS, days=1)
    try:
        with Processes(small) as processes:
            found = measure(targets, lakes, processes, options.rounds)
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    comparisons = summarise(targets, found, lake)
    results = {
        "version": 1,
        "benchmark": NAME,
        **beginning.describe(NAME, arguments),
        "settings": {
            "rows": options.rows,
            "largeRows": options.large_rows,
            "days": DEFAULT_DAYS,
            "rounds": options.rounds,
        },
        "comparisons": comparisons,
    }
    print_results(NAME, results, options.output, build_markdown, draw)
    return 1 if any(row.get("is_met") is False for row in comparisons) else 0


def _matches(words: Sequence[str], *names: str) -> bool:
    text = " ".join(names).lower()
    return not words or any(word.lower() in text for word in words)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{NAME}", description=__doc__)
    add = parser.add_argument
    add("--rows", type=int, default=DEFAULT_ROWS, help="impressions")
    add("--large-rows", type=int, default=DEFAULT_LARGE_ROWS, help="impressions, for the memory")
    add("--rounds", type=int, default=7)
    add("--only", nargs="+", default=(), metavar="WORD", help="programs whose names have a word")
    add("--data", type=Path, default=Path("build"), help="folder of the tables")
    add("--output", type=Path, default=Path("benchmarks/results"))
    return parser.parse_args(arguments)
