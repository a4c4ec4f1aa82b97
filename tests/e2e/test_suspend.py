"""A run that is suspended, resumed and loses a worker, against the same run undisturbed here."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from stage import LASTMILE, NAMESPACE, Stage, condition

pytestmark = pytest.mark.timeout(1800)  # two clusters come up, one after another

MANIFEST = Path(__file__).with_name("ordered.yaml")
MOUNT = "/mnt/team"
CLAIM = "team"
# Batches are equal and so are the sums of their losses but for the order of floating-point sums:
# machines differ in threads.
METRIC_TOLERANCE = 1e-3


def test_a_suspended_and_resumed_run_trains_on_what_the_undisturbed_one_does(
    stage: Stage, tmp_path: Path
) -> None:
    undisturbed = run_here(stage.store.volume, tmp_path)
    make_volume(stage)

    folder = stage.store.volume / "experiments" / "ordered"
    stage.apply(on_cluster(suspend=False))
    # The status lags by up to half a minute, the volume does not.
    stage.until("ordered", lambda found: any(folder.glob("*/checkpoints/step-*")))
    stage.apply(on_cluster(suspend=True))
    stage.until("ordered", lambda found: condition(found, "Suspended"))
    assert read_last_summary(folder)["run"]["outcome"] == "Interrupted"
    stage.kubectl("wait", "--for=delete", "raycluster", "--all", "--timeout=180s")

    stage.apply(on_cluster(suspend=False))
    stage.until("ordered", lambda found: condition(found, "Training"))
    workers = stage.kubectl("get", "pods", "-l", "ray.io/group=data-workers", "-o", "name")
    stage.kubectl("delete", workers.split()[0], "--force", "--grace-period=0")
    done = stage.until("ordered", lambda found: condition(found, "Complete"))["status"]
    assert [done[field] for field in ("run", "attempt", "failures")] == [1, 2, 0]

    assert done["artifactsUri"] == f"{MOUNT}/experiments/ordered/"
    assert len(list(folder.glob("*/logs/*.log"))) == 2  # of each attempt
    resumed = read_last_summary(folder)
    assert resumed["run"]["resumedFrom"] is not None
    assert resumed["checksum"] == undisturbed["checksum"]
    assert resumed["order"] == undisturbed["order"]
    expected, got = (summary["training"]["evaluations"][-1] for summary in (undisturbed, resumed))
    for name, value in expected["metrics"].items():
        assert got["metrics"][name] == pytest.approx(value, rel=METRIC_TOLERANCE), name


def run_here(volume: Path, output: Path) -> dict[str, Any]:
    """The same manifest with no Kubernetes at all."""
    command = [LASTMILE, "run", "-f", MANIFEST, "--storage-root", volume, "--output", output]
    subprocess.run([*command, "--set", "artifacts.uri=undisturbed/"], check=True)
    summary: dict[str, Any] = json.loads((output / "summary.json").read_text())
    return summary


def read_last_summary(folder: Path) -> dict[str, Any]:
    newest = max(folder.glob("*/summary.json"), key=lambda path: path.stat().st_mtime)
    summary: dict[str, Any] = json.loads(newest.read_text())
    return summary


def on_cluster(*, suspend: bool) -> str:
    """The manifest with what a cluster needs beside: where the volume is, in every pod."""
    document = yaml.safe_load(MANIFEST.read_text())
    mount = {"name": CLAIM, "mountPath": MOUNT}
    pod = {
        "volumes": [{"name": CLAIM, "persistentVolumeClaim": {"claimName": CLAIM}}],
        "containers": [{"name": "ray", "volumeMounts": [mount]}],
    }
    document["spec"] |= {
        "suspend": suspend,
        "storage": {"root": MOUNT},
        **{role: {"template": {"spec": pod}} for role in ("head", "trainers", "dataWorkers")},
    }
    return yaml.safe_dump(document)


def make_volume(stage: Stage) -> None:
    """A volume that is a folder of the node, as an administrator would make one of NFS."""
    size = {"storage": "1Gi"}
    modes = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": CLAIM},
        "spec": {"capacity": size, "hostPath": {"path": str(stage.store.volume)}, **modes},
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM, "namespace": NAMESPACE},
        "spec": {"resources": {"requests": size}, "volumeName": CLAIM, **modes},
    }
    for document in (volume, claim):
        stage.kubectl("create", "-f", "-", stdin=json.dumps(document))
