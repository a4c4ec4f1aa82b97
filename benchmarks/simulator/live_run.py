"""The run itself: `lastmile run` on a running cluster, and the metrics of its driver."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.errors import BenchmarkError
from benchmarks.simulator.profiles import BATCH_ROWS, MAX_WORKERS, UNIT_ROWS
from dataset_operator.autoscaling.signals import Counters
from dataset_operator.ray.scaling_signals import parse_scaling
from pipeline_runtime.sample_data import write_sample_data
from pipeline_runtime.sample_data.options import SampleDataOptions

_ROOT = Path(__file__).parents[2]
_LASTMILE = str(Path(sys.executable).with_name("lastmile"))
_TABLE_ROWS = 100_000  # as many epochs as it takes
_NUM_EPOCHS = 1000
_SCRAPE_SECONDS = 3.0
_STOP_SECONDS = 90.0  # a step, a checkpoint, and the report


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A run in progress."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def read(self) -> Counters | None:
        """Read its metrics; None while there are none. Raises BenchmarkError if it has ended."""
        if self.process.poll() is not None:
            raise BenchmarkError(f"the run ended:\n{self.log.read_text()[-4000:]}")
        try:
            url = f"http://127.0.0.1:{self.port}/metrics"
            with urllib.request.urlopen(url, timeout=_SCRAPE_SECONDS) as answer:
                return parse_scaling(answer.read().decode())
        except (urllib.error.URLError, TimeoutError):
            return None


def write_table(data: Path) -> Path:
    """Write the table unless it exists; return the storage root of the runs."""
    root = data / f"simulator-{_TABLE_ROWS}-{UNIT_ROWS}"
    options = SampleDataOptions(
        rows=_TABLE_ROWS, rows_per_group=UNIT_ROWS, days=1, compression="none"
    )
    write_sample_data(root, options)
    return root.absolute()


@contextmanager
def train(address: str, root: Path, pace: Path, folder: Path) -> Iterator[Training]:
    """Run on the Ray cluster at an address for the time of a context.

    Args:
        root: storage root of the table.
        pace: file with the pace of trainer and step.
        folder: folder for the files of the run.
    """
    manifest, log = folder / "manifest.json", folder / "run.log"
    manifest.write_text(json.dumps(build_manifest(pace)))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [_LASTMILE, "run", "-f", manifest, "--address", address, "--storage-root", root]
    command += ["--output", folder / "report", "--metrics-port", str(port)]
    command += ["--set", f"artifacts.uri={folder / 'artifacts'}/"]
    path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            env=os.environ | {"PYTHONPATH": path},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield Training(process=process, port=port, log=log)
    finally:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def build_manifest(pace: Path) -> dict[str, Any]:
    """Return the manifest of a paced run."""
    step = {
        "function": "benchmarks.simulator.paced:work",
        "options": {"pace": str(pace)},
        "inputColumns": ["clicked"],
        "outputColumns": [{"name": "clicked", "type": "bool"}],
    }
    training = {
        "entrypoint": "benchmarks.simulator.paced:train",
        "config": {"pace": str(pace)},
        "batchSize": BATCH_ROWS,
        "epochs": _NUM_EPOCHS,
        "labelColumn": "clicked",
        "columns": ["dense_00", "clicked"],
        "shuffle": {"unit": "None"},
    }
    return {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": "simulator"},
        "spec": {
            "dataset": {"parquet": {"uri": "impressions/"}, "rowKey": ["_lastmile_row_id"]},
            "pipeline": [{"map": step}],
            "pipelineOptions": {"rowsPerBlock": UNIT_ROWS},
            "training": training,
            "dataWorkers": {"minReplicas": 1, "maxReplicas": MAX_WORKERS},
        },
    }
