"""The options of the command line, and the settings and tables that follow from them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.dataloading import peers
from benchmarks.dataloading.settings import ABLATIONS, ALL_ON, NESTED_ALL_ON, Settings
from benchmarks.dataloading.tables import make_table
from benchmarks.dataloading.workloads import FORMS, LAYOUTS, LEVELS

DEFAULT_ROWS: Final = 10_000_000
DEFAULT_ROUNDS: Final = 7
# Peers are tuned on this many rows: enough for seconds of steady state.
TUNING_ROWS: Final = 1_000_000
# Training uses two row groups: a step costs far more than its rows, so more steps would show less
# of the loaders.
SMALL_ROWS: Final = 32_768
# The least and the most work; the level between differs little end to end.
TRAIN_LEVELS: Final = ("none", "heavy")
_FINALS: Final = 2
_STARTS: Final = 3

# A quick run takes about a minute: the loaders that start fast, and Ray Data once.
QUICK_ROWS: Final = 20_000
QUICK_LEVELS: Final = ("heavy",)
QUICK_PEERS: Final = (peers.LOADER, peers.DATALOADER, "threads", "ray-stock", "duckdb")
QUICK_TRAINED: Final = (peers.SUBJECT, peers.ROOFLINE)
QUICK_ABLATIONS: Final = (
    *(ALL_ON, "projection off", "kernels off"),
    *(NESTED_ALL_ON, "nested, deduplication off"),
)

STARTS, TRAINING, ABLATION = "starts", "training", "ablation"
PARTS: Final = (STARTS, TRAINING, ABLATION)


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; exit with a message if it is invalid."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dataloading",
        description="Measure who brings the same rows to the same model fastest.",
    )
    add = parser.add_argument
    add("--rows", type=_positive, metavar="N", help=f"input rows ({DEFAULT_ROWS:,})")
    tuning = f"rows on which peers are tuned ({TUNING_ROWS:,})"
    add("--tuning-rows", type=_positive, metavar="N", default=TUNING_ROWS, help=tuning)
    add("--rounds", type=_positive, metavar="N", help=f"rounds that count ({DEFAULT_ROUNDS})")
    keeps = "rounds count whatever their calibration: for a machine that is never calm"
    add("--keep-all-rounds", action="store_true", help=keeps)
    some = {"metavar": "A,B,…"}
    add("--peers", type=_split, help="of " + ", ".join(peers.COMPARED[1:]) + " (all)", **some)
    add("--work", type=_among(LEVELS), help=f"of {', '.join(LEVELS)} (all)", **some)
    add("--layouts", type=_among(LAYOUTS), help="of the files: flat, nested (all)", **some)
    add("--forms", type=_among(FORMS), help="of the batches (all)", **some)
    add("--without", type=_among(PARTS), default=(), help=f"of {', '.join(PARTS)}", **some)
    keeps = "keep the results that are there but for the cells that are measured now"
    add("--add", action="store_true", help=keeps)
    add("--output", type=Path, default=Path("benchmarks/results"), metavar="DIR")
    add("--data", type=Path, default=Path("build"), metavar="DIR", help="folder for sample data")
    add("--quick", action="store_true", help="tiny, once: do the loaders agree?")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {text!r}")
    return value


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _among(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of lists of these names, which are returned in their order here."""

    def parse(text: str) -> tuple[str, ...]:
        given = _split(text)
        wrong = [name for name in given if name not in known]
        if wrong or not given:
            got = repr(wrong[0]) if wrong else "none"
            raise argparse.ArgumentTypeError(f"must be among {', '.join(known)}, got {got}")
        return tuple(name for name in known if name in given)

    return parse


def build_settings(options: argparse.Namespace) -> Settings:
    """Build the settings from options, and make missing tables.

    Raises:
        BenchmarkError: a peer is unknown, or Lastmile brings none of the cells.
    """
    quick = options.quick
    rows = options.rows or (QUICK_ROWS if quick else DEFAULT_ROWS)
    loaders = peers.choose_installed(options.peers or (QUICK_PEERS if quick else None))
    layouts, forms = options.layouts or LAYOUTS, options.forms or FORMS
    levels = options.work or (QUICK_LEVELS if quick else LEVELS)
    brought = {c.layout for c in peers.list_contenders(loaders, layouts, forms)}
    trained = QUICK_TRAINED if quick else peers.TRAINED
    measures_starts = STARTS not in options.without
    return Settings(
        table=make_table(options.data, rows, brought),
        tuning_table=make_table(options.data, min(rows, options.tuning_rows), brought),
        small=make_table(options.data, min(rows, SMALL_ROWS)),
        loaders=loaders,
        layouts=layouts,
        forms=forms,
        levels=levels,
        rounds=options.rounds or (1 if quick else DEFAULT_ROUNDS),
        keeps_all_rounds=options.keep_all_rounds or quick,
        finals=0 if quick else _FINALS,
        starters=((peers.SUBJECT,) if quick else loaders) if measures_starts else (),
        starts=1 if quick else _STARTS,
        fresh_proofs=not quick,
        trained=tuple(name for name in trained if name in (*loaders, peers.ROOFLINE)),
        train_levels=_train_levels(levels, options.without),
        ablations=_ablations(levels, layouts, options.without, quick=quick),
        quick=quick,
    )


def _train_levels(levels: Sequence[str], without: Sequence[str]) -> tuple[str, ...]:
    if TRAINING in without:
        return ()
    return tuple(level for level in levels if level in TRAIN_LEVELS)


def _ablations(
    levels: Sequence[str], layouts: Sequence[str], without: Sequence[str], *, quick: bool
) -> tuple[str, ...]:
    """Return the ablations; only heavy work has enough optimisations to leave out."""
    if ABLATION in without or "heavy" not in levels:
        return ()
    return tuple(
        name
        for layout in layouts
        for name in ABLATIONS[layout]
        if not quick or name in QUICK_ABLATIONS
    )
