"""The benchmark's command line: options to settings, tables, the run, and the files it writes."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.dataloading import peers
from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.dataloading.figure import draw
from benchmarks.dataloading.hosts import all_hosts
from benchmarks.dataloading.machine import (
    describe_commit,
    describe_machine,
    describe_versions,
    load_average,
)
from benchmarks.dataloading.report import build_markdown
from benchmarks.dataloading.results import Document, build_results
from benchmarks.dataloading.schedule import run_schedule
from benchmarks.dataloading.settings import ABLATIONS, Settings, Table
from benchmarks.dataloading.workloads import FORMS, LAYOUTS, LEVELS, sample_options
from pipeline_runtime.sample_data import write_sample_data

NAME = "dataloading"
DEFAULT_ROWS = 10_000_000
DEFAULT_ROUNDS = 7
# Settings are chosen on this many rows: enough for a steady state of seconds.
TUNING_ROWS = 1_000_000
SAMPLE_ROWS = 1_000_000  # of the sample data that `make run` makes too
# Training takes two row groups' worth: a step costs far more than the rows it is made of, so more
# of them would tell less of the loaders.
SMALL_ROWS = 32_768
# The least and the most work; between them end to end is hardly told from noise.
TRAIN_LEVELS = ("none", "heavy")
_FINALS = 2
_STARTS = 3
QUICK_ROWS = 20_000
QUICK_ABLATIONS = ("all on", "projection off", "fusion off")
QUICK_LEVELS = ("heavy",)  # of starts and of training
QUICK_STARTERS = (peers.SUBJECT,)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if loaders disagree or fail, and then nothing is written."""
    options = _parse(arguments)
    command = "python -m benchmarks.dataloading " + " ".join(arguments or sys.argv[1:])
    try:
        results = _run(_build_settings(options), command.strip())
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(write_results(results, options.output))
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dataloading", description=__doc__)
    add = parser.add_argument
    add("--rows", type=_positive, help=f"input rows ({DEFAULT_ROWS:,})")
    add("--rounds", type=_positive, help=f"rounds that count ({DEFAULT_ROUNDS})")
    add("--peers", nargs="+", metavar="PEER", help="of " + ", ".join(peers.COMPARED[1:]))
    add("--work", nargs="+", choices=LEVELS, default=LEVELS, help="levels of work (all)")
    add("--layouts", nargs="+", choices=LAYOUTS, default=LAYOUTS, help="of the files (all)")
    add("--forms", nargs="+", choices=FORMS, default=FORMS, help="of the batches (all)")
    add("--output", type=Path, default=Path("benchmarks/results"))
    add("--data", type=Path, default=Path("build"), help="folder for sample data")
    add("--quick", action="store_true", help="tiny, once: do the loaders agree?")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {text!r}")
    return value


def _build_settings(options: argparse.Namespace) -> Settings:
    quick = options.quick
    rows = options.rows or (QUICK_ROWS if quick else DEFAULT_ROWS)
    loaders = peers.choose_installed(options.peers)
    levels = tuple(level for level in LEVELS if level in options.work)
    _check_cells(options.layouts, options.forms)
    return Settings(
        table=_make_table(options.data, rows),
        tuning_table=_make_table(options.data, min(rows, TUNING_ROWS)),
        small=_make_table(options.data, min(rows, SMALL_ROWS)),
        loaders=loaders,
        layouts=tuple(options.layouts),
        forms=tuple(options.forms),
        levels=levels,
        rounds=options.rounds or (1 if quick else DEFAULT_ROUNDS),
        finals=0 if quick else _FINALS,
        starters=QUICK_STARTERS if quick else loaders,
        starts=1 if quick else _STARTS,
        fresh_proofs=not quick,
        start_levels=_among(levels, QUICK_LEVELS if quick else LEVELS),
        train_levels=_among(levels, QUICK_LEVELS if quick else TRAIN_LEVELS),
        ablations=QUICK_ABLATIONS if quick else ABLATIONS,
        quick=quick,
    )


def _among(levels: Sequence[str], wanted: Sequence[str]) -> tuple[str, ...]:
    return tuple(level for level in levels if level in wanted)


def _check_cells(layouts: Sequence[str], forms: Sequence[str]) -> None:
    """Raise BenchmarkError if Lastmile brings none of these cells."""
    if not peers.list_contenders([peers.SUBJECT], layouts, forms):
        cells = "; ".join(", ".join(cell) for cell in peers.LOADERS[peers.SUBJECT].cells)
        raise BenchmarkError(
            f"--layouts, --forms: must have a cell that Lastmile brings ({cells}), got "
            f"{' '.join(layouts)} and {' '.join(forms)}"
        )


def _make_table(data: Path, rows: int) -> Table:
    """Sample data with so many rows: `make run`'s own if it has them, else made beside it."""
    folder = data / "data" if rows == SAMPLE_ROWS else data / f"benchmark-{rows}"
    write_sample_data(folder, sample_options(rows))
    return Table(roots={"flat": str(folder)}, rows=rows)


def _run(settings: Settings, command: str) -> Document:
    started, load = time.monotonic(), load_average()
    with all_hosts() as hosts:
        measured = run_schedule(settings, hosts)
        ray_seconds = hosts.ray_start_seconds
    environment: dict[str, Any] = {
        "command": command,
        "commit": describe_commit(),
        "finishedAt": datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "minutes": round((time.monotonic() - started) / 60, 1),
        "machine": describe_machine(),
        "versions": describe_versions() | peers.describe_versions(settings.loaders),
        "loadAverage": [load, load_average()],
        "rayStartSeconds": round(ray_seconds, 2),
    }
    return build_results(measured, environment)


def write_results(results: Document, folder: Path) -> str:
    """Write the JSON, the table and the picture; the table's text."""
    folder.mkdir(parents=True, exist_ok=True)
    text = build_markdown(results)
    (folder / f"{NAME}.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    (folder / f"{NAME}.md").write_text(text)
    draw(results, folder / f"{NAME}.svg")
    return text
