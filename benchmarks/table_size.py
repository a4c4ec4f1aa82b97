"""Does a larger table start later or need more memory? `python -m benchmarks.table_size`.

The quickstart is trained for a fixed number of steps on tables of 1, 8 and 64 times the same files
(hard links, so that disks need not grow), in turn, and another goes first each time. From each run
come the seconds to its first batch, as its summary has them, and the most memory that its processes
had together, each page counted once (Pss of proc(5), read twice a second).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.dataloading.reporting.results import spread
from benchmarks.dataloading.workloads import sample_options
from benchmarks.harness.machine import tree_pss_bytes
from benchmarks.records import Beginning
from benchmarks.turns import in_turn
from pipeline_runtime.report import load_summary
from pipeline_runtime.sample_data import write_sample_data

NAME = "table-size"
ROOT = Path(__file__).parents[1]
MANIFEST = ROOT / "deploy" / "samples" / "quickstart.yaml"
DEFAULT_ROWS = 250_000
FACTORS = (1, 8, 64)
DEFAULT_REPEATS = 6  # each table goes first twice
# So many steps of 4,096 rows read each table's first half million rows, whatever its size.
STEPS = 40
POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run."""

    first_batch_seconds: float
    peak_bytes: int


def main() -> int:
    """Measure, print a table, and write it as JSON."""
    options = _parse()
    beginning = Beginning()
    runs: dict[int, list[Measured]] = {factor: [] for factor in options.factors}
    tables = {factor: make_table(options.data, options.rows, factor) for factor in options.factors}
    for turn in range(options.repeats):
        for factor in in_turn(options.factors, turn):
            runs[factor].append(measure(tables[factor], factor, options.steps))
    document = {
        "version": 1,
        "benchmark": NAME,
        **beginning.describe("table_size", sys.argv[1:]),
        "settings": {"rows": options.rows, "repeats": options.repeats, "steps": options.steps},
        "tables": [_summarise(options.rows, factor, runs[factor], runs) for factor in runs],
    }
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / f"{NAME}.json").write_text(json.dumps(document, indent=1) + "\n")
    print("\n".join(_format(document)))
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table_size", description=__doc__)
    parser.add_argument("--rows", type=int, default=DEFAULT_ROWS, help="of the smallest table")
    parser.add_argument("--factors", type=int, nargs="+", default=FACTORS)
    parser.add_argument("--repeats", type=int, default=DEFAULT_REPEATS)
    parser.add_argument("--steps", type=int, default=STEPS, help="of each run")
    parser.add_argument("--data", type=Path, default=Path("build"), help="folder of the tables")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    return parser.parse_args()


def make_table(data: Path, rows: int, factor: int) -> Path:
    """A storage root with the sample data, its impressions `factor` times."""
    base = data / f"benchmark-{rows}"
    write_sample_data(base, sample_options(rows))
    root = data / f"{NAME}-{rows}-{factor}"
    for path in sorted(base.rglob("*.parquet")):
        copies = factor if "impressions" in path.parts else 1
        for copy in range(copies):
            link = root / "data" / path.relative_to(base).with_name(f"{copy:03d}-{path.name}")
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            os.link(path, link)
    return root


def measure(root: Path, factor: int, steps: int) -> Measured:
    """Run once. Raises CalledProcessError, its output shown, if the run fails."""
    with tempfile.TemporaryDirectory() as folder:
        lastmile = Path(sys.executable).with_name("lastmile")
        command = [str(lastmile), "run", "-f", str(MANIFEST), "--metrics-port", "0"]
        command += ["--storage-root", str(root), "--output", folder]
        command += ["--set", f"artifacts.uri={folder}", "--set", f"training.maxSteps={steps}"]
        command += ["--set", f"training.epochs={max(1, 8 // factor)}"]
        log = Path(folder, "log")
        with log.open("w") as stream:
            process = subprocess.Popen(command, stdout=stream, stderr=stream)
            peak = max(_watch(process))
        if process.returncode:
            print(log.read_text(), file=sys.stderr)
            raise subprocess.CalledProcessError(process.returncode, command)
        seconds = load_summary(Path(folder)).throughput.seconds_to_first_batch
        assert seconds is not None
        return Measured(first_batch_seconds=seconds, peak_bytes=peak)


def _watch(process: subprocess.Popen[bytes]) -> Iterator[int]:
    """Memory of the process and all below it, until it ends."""
    yield 0
    while process.poll() is None:
        yield tree_pss_bytes(process.pid)
        time.sleep(POLL_SECONDS)


def _summarise(
    rows: int, factor: int, runs: Sequence[Measured], all_runs: dict[int, list[Measured]]
) -> dict[str, Any]:
    first = next(iter(all_runs.values()))
    pairs = list(zip(runs, first, strict=True))
    return {
        "rows": rows * factor,
        "firstBatchSeconds": spread(run.first_batch_seconds for run in runs),
        "firstBatchRatio": spread(a.first_batch_seconds / b.first_batch_seconds for a, b in pairs),
        "peakGiB": spread(run.peak_bytes / 2**30 for run in runs),
        "peakRatio": spread(a.peak_bytes / b.peak_bytes for a, b in pairs),
    }


def _format(document: dict[str, Any]) -> Iterator[str]:
    yield "| rows | first batch, s | to the smallest | peak memory, GiB | to the smallest |"
    yield "|---|---|---|---|---|"
    for table in document["tables"]:
        cells = [
            "{median:.2f} [{min:.2f}–{max:.2f}]".format(**table[name])
            for name in ("firstBatchSeconds", "firstBatchRatio", "peakGiB", "peakRatio")
        ]
        yield f"| {table['rows']:,} | {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
