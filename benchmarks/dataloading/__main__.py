"""`python -m benchmarks.dataloading`: measure, compare, write the results; see ../README.md."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.dataloading.figure import draw
from benchmarks.dataloading.hosts import both_hosts
from benchmarks.dataloading.machine import (
    describe_commit,
    describe_machine,
    describe_versions,
    load_average,
)
from benchmarks.dataloading.report import build_markdown
from benchmarks.dataloading.results import Document, build_results
from benchmarks.dataloading.schedule import ABLATIONS, Settings, Table, run_schedule
from benchmarks.dataloading.workloads import sample_options
from pipeline_runtime.sample_data import write_sample_data

NAME = "dataloading"
DEFAULT_ROWS = 1_000_000  # the sample data that `make run` makes too
# Training and the proof take two row groups' worth: a step costs far more than the rows it is made
# of, so more of them would tell less of the loaders.
SMALL_ROWS = 32_768
# The least and the most work; between them end to end is hardly told from noise.
TRAIN_LEVELS = ("none", "heavy")
QUICK_TRAIN_LEVELS = ("heavy",)
QUICK_ROWS = 20_000
DEFAULT_REPEATS = 5
WORKER_COUNTS = (0, 1, 2, 3, 4)
QUICK_WORKER_COUNTS = (0, 1)
QUICK_ABLATIONS = ("all on", "projection off", "fusion off")
_TUNING_REPEATS = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if loaders disagree or fail, and then nothing is written."""
    options = _parse(arguments)
    settings = _build_settings(options)
    command = "python -m benchmarks.dataloading " + " ".join(arguments or sys.argv[1:])
    try:
        results = _run(settings, command.strip())
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(write_results(results, options.output))
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dataloading", description=__doc__)
    parser.add_argument("--rows", type=int, default=None, help="input rows (1,000,000)")
    parser.add_argument("--repeats", type=int, default=None, help="rounds (5)")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--data", type=Path, default=Path("build"), help="folder for sample data")
    parser.add_argument("--quick", action="store_true", help="tiny, once: do the loaders agree?")
    return parser.parse_args(arguments)


def _build_settings(options: argparse.Namespace) -> Settings:
    rows = options.rows or (QUICK_ROWS if options.quick else DEFAULT_ROWS)
    small = min(rows, SMALL_ROWS)
    return Settings(
        table=_make_table(options.data, rows),
        small=_make_table(options.data, small),
        repeats=options.repeats or (1 if options.quick else DEFAULT_REPEATS),
        tuning_repeats=1 if options.quick else _TUNING_REPEATS,
        worker_counts=QUICK_WORKER_COUNTS if options.quick else WORKER_COUNTS,
        train_levels=QUICK_TRAIN_LEVELS if options.quick else TRAIN_LEVELS,
        ablations=QUICK_ABLATIONS if options.quick else ABLATIONS,
        quick=options.quick,
    )


def _make_table(data: Path, rows: int) -> Table:
    """Sample data with so many rows: `make run`'s own if it has them, else made beside it."""
    folder = data / "data" if rows == DEFAULT_ROWS else data / f"benchmark-{rows}"
    write_sample_data(folder, sample_options(rows))
    return Table(root=str(folder), rows=rows)


def _run(settings: Settings, command: str) -> Document:
    started, load = time.monotonic(), load_average()
    with both_hosts() as hosts:
        measured = run_schedule(settings, hosts)
        ray_seconds = hosts["ray"].start_seconds
    environment: dict[str, Any] = {
        "command": command,
        "commit": describe_commit(),
        "finishedAt": datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "minutes": round((time.monotonic() - started) / 60, 1),
        "machine": describe_machine(),
        "versions": describe_versions(),
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


if __name__ == "__main__":
    sys.exit(main())
