"""A run whose rows and order are fixed: here with no Kubernetes at all, and on the cluster."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from stage import LASTMILE, MOUNT, VOLUME

MANIFEST = Path(__file__).with_name("ordered.yaml")
# Batches are equal and so are the sums of their losses but for the order of floating-point sums:
# machines differ in threads.
METRIC_TOLERANCE = 1e-3


def run_here(volume: Path, output: Path) -> dict[str, Any]:
    """The summary of the same manifest, run undisturbed on this machine."""
    command = [LASTMILE, "run", "-f", MANIFEST, "--storage-root", volume, "--output", output]
    subprocess.run([*command, "--set", "artifacts.uri=undisturbed/"], check=True)
    return _read(output / "summary.json")


def on_cluster(name: str, *, suspend: bool = False, epochs: int | None = None) -> str:
    """The manifest with what a cluster needs beside: where the volume is, in every pod.

    Args:
        epochs: in place of the manifest's.
    """
    document = yaml.safe_load(MANIFEST.read_text())
    mount = {"name": VOLUME, "mountPath": MOUNT}
    pod = {
        "volumes": [{"name": VOLUME, "persistentVolumeClaim": {"claimName": VOLUME}}],
        "containers": [{"name": "ray", "volumeMounts": [mount]}],
    }
    document["metadata"]["name"] = name
    if epochs is not None:
        document["spec"]["training"]["epochs"] = epochs
    document["spec"] |= {
        "suspend": suspend,
        "storage": {"root": MOUNT},
        **{role: {"template": {"spec": pod}} for role in ("head", "trainers", "dataWorkers")},
    }
    return yaml.safe_dump(document)


def find_last_step(folder: Path) -> str:
    """The newest checkpoint of a run; "" before its first. The status lags, the volume does not."""
    return max((path.name for path in folder.glob("*/checkpoints/step-*")), default="")


def read_last_summary(folder: Path) -> dict[str, Any]:
    """Return the report of the last attempt."""
    return _read(max(folder.glob("*/summary.json"), key=lambda path: path.stat().st_mtime))


def check_same(resumed: dict[str, Any], undisturbed: dict[str, Any]) -> None:
    """It went on from a checkpoint, and trained on the same rows in the same order, as well."""
    assert resumed["run"]["resumedFrom"] is not None
    assert resumed["checksum"] == undisturbed["checksum"]
    assert resumed["order"] == undisturbed["order"]
    expected, got = (summary["training"]["evaluations"][-1] for summary in (undisturbed, resumed))
    for name, value in expected["metrics"].items():
        assert got["metrics"][name] == pytest.approx(value, rel=METRIC_TOLERANCE), name


def _read(path: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(path.read_text())
    return summary
