"""The command line, and the files that it writes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.dataloading.workloads import LEVELS
from benchmarks.pairs.arms import FEED, LOADER, open_arms
from benchmarks.pairs.cells import KINDS, build_cells
from benchmarks.pairs.report import build_markdown, draw, summarise
from benchmarks.pairs.rounds import Limits, measure
from benchmarks.records import Beginning, print_results

NAME = "pairs"
DEFAULT_ROWS = 3_000_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the results; return 1 if a target is missed or arms disagree."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = _parse(arguments)
    beginning = Beginning()
    limits = Limits(
        width=options.width,
        rounds=options.rounds,
        max_rounds=max(options.rounds, options.max_rounds),
        fresh_rounds=options.fresh_rounds,
    )
    cells = build_cells(options.cells, options.data, options.rows, options.work)
    try:
        with open_arms(options.subject, options.base) as (arms, processes):
            found = measure(arms, cells, processes, limits)
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    pairs = summarise(found, arms, options.rows)
    results = {
        "version": 1,
        "benchmark": NAME,
        **beginning.describe(NAME, arguments),
        "settings": {
            "rows": options.rows,
            "width": options.width,
            "rounds": options.rounds,
            "maxRounds": limits.max_rounds,
            "freshRounds": options.fresh_rounds,
        },
        "pairs": pairs,
    }
    name = f"{NAME}-{options.name}" if options.name else NAME
    print_results(name, results, options.output, build_markdown, draw)
    missed = [row for row in pairs if False in (row["is_speed_met"], row["is_memory_met"])]
    return 1 if missed else 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs", description=__doc__)
    add = parser.add_argument
    either = "feed: that of a run"
    add("--subject", choices=(FEED, LOADER), default=FEED, help=f"of this checkout; {either}")
    add("--base", type=_split, required=True, metavar="A,B,…", help="feed, loader, or commits")
    add("--cells", choices=KINDS, default=KINDS[0])
    add("--work", type=_split, default=("none", "heavy"), help=f"of {', '.join(LEVELS)}")
    add("--rows", type=int, default=DEFAULT_ROWS, help="of the table")
    add("--width", type=float, default=0.03, help="widest interval of a ratio, as a share")
    add("--rounds", type=int, default=7, help="at least so many")
    add("--max-rounds", type=int, default=60)
    add("--fresh-rounds", type=int, default=3, help="fresh processes, for the peak memory")
    add("--name", help="of the results: pairs-NAME")
    add("--data", type=Path, default=Path("build"), help="folder of the tables")
    add("--output", type=Path, default=Path("benchmarks/results"))
    return parser.parse_args(arguments)


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
