"""Runs a profile by `lastmile run` on raylets, which are started and drained by the policy."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.errors import BenchmarkError
from benchmarks.scaling.ray_cluster import Cluster, open_cluster
from benchmarks.simulator.profiles import BATCH_ROWS, RULES, UNIT_ROWS, Profile
from benchmarks.simulator.watching import Look, RealRun, set_pace, watch
from dataset_operator.autoscaling.intervals import Memory
from dataset_operator.autoscaling.policy import decide
from dataset_operator.autoscaling.signals import Counters, Sample
from dataset_operator.ray.scaling_signals import parse_scaling
from pipeline_runtime.sample_data import write_sample_data
from pipeline_runtime.sample_data.options import SampleDataOptions

_ROOT = Path(__file__).parents[2]
_LASTMILE = str(Path(sys.executable).with_name("lastmile"))
_TABLE_ROWS = 100_000  # as many epochs as it takes
_NUM_EPOCHS = 1000
_SCRAPE_SECONDS = 3.0


def observe(profile: Profile, root: Path) -> RealRun:
    """Run a profile. Raises BenchmarkError if nodes do not start, or the run fails."""
    with tempfile.TemporaryDirectory(prefix="lm-simulator-") as name, open_cluster(1) as cluster:
        pace = Path(name) / "pace.json"
        set_pace(profile, 0, pace)
        cluster.resize(profile.first_workers)
        with _train(cluster.address, root, pace, Path(name)) as read:
            run = Raylets(cluster, read)
            return watch(profile, pace, run.look, run.decide)


@dataclass(slots=True)
class Raylets:
    """A run whose data workers are the nodes of a cluster, and the policy that requests them."""

    cluster: Cluster
    read: Callable[[], Counters | None]
    _memory: Memory = field(default_factory=lambda: Memory(since=0.0))

    def look(self) -> Look:
        """Return the run; workers are ready if they are up and deliver, as for the operator."""
        counters = self.read()
        delivering = int(counters.data_workers or 0) if counters else 0
        ready = min(len(self.cluster.find_up()), delivering)
        return Look(desired=len(self.cluster.nodes), ready=ready, counters=counters)

    def decide(self, sample: Sample) -> None:
        """Apply the policy: new nodes start, the youngest are drained."""
        decision, self._memory = decide(self._memory, sample, RULES)
        print(
            f"{sample.at:.0f} s: {sample.desired} → {decision.desired}: "
            f"{decision.recommended.message}",
            file=sys.stderr,
            flush=True,
        )
        up = self.cluster.find_up()
        for node in reversed(self.cluster.nodes[decision.desired :]):
            if node.serial in up:
                self.cluster.drain(node)
            else:
                self.cluster.end(node)
        self.cluster.add(decision.desired - len(self.cluster.nodes))


def write_table(data: Path) -> Path:
    """Write the table unless it exists; return the storage root of the runs."""
    root = data / f"simulator-{_TABLE_ROWS}-{UNIT_ROWS}"
    options = SampleDataOptions(
        rows=_TABLE_ROWS, rows_per_group=UNIT_ROWS, days=1, compression="none"
    )
    write_sample_data(root, options)
    return root.absolute()


@contextmanager
def _train(
    address: str, root: Path, pace: Path, folder: Path
) -> Iterator[Callable[[], Counters | None]]:
    """Run on the Ray cluster at an address, on the table below a root, with files in a folder.

    Yields a function that reads the metrics; None while there are none.
    """
    manifest, log = folder / "manifest.json", folder / "run.log"
    manifest.write_text(json.dumps(build_manifest(pace)))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command: list[str | Path] = [_LASTMILE, "run", "-f", manifest]
    command += ["--address", address, "--storage-root", root]
    command += ["--output", folder / "report", "--metrics-port", str(port)]
    command += ["--set", f"artifacts.uri={folder / 'artifacts'}/"]
    path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": path},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def read() -> Counters | None:
        if process.poll() is not None:
            raise BenchmarkError(f"the run ended:\n{log.read_text()[-4000:]}")
        try:
            url = f"http://127.0.0.1:{port}/metrics"
            with urllib.request.urlopen(url, timeout=_SCRAPE_SECONDS) as answer:
                return parse_scaling(answer.read().decode())
        except (urllib.error.URLError, TimeoutError):
            return None

    try:
        yield read
    finally:
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
            "dataWorkers": {"minReplicas": RULES.min_workers, "maxReplicas": RULES.max_workers},
        },
    }
