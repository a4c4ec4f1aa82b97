"""The simulator, which judges autoscaling policies, agrees with real pods under the operator.

`make bench-simulator` keeps the results. It takes twenty minutes, and other work at the same
time would change the measurements.
"""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from stage import MOUNT, VOLUME, Stage

from benchmarks.harness.report import Beginning, build_results, judge, write_results
from benchmarks.simulator.comparison import BENCHMARK, compare
from benchmarks.simulator.paced import __file__ as paced
from benchmarks.simulator.paced_run import build_manifest, write_table
from benchmarks.simulator.profiles import DOWN, Profile
from benchmarks.simulator.watching import Look, RealRun, set_pace, watch
from dataset_operator.api import EXPERIMENT_LABEL, HEAD, ROLE_LABEL, RUNTIME_METRICS_PORT
from dataset_operator.autoscaling.signals import Counters
from dataset_operator.ray.scaling_signals import parse_scaling
from tools.cluster.box import KubectlError

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(5400)]

NAME = "simulator"
PACE = "simulator/pace.json"  # below the volume
# Of a sleeping reader: six are to fit on two cores.
RESOURCES = {"requests": {"cpu": "150m", "memory": "1Gi"}, "limits": {"memory": "2560Mi"}}


def test_the_simulator_is_like_real_pods(stage: Stage, tmp_path: Path) -> None:
    beginning = Beginning()
    root = write_table(stage.store.volume)
    folder = stage.store.volume / "simulator"
    folder.mkdir(exist_ok=True)
    (folder / "paced.py").write_text(Path(paced).read_text())
    cells = list(compare(lambda profile: run(stage, profile, root.name)))
    circumstances = beginning.describe(NAME, []) | {"command": "make bench-simulator"}
    results = build_results(BENCHMARK, circumstances, {}, cells)
    text = write_results(BENCHMARK, results, Path(os.environ.get("LASTMILE_RESULTS", tmp_path)))
    assert all(row["met"] for row in judge(BENCHMARK, results)), text


def run(stage: Stage, profile: Profile, table: str) -> RealRun:
    """Run a profile from its first row to its last, and delete the experiment."""
    pace = stage.store.volume / PACE
    set_pace(profile, 0, pace)
    stage.apply(yaml.safe_dump(manifest(table)))
    try:
        return watch(profile, pace, lambda: look(stage))
    finally:
        stage.kubectl("delete", "dsexp", NAME)


def manifest(table: str) -> dict[str, Any]:
    """Return the benchmark's manifest, with its table, its pace and its code on the volume."""
    document = build_manifest(Path(MOUNT) / PACE)
    spec = document["spec"]
    spec["storage"] = {"root": f"{MOUNT}/{table}"}
    spec["artifacts"] = {"uri": f"{MOUNT}/experiments/{NAME}/"}
    spec["code"] = {"workingDir": f"{MOUNT}/simulator"}
    spec["pipeline"][0]["map"]["function"] = "paced:work"
    spec["training"]["entrypoint"] = "paced:train"
    spec["autoscaling"] = {"scaleDown": behavior(asdict(DOWN))}
    mount = {"name": VOLUME, "mountPath": MOUNT}
    pod = {
        "volumes": [{"name": VOLUME, "persistentVolumeClaim": {"claimName": VOLUME}}],
        "containers": [{"name": "ray", "volumeMounts": [mount]}],
    }
    for role in ("head", "trainers", "dataWorkers"):
        spec[role] = {**spec.get(role, {}), "template": {"spec": pod}}
    spec["dataWorkers"]["resources"] = RESOURCES
    return document


def behavior(direction: dict[str, Any]) -> dict[str, Any]:
    """Return the rules of a direction in the form of a manifest."""
    return {
        "stabilizationWindowSeconds": int(direction["stabilization_seconds"]),
        "policies": [
            {
                "type": limit["type"],
                "value": limit["value"],
                "periodSeconds": int(limit["period_seconds"]),
            }
            for limit in direction["limits"]
        ],
    }


def look(stage: Stage) -> Look:
    workers = stage.get(NAME).get("status", {}).get("dataWorkers", {})
    return Look(
        desired=workers.get("desiredReplicas", 0),
        ready=workers.get("readyReplicas", 0),
        counters=read_page(stage),
    )


def read_page(stage: Stage) -> Counters | None:
    """Return the driver's counters, through the API server; None while there is no driver."""
    labels = f"{EXPERIMENT_LABEL}={NAME},{ROLE_LABEL}={HEAD}"
    pods = json.loads(stage.kubectl("get", "pods", "-l", labels, "-o", "json"))["items"]
    if not pods:
        return None
    pod = f"{pods[0]['metadata']['name']}:{RUNTIME_METRICS_PORT}"
    namespace = pods[0]["metadata"]["namespace"]
    try:
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/proxy/metrics"
        return parse_scaling(stage.kubectl("get", "--raw", path))
    except KubectlError:
        return None
