"""Measure if a larger table starts later or needs more memory: `python -m benchmarks.table_size`.

The quickstart is trained for a fixed number of steps on tables of 1, 8 and 64 times the same files
(hard links, so that disks need not grow).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.dataloading.workloads import sample_options
from benchmarks.harness.cells import Cell
from benchmarks.harness.children import ROOT
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.machine import tree_pss_bytes
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric
from benchmarks.harness.rounds import Rounds, Sample, measure
from pipeline_runtime.report import load_summary
from pipeline_runtime.sample_data import write_sample_data

MANIFEST: Final = ROOT / "deploy" / "samples" / "quickstart.yaml"
# So many steps of 4,096 rows read each table's first half million rows, whatever its size.
STEPS: Final = 40
FACTORS: Final = (1, 8, 64)
POLL_SECONDS: Final = 0.5
BENCHMARK = Benchmark(
    name="table-size",
    module="table_size",
    title="Size of the table",
    text="The first steps of the quickstart. Memory is the maximum of all processes of a run "
    "together, each page counted once.",
    metrics=(
        Metric(name="firstBatchSeconds", label="first batch, s"),
        Metric(name="peakBytes", label="peak memory, GiB", scale=2**-30),
    ),
    arm_label="rows",
)


def compare(options: argparse.Namespace) -> Iterator[Cell]:
    """Measure all sizes."""
    arms = {
        f"{options.rows * factor:,}": partial(
            run_once, make_table(options.data, options.rows, factor), factor
        )
        for factor in FACTORS
    }
    yield measure("quickstart", arms, Rounds(count=options.rounds, warmups=0))


def make_table(data: Path, rows: int, factor: int) -> Path:
    """Return a storage root with the sample data, whose impressions are there `factor` times."""
    base = data / f"benchmark-{rows}"
    write_sample_data(base, sample_options(rows))
    root = data / f"table-size-{rows}-{factor}"
    for path in sorted(base.rglob("*.parquet")):
        copies = factor if "impressions" in path.parts else 1
        for copy in range(copies):
            link = root / "data" / path.relative_to(base).with_name(f"{copy:03d}-{path.name}")
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            os.link(path, link)
    return root


def run_once(root: Path, factor: int) -> Sample:
    """Run the command. Raises BenchmarkError with its output if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        lastmile = Path(sys.executable).with_name("lastmile")
        command = [str(lastmile), "run", "-f", str(MANIFEST), "--metrics-port", "0"]
        command += ["--storage-root", str(root), "--output", folder]
        command += ["--set", f"artifacts.uri={folder}", "--set", f"training.maxSteps={STEPS}"]
        command += ["--set", f"training.epochs={max(1, 8 // factor)}"]
        log, peak = Path(folder, "log"), 0
        with log.open("w") as stream:
            process = subprocess.Popen(command, stdout=stream, stderr=stream)
            while process.poll() is None:
                peak = max(peak, tree_pss_bytes(process.pid))
                time.sleep(POLL_SECONDS)
        if process.returncode:
            raise BenchmarkError(f"{' '.join(command)} failed:\n{log.read_text()}")
        seconds = load_summary(Path(folder)).throughput.seconds_to_first_batch
        assert seconds is not None
        return Sample({"firstBatchSeconds": seconds, "peakBytes": peak})


if __name__ == "__main__":
    parser = build_parser("table_size", __doc__, rows=250_000, rounds=6)
    sys.exit(run(BENCHMARK, parser, compare))
