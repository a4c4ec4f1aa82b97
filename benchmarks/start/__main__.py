"""`python -m benchmarks.start --old COMMIT`: fresh processes from Enter to their end.

One experiment is run by this checkout, by another commit, and by a DataLoader script with the same
model on the same rows.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.dataloading.workloads import sample_options
from benchmarks.harness.cells import Cell
from benchmarks.harness.children import ROOT, checkout, environment_of
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric, Target
from benchmarks.harness.rounds import Arm, Rounds, Sample, measure
from benchmarks.start import training
from pipeline_runtime.sample_data import write_sample_data

NEW, OLD, SCRIPT = "lastmile", "old commit", "DataLoader script"
# Seconds; those of `report` and `end` begin when the last step and its checkpoint are done. A
# script has neither plan nor report.
MOMENTS: Final = {
    "plan": "plan shown, s",
    "firstStep": "first step, s",
    "report": "report after the last step, s",
    "end": "end after the last step, s",
    "whole": "whole command, s",
}
_PROGRAM: Final = "from pipeline_runtime.cli import main; main()"
_OUTPUT: Final = "output"
_TIMEOUT_SECONDS: Final = 300.0  # a run of the old commit takes 40 s on two cores


def _target(text: str, metric: str, at_most: float, *, of_ratio: bool = False) -> Target:
    return Target(
        text=f"{text}, at most {at_most:g}",
        metric=metric,
        arms=(NEW,),
        at_most=at_most,
        of_ratio=of_ratio,
        by_bound=False,
    )


BENCHMARK = Benchmark(
    name="start",
    module="start",
    title="From Enter to the first step and the report",
    text="Each arm in a fresh process; ratios are to the script.",
    metrics=tuple(
        Metric(
            name=name, label=label, is_compared=name == "firstStep", is_drawn=name == "firstStep"
        )
        for name, label in MOMENTS.items()
    ),
    targets=(
        _target("plan, s", "plan", 2.0),
        _target("first step, ratio to the script", "firstStep", 1.4, of_ratio=True),
        _target("report, s", "report", 2.0),
        _target("end, s", "end", 2.0),
    ),
    cell_label="table",
)


def compare(options: argparse.Namespace) -> Iterator[Cell]:
    """Measure all arms."""
    root: Path = options.data / f"start-{options.rows}"
    write_sample_data(root / "data", sample_options(options.rows))
    with ExitStack() as stack:
        arms: dict[str, Arm] = {
            SCRIPT: partial(run_script, root),
            NEW: partial(run_lastmile, ROOT, root),
        }
        if options.old:
            old = stack.enter_context(checkout(options.old))
            arms[OLD] = partial(run_lastmile, old, root)
        # The warm-up compiles kernels and fills the page cache.
        yield measure(f"{options.rows:,} rows", arms, Rounds(count=options.rounds))


def run_lastmile(folder: Path, root: Path) -> Sample:
    """Run the experiment by the code of a checkout, on the table below a storage root."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        shutil.copy(training.__file__, place / "start_training.py")
        (place / "manifest.yaml").write_text(json.dumps(_manifest(place)))  # JSON is YAML
        arguments = ["run", "-f", "manifest.yaml", "--metrics-port", "0"]
        arguments += ["--storage-root", str(root.absolute()), "--output", str(place / _OUTPUT)]
        return _run([sys.executable, "-c", _PROGRAM, *arguments], place, folder)


def run_script(root: Path) -> Sample:
    """Run the DataLoader script on the same table."""
    with tempfile.TemporaryDirectory() as name:
        table = (root / "data" / "impressions").absolute()
        return _run([sys.executable, training.__file__, str(table), name], Path(name), ROOT)


def _manifest(place: Path) -> dict[str, object]:
    """Return a manifest that every commit accepts."""
    return {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": "start"},
        "spec": {
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
        },
    }


def _run(command: Sequence[str], place: Path, folder: Path) -> Sample:
    """Run a command to its end. Raises BenchmarkError with its output if it fails."""
    values, lines = {}, []
    started = time.time()
    with subprocess.Popen(
        command,
        cwd=place,
        env=environment_of(folder),
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if line.startswith("start: run "):
                values.setdefault("plan", time.time() - started)
        process.wait(_TIMEOUT_SECONDS)
    ended = time.time()
    if process.returncode:
        raise BenchmarkError(f"{' '.join(command)} failed:\n{''.join(lines)}")
    times = [float(text) for text in (place / training.STEPS_FILE).read_text().split()]
    assert len(times) == training.STEPS + 1, times
    report = place / _OUTPUT / "report.html"
    if report.exists():
        values["report"] = report.stat().st_mtime - times[-1]
    values |= {"firstStep": times[0] - started, "end": ended - times[-1], "whole": ended - started}
    return Sample(values)


if __name__ == "__main__":
    parser = build_parser("start", __doc__, rows=250_000, rounds=5)
    parser.add_argument("--old", help="a commit to compare with, such as main~20")
    sys.exit(run(BENCHMARK, parser, compare, fails_if_missed=True))
