"""`python -m benchmarks.start`: fresh processes from Enter to the first step and the report.

One experiment is run by `lastmile run`, and by a DataLoader script with the same model on the same
rows.
"""

from __future__ import annotations

import argparse
import json
import shutil
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
from benchmarks.harness.children import ROOT, environment_of
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric, Target
from benchmarks.harness.rounds import Rounds, Sample, measure
from benchmarks.start import training
from pipeline_runtime.sample_data import write_sample_data

NEW, SCRIPT = "lastmile", "DataLoader script"
# Seconds. The report's begin when the last step and its checkpoint are done.
PLAN, FIRST_STEP, REPORT = "plan", "firstStep", "report"
_RUN: Final = ("-c", "from pipeline_runtime.cli import main; main()", "run", "-f", "manifest.yaml")


def _target(text: str, metric: str, limit: float, *, of_ratio: bool = False) -> Target:
    return Target(
        text=f"{text}, at most {limit:g}",
        metric=metric,
        arms=(NEW,),
        at_most=limit,
        of_ratio=of_ratio,
        by_bound=False,
    )


BENCHMARK = Benchmark(
    name="start",
    module="start",
    title="From Enter to the first step and the report",
    text="Each arm in a fresh process; ratios are to the script.",
    metrics=(
        Metric(name=PLAN, label="plan shown, s", is_compared=False, is_drawn=False),
        Metric(name=FIRST_STEP, label="first step, s"),
        Metric(
            name=REPORT, label="report after the last step, s", is_compared=False, is_drawn=False
        ),
    ),
    targets=(
        _target("plan, s", PLAN, 2.0),
        _target("first step, ratio to the script", FIRST_STEP, 1.4, of_ratio=True),
        _target("report, s", REPORT, 2.0),
    ),
    cell_label="table",
)


def compare(options: argparse.Namespace) -> Iterator[Cell]:
    """Measure both arms."""
    root = (options.data / f"start-{options.rows}").absolute()
    write_sample_data(root / "data", sample_options(options.rows))
    arms = {arm: partial(run_fresh, arm, root) for arm in (SCRIPT, NEW)}
    # The warm-up compiles kernels and fills the page cache.
    yield measure(f"{options.rows:,} rows", arms, Rounds(count=options.rounds))


def build_manifest(place: Path) -> str:
    """Return the experiment that writes into a folder."""
    spec = {
        "dataset": {"parquet": {"uri": "data/impressions/"}},
        "pipeline": [{"filter": {"where": f"position < {training.MAX_POSITION}"}}],
        "training": {
            "entrypoint": "start_training:loop",
            "batchSize": training.BATCH_ROWS,
            "maxSteps": training.STEPS,
            "columns": list(training.COLUMNS),
            "labelColumn": training.LABEL,
            "config": {"folder": str(place)},
        },
        "trainers": {"gpusPerReplica": 0},
        "artifacts": {"uri": str(place / "artifacts")},
    }
    head = {"apiVersion": "experiments.lastmile.dev/v1alpha1", "kind": "DatasetExperiment"}
    return json.dumps({**head, "metadata": {"name": "start"}, "spec": spec})  # JSON is YAML


def run_fresh(arm: str, root: Path) -> Sample:
    """Run a command to its end."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        shutil.copy(training.__file__, place / "start_training.py")
        (place / "manifest.yaml").write_text(build_manifest(place))
        arguments = ["start_training.py", str(root / "data" / "impressions"), name]
        if arm == NEW:
            arguments = [*_RUN, "--metrics-port", "0", "--storage-root", str(root)]
            arguments += ["--output", str(place / "output")]
        values: dict[str, float] = {}
        lines = []
        started = time.time()
        with subprocess.Popen(
            [sys.executable, *arguments],
            cwd=place,
            env=environment_of(ROOT),
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as process:
            for line in process.stderr or ():
                lines.append(line)
                if line.startswith("start: run "):
                    values.setdefault(PLAN, time.time() - started)
        if process.returncode:
            raise BenchmarkError(f"{arm} failed:\n{''.join(lines)}")
        times = [float(text) for text in (place / training.STEPS_FILE).read_text().split()]
        values[FIRST_STEP] = times[0] - started
        if arm == NEW:
            report = place / "output" / "report.html"
            values[REPORT] = report.stat().st_mtime - times[-1]
        return Sample(values)


if __name__ == "__main__":
    parser = build_parser("start", __doc__, rows=250_000, rounds=5)
    sys.exit(run(BENCHMARK, parser, compare, fails_if_missed=True))
