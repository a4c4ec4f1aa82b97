"""`python -m benchmarks.start`: fresh processes from Enter to their end.

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
from collections.abc import Callable, Iterator, Sequence
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
# Seconds; those of `report` and `end` begin when the last step and its checkpoint are done. A
# script has neither plan nor report.
MOMENTS: Final = {
    "plan": "plan shown, s",
    "firstStep": "first step, s",
    "report": "report after the last step, s",
    "end": "end after the last step, s",
}
_PROGRAM: Final = "from pipeline_runtime.cli import main; main()"
_OUTPUT: Final = "output"


def _target(text: str, metric: str, limit: float) -> Target:
    return Target(
        text=f"{text}, at most {limit:g}",
        metric=metric,
        arms=(NEW,),
        at_most=limit,
        of_ratio=metric == "firstStep",
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
        _target("first step, ratio to the script", "firstStep", 1.4),
        _target("report, s", "report", 2.0),
        _target("end, s", "end", 2.0),
    ),
    cell_label="table",
)


def compare(options: argparse.Namespace) -> Iterator[Cell]:
    """Measure both arms."""
    root: Path = options.data / f"start-{options.rows}"
    write_sample_data(root / "data", sample_options(options.rows))
    arms = {SCRIPT: partial(_run, _script, root), NEW: partial(_run, _lastmile, root)}
    # The warm-up compiles kernels and fills the page cache.
    yield measure(f"{options.rows:,} rows", arms, Rounds(count=options.rounds))


def _script(root: Path, place: Path) -> list[str]:
    """Return the arguments of Python that run the DataLoader script, which writes to `place`."""
    return [training.__file__, str((root / "data" / "impressions").absolute()), str(place)]


def _lastmile(root: Path, place: Path) -> list[str]:
    """Write a manifest to `place`, and return the arguments of Python that run it."""
    shutil.copy(training.__file__, place / "start_training.py")
    manifest = {
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
    (place / "manifest.yaml").write_text(json.dumps(manifest))  # JSON is YAML
    arguments = ["-c", _PROGRAM, "run", "-f", "manifest.yaml", "--metrics-port", "0"]
    return [*arguments, "--storage-root", str(root.absolute()), "--output", str(place / _OUTPUT)]


def _run(prepare: Callable[[Path, Path], Sequence[str]], root: Path) -> Sample:
    """Run a command to its end. Raises BenchmarkError with its output if it fails."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        command = [sys.executable, *prepare(root, place)]
        values: dict[str, float] = {}
        lines = []
        started = time.time()
        with subprocess.Popen(
            command,
            cwd=place,
            env=environment_of(ROOT),
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                lines.append(line)
                if line.startswith("start: run "):
                    values.setdefault("plan", time.time() - started)
        ended = time.time()
        if process.returncode:
            raise BenchmarkError(f"{' '.join(command)} failed:\n{''.join(lines)}")
        times = [float(text) for text in (place / training.STEPS_FILE).read_text().split()]
        assert len(times) == training.STEPS + 1, times
        report = place / _OUTPUT / "report.html"
        if report.exists():
            values["report"] = report.stat().st_mtime - times[-1]
        return Sample(values | {"firstStep": times[0] - started, "end": ended - times[-1]})


if __name__ == "__main__":
    parser = build_parser("start", __doc__, rows=250_000, rounds=5)
    sys.exit(run(BENCHMARK, parser, compare, fails_if_missed=True))
