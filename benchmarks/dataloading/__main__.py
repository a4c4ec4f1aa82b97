"""Compares Lastmile with other loaders that bring the same rows to the same tensors.

docs/benchmarks.md describes how it is measured. A ratio says how many times as long as Lastmile a
peer takes for a row.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from benchmarks.dataloading import peers
from benchmarks.dataloading.measuring.hosts import Hosts
from benchmarks.dataloading.peers import DATALOADER, FLOOR, LOADER, SUBJECT
from benchmarks.dataloading.schedule import (
    COLD,
    CPU,
    MEMORY,
    NEXT,
    STEADY,
    WHOLE,
    Schedule,
    Settings,
)
from benchmarks.dataloading.tables import make_table
from benchmarks.dataloading.workloads import FORMS, LAYOUTS, LEVELS
from benchmarks.harness.cells import Cell, Document
from benchmarks.harness.machine import MAX_LOAD
from benchmarks.harness.program import build_parser, run, split
from benchmarks.harness.report import Benchmark, Metric, Target, cells_of

DEFAULT_ROWS: Final = 10_000_000
DEFAULT_ROUNDS: Final = 7
# Peers are tuned on this many rows: enough for seconds of steady state.
TUNING_ROWS: Final = 1_000_000
_FINALS: Final = 2
_STARTS: Final = 3

# A quick run takes about a minute: the loaders that start fast, and Ray Data once.
QUICK_ROWS: Final = 20_000
QUICK_PEERS: Final = (LOADER, DATALOADER, "threads", "ray-stock", "duckdb")

STARTS, ABLATION = "starts", "ablation"

_FLAT, _FLAT_ONCE = "flat, expanded", "flat, deduplicated"
_NESTED_ONCE = "nested, deduplicated"
_USUAL: Final = " (flat, expanded)"  # beside deduplicated batches
# Least ratio by cell and peer, without work and with heavy work.
_LEAST: Final = (
    (_FLAT, DATALOADER, (1.4, 1.4)),
    (_FLAT_ONCE, DATALOADER + _USUAL, (1.8, 1.8)),
    (_FLAT_ONCE, DATALOADER, (1.3, 1.3)),
    (_FLAT, FLOOR, (0.9, 0.9)),
    (_NESTED_ONCE, DATALOADER + _USUAL, (4.0, 4.0)),
    (_NESTED_ONCE, DATALOADER, (1.2, 1.2)),
    (_FLAT, "ray-stock", (4.0, 8.0)),
    (_NESTED_ONCE, "ray-stock" + _USUAL, (12.0, 20.0)),
    (_FLAT, "threads", (0.95, 0.95)),
)
_MOST_OF_LOADER: Final = 1.03  # of the time of a run's own feed
_MOST_SECONDS: Final = (
    ("first batch of a fresh process", COLD, 1.5),
    ("first batch of the next epoch", NEXT, 0.3),
)


def _build_targets() -> Iterator[Target]:
    for cell, peer, least in _LEAST:
        for level, ratio in zip(LEVELS, least, strict=True):
            yield Target(
                text=f"time of a peer, at least {ratio:g} times Lastmile's",
                metric=STEADY,
                arms=(peer,),
                cells=(f"{level}, {cell}",),
                at_least=ratio,
            )
    flat = tuple(f"{level}, {_FLAT}" for level in LEVELS)
    yield Target(
        text=f"time of Pipeline.loader, at most {_MOST_OF_LOADER:g} times that of a run's feed",
        metric=STEADY,
        arms=(LOADER,),
        cells=flat,
        at_most=_MOST_OF_LOADER,
    )
    for text, metric, most in _MOST_SECONDS:
        yield Target(
            text=f"{text}, at most {most:g} s",
            metric=metric,
            arms=(SUBJECT,),
            cells=flat,
            at_most=most,
            of_ratio=False,
            by_bound=False,
        )


def find_doubts(results: Document) -> list[str]:
    """Return why a run cannot meet or miss a target; nothing if it can."""
    settings, load = results["settings"], results["loadAverage"][0]
    doubts = ["a quick run, whose speeds mean nothing"] if settings.get("quick") else []
    for name, least in (("rows", DEFAULT_ROWS), ("rounds", DEFAULT_ROUNDS)):
        if settings[name] < least:
            doubts.append(f"{settings[name]:,} {name} of {least:,}")
    if settings.get("keep_all_rounds"):
        doubts.append("rounds counted whatever their calibration")
    if load > MAX_LOAD:
        doubts.append(f"other work ran beside it: load average {load} at the start")
    return doubts


def _list_settings(results: Document) -> Iterator[str]:
    """Yield the settings that tuned peers were measured with."""
    cells = [cell for cell in cells_of(results) if cell.facts.get("settings")]
    if cells:
        yield "\n## Settings of the peers\n"
        for cell in cells:
            found = "; ".join(f"{arm}: {text}" for arm, text in cell.facts["settings"].items())
            yield f"- {cell.name} (run {cell.facts.get('run', 0)}): {found}"


BENCHMARK = Benchmark(
    name="dataloading",
    module="dataloading",
    title="Loading data: Lastmile and its peers",
    text="How it is measured: [docs/benchmarks.md](../../docs/benchmarks.md). Times are seconds "
    "per million input rows; the steady state is the middle 80 % of the rows. A ratio says how "
    "many times as long as Lastmile a peer takes; with `options`, how many times as long as with "
    "all on. All arms delivered the same rows, by checksums of every column.",
    metrics=(
        Metric(name=STEADY, label="steady, s per million rows"),
        Metric(name=WHOLE, label="whole epoch, s per million rows"),
        Metric(name=CPU, label="core seconds per million rows", is_compared=False, is_drawn=False),
        Metric(name=MEMORY, label="memory, MiB", scale=2**-20, is_compared=False, is_drawn=False),
        Metric(name=COLD, label="first batch, fresh, s", is_compared=False, is_drawn=False),
        Metric(name=NEXT, label="of the next epoch, s", is_compared=False, is_drawn=False),
    ),
    targets=tuple(_build_targets()),
    cell_label="work, files, batches",
    arm_label="loader",
    fact_labels={"run": "run", "setAside": "rounds set aside"},
    add_lines=_list_settings,
    fixed_settings=("rows",),
    find_doubts=find_doubts,
)


def parse() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = build_parser(
        "dataloading", __doc__, rows=DEFAULT_ROWS, rounds=DEFAULT_ROUNDS, adds=True
    )
    add = parser.add_argument
    tuning = f"rows on which peers are tuned ({TUNING_ROWS:,})"
    add("--tuning-rows", type=int, metavar="N", default=TUNING_ROWS, help=tuning)
    keeps = "rounds count whatever their calibration: for a machine that is never calm"
    add("--keep-all-rounds", action="store_true", help=keeps)
    add("--peers", type=split, metavar="A,B,…", help="of " + ", ".join(peers.COMPARED[1:]))
    for name, known, text in (
        ("--work", LEVELS, "levels"),
        ("--layouts", LAYOUTS, "of the files"),
        ("--forms", FORMS, "of the batches"),
    ):
        text = f"{text}: {', '.join(known)} (all)"
        add(name, type=_among(known), metavar="A,B,…", default=known, help=text)
    parts = (STARTS, ABLATION)
    add("--without", type=_among(parts), metavar="A,B,…", default=(), help=f"of {parts}")
    add("--quick", action="store_true", help="few rows, once: do the loaders agree?")
    return parser


def _among(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of lists of these names, which are returned in their order here."""

    def parse_names(text: str) -> tuple[str, ...]:
        given = split(text)
        wrong = [name for name in given if name not in known]
        if wrong or not given:
            got = repr(wrong[0]) if wrong else "none"
            raise argparse.ArgumentTypeError(f"must be among {', '.join(known)}, but got {got}")
        return tuple(name for name in known if name in given)

    return parse_names


def build_settings(options: argparse.Namespace) -> Settings:
    """Build the settings from options, and make missing tables.

    Raises BenchmarkError if a peer is unknown.
    """
    quick = options.quick
    if quick:
        options.rows, options.rounds = min(options.rows, QUICK_ROWS), 1
        options.work = ("heavy",)
        options.peers = options.peers or QUICK_PEERS
    loaders = peers.choose_installed(options.peers)
    starters = (SUBJECT,) if quick else loaders
    return Settings(
        table=make_table(options.data, options.rows, options.layouts),
        tuning_table=make_table(
            options.data, min(options.rows, options.tuning_rows), options.layouts
        ),
        loaders=loaders,
        layouts=options.layouts,
        forms=options.forms,
        levels=options.work,
        rounds=options.rounds,
        keeps_all_rounds=options.keep_all_rounds or quick,
        finals=0 if quick else _FINALS,
        starters=() if STARTS in options.without else starters,
        starts=1 if quick else _STARTS,
        has_ablation=ABLATION not in options.without,
        is_quick=quick,
    )


def compare(options: argparse.Namespace) -> Iterator[Cell]:
    """Measure all cells."""
    settings = build_settings(options)
    for name, reason in peers.describe_missing(options.peers).items():
        print(f"skipped: {name}: {reason}", file=sys.stderr)
    with Hosts() as hosts:
        yield from Schedule(settings, hosts).measure()


if __name__ == "__main__":
    sys.exit(run(BENCHMARK, parse(), compare))
