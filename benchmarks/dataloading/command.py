"""The benchmark's command line: runs it and writes its files. `options` parses the arguments."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import records
from benchmarks.dataloading import peers
from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.dataloading.measuring.hosts import all_hosts
from benchmarks.dataloading.options import build_settings, parse_options
from benchmarks.dataloading.reporting.figure import draw
from benchmarks.dataloading.reporting.merging import merge_results
from benchmarks.dataloading.reporting.report import build_markdown
from benchmarks.dataloading.reporting.results import RESULTS_VERSION, Document, build_results
from benchmarks.dataloading.schedule import run_schedule
from benchmarks.dataloading.settings import Settings

NAME = "dataloading"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return 1, and write nothing, if loaders disagree or fail."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse_options(arguments)
    try:
        before = _read_results(options.output) if options.add else None
        settings = build_settings(options)
        for name, reason in peers.describe_absent(settings.loaders).items():
            print(f"skipped: {name}: {reason}", file=sys.stderr)
        results = _run(settings, arguments)
    except BenchmarkError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        results = results if before is None else merge_results(before, results, peers.SUBJECT)
    except BenchmarkError as error:
        alone = options.output / "alone"
        write_results(results, alone)
        print(f"error: {error}; this run's results are in {alone}", file=sys.stderr)
        return 1
    print(write_results(results, options.output))
    return 0


def _read_results(folder: Path) -> Document | None:
    """Return the existing results, or None. Raises BenchmarkError for those of an older version."""
    path = folder / f"{NAME}.json"
    if not path.exists():
        return None
    found: Document = json.loads(path.read_text())
    if found.get("version") != RESULTS_VERSION:
        raise BenchmarkError(
            f"--add: {path} must be of version {RESULTS_VERSION}, got {found.get('version')!r}; "
            "measure without --add"
        )
    return found


def _run(settings: Settings, arguments: Sequence[str]) -> Document:
    beginning = records.Beginning()
    with all_hosts() as hosts:
        measured = run_schedule(settings, hosts)
        ray_seconds = hosts.ray_start_seconds
    environment = beginning.describe(NAME, arguments)
    environment["versions"] |= peers.describe_versions(settings.loaders)
    environment["rayStartSeconds"] = None if ray_seconds is None else round(ray_seconds, 2)
    return build_results(measured, environment)


def write_results(results: Document, folder: Path) -> str:
    """Write the JSON, the table and the picture. Return the text of the table."""
    return records.write_results(NAME, results, folder, build_markdown=build_markdown, draw=draw)
