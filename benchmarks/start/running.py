"""One process, from its start to its end: when it showed a plan, took steps and had its report."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.checkouts import ROOT
from benchmarks.start import training

_PROGRAM = "from pipeline_runtime.cli import main; main()"
_OUTPUT = "output"
# A run of the old commit takes 40 s on two cores.
_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds of one run.

    Attributes:
        plan: from the start to the plan, which a script does not have.
        first_step: from the start.
        report: from the last step and its checkpoint to the report, which a script does not have.
        end: from the last step and its checkpoint to the end of the process.
        whole: from the start to the end.
    """

    plan: float | None
    first_step: float
    report: float | None
    end: float
    whole: float


def run_lastmile(checkout: Path, root: Path) -> Measured:
    """Run the experiment by the code of a checkout, on the table below a storage root."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(training.__file__, folder / "start_training.py")
        (folder / "manifest.yaml").write_text(json.dumps(_manifest(folder)))  # JSON is YAML
        arguments = ["run", "-f", "manifest.yaml", "--metrics-port", "0"]
        arguments += ["--storage-root", str(root.absolute()), "--output", str(folder / _OUTPUT)]
        path = os.pathsep.join([str(checkout), str(checkout / "operator")])
        return _run([sys.executable, "-c", _PROGRAM, *arguments], folder, path)


def run_script(root: Path) -> Measured:
    """Run the DataLoader script on the same table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = (root / "data" / "impressions").absolute()
        return _run([sys.executable, training.__file__, str(table), str(folder)], folder, str(ROOT))


def _manifest(folder: Path) -> dict[str, object]:
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
                "config": {"folder": str(folder)},
            },
            "trainers": {"gpusPerReplica": 0},
            "artifacts": {"uri": str(folder / "artifacts")},
        },
    }


def _run(command: Sequence[str], folder: Path, path: str) -> Measured:
    """Run a command to its end. Raises CalledProcessError, its output shown, if it fails."""
    env = {**os.environ, "PYTHONPATH": path}
    plan, lines = None, []
    started = time.time()
    with subprocess.Popen(
        command, cwd=folder, env=env, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if plan is None and line.startswith("start: run "):
                plan = time.time() - started
        process.wait(_TIMEOUT_SECONDS)
    ended = time.time()
    if process.returncode:
        print("".join(lines), file=sys.stderr)
        raise subprocess.CalledProcessError(process.returncode, command)
    times = [float(text) for text in (folder / training.STEPS_FILE).read_text().split()]
    assert len(times) == training.STEPS + 1, times
    report = folder / _OUTPUT / "report.html"
    return Measured(
        plan=plan,
        first_step=times[0] - started,
        report=report.stat().st_mtime - times[-1] if report.exists() else None,
        end=ended - times[-1],
        whole=ended - started,
    )
