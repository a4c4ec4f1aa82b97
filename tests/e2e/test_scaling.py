"""Data workers come and go with what the trainers say, in real pods, and no row is lost by it."""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from stage import LASTMILE, MOUNT, VOLUME, Stage, condition, kill_operator

from dataset_operator.api import DATA_WORKERS, EXPERIMENT_LABEL, HEAD, ROLE_LABEL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NAME = "paced"
SOURCE = Path(__file__).with_name("paced.py")
MANIFEST = Path(__file__).with_name("paced.yaml")
PACE = "code/pace.json"  # below the volume
METRICS_PORT = 9464
# 500 rows a step of 0.25 s are 2,000 a second; one reader makes 600: 3.3 busy workers, 4 with room.
STARVED = {"stepSeconds": 0.25, "secondsPerRow": 1 / 600}
NEEDED = 4
# The trainer takes half as many: 1.7 busy workers, 2 with room.
LIGHTER = {"stepSeconds": 0.5, "secondsPerRow": 1 / 600}
NEEDED_THEN = 2
AT_ONCE = {"stepSeconds": 0.0, "secondsPerRow": 0.0}
FED_PERCENT = 5
QUIET_SECONDS = 60.0
OUTAGE_SECONDS = 120.0


@pytest.fixture
def room(stage: Stage) -> Iterator[None]:
    """The cluster's one GPU is the next test's, whatever becomes of this one."""
    yield
    stage.kubectl("delete", "dsexp", NAME, "--ignore-not-found")


@pytest.mark.usefixtures("room")
def test_workers_follow_the_trainers_need_and_every_row_is_trained(
    stage: Stage, tmp_path: Path
) -> None:
    folder = stage.store.volume / "code"
    folder.mkdir()
    (folder / SOURCE.name).write_text(SOURCE.read_text())
    pace(stage, STARVED)
    stage.apply(on_cluster())

    grown = stage.until(NAME, lambda found: count(found, "readyReplicas") == NEEDED)
    assert grown["status"]["lastScaleTime"]
    stage.until(NAME, lambda found: wait_percent(found) <= FED_PERCENT)
    hold(stage, NEEDED, QUIET_SECONDS)  # a trainer that is fed gets no more

    pace(stage, LIGHTER)
    stage.until(NAME, lambda found: found["status"]["dataWorkers"].get("draining"))
    kill_operator(stage)
    shrunk = stage.until(NAME, lambda found: count(found, "currentReplicas") == NEEDED_THEN)
    stage.until(NAME, lambda found: not found["status"]["dataWorkers"].get("draining"))
    assert shrunk["status"]["attempt"] == 1
    assert not listed(stage)

    with cut_off(stage):
        hold(stage, NEEDED_THEN, OUTAGE_SECONDS)
        assert reason(stage.get(NAME), "ScalingActive") == "MetricsUnknown"
    stage.until(NAME, lambda found: reason(found, "ScalingActive") == "ValidMetricFound")
    hold(stage, NEEDED_THEN, QUIET_SECONDS)  # bound by its trainer, it never scales

    pace(stage, AT_ONCE)
    done = stage.until(NAME, lambda found: condition(found, "Complete"))["status"]
    assert [done[field] for field in ("run", "attempt", "failures")] == [1, 1, 0]
    here = run_here(stage.store.volume, tmp_path / "here")
    [there] = (stage.store.volume / "experiments" / NAME).glob("*/summary.json")
    assert json.loads(there.read_text())["checksum"] == here["checksum"]
    kept = [json.loads(path.read_text()) for path in sorted(there.parent.glob("decisions/*.json"))]
    numbers = [kept[0]["before"], *(decision["after"] for decision in kept)]
    assert [decision["before"] for decision in kept] == numbers[:-1]  # each goes on from the last
    assert (numbers[0], max(numbers), numbers[-1]) == (2, NEEDED, NEEDED_THEN)
    assert 0 < done["usage"]["gpuIdleSeconds"] < done["usage"]["gpuSeconds"]


def on_cluster() -> str:
    document = yaml.safe_load(MANIFEST.read_text().replace("PACE", f"{MOUNT}/{PACE}"))
    mount = {"name": VOLUME, "mountPath": MOUNT}
    pod = {
        "volumes": [{"name": VOLUME, "persistentVolumeClaim": {"claimName": VOLUME}}],
        "containers": [{"name": "ray", "volumeMounts": [mount]}],
    }
    spec = document["spec"]
    spec |= {"storage": {"root": MOUNT}, "code": {"workingDir": f"{MOUNT}/code"}}
    for role in ("head", "trainers", "dataWorkers"):
        spec[role] = {**spec.get(role, {}), "template": {"spec": pod}}
    return yaml.safe_dump(document)


def run_here(volume: Path, output: Path) -> dict[str, Any]:
    """The same rows with nothing in their way."""
    manifest = output.with_suffix(".yaml")
    manifest.write_text(MANIFEST.read_text().replace("PACE", str(volume / PACE)))
    command = [LASTMILE, "run", "-f", manifest, "--storage-root", volume, "--output", output]
    code = f"code.workingDir={volume / 'code'}"
    subprocess.run([*command, "--set", "artifacts.uri=here/", "--set", code], check=True)
    summary: dict[str, Any] = json.loads((output / "summary.json").read_text())
    return summary


def pace(stage: Stage, wanted: dict[str, float]) -> None:
    """Replaced at once: a reader sees the one or the other."""
    path = stage.store.volume / PACE
    path.with_suffix(".new").write_text(json.dumps(wanted))
    path.with_suffix(".new").replace(path)


def count(found: dict[str, Any], field: str) -> int:
    number: int = found.get("status", {}).get("dataWorkers", {}).get(field, 0)
    return number


def wait_percent(found: dict[str, Any]) -> int:
    percent: int = found["status"].get("trainer", {}).get("productionWaitPercent", 100)
    return percent


def reason(found: dict[str, Any], kind: str) -> str | None:
    conditions = found["status"]["conditions"]
    return next((c["reason"] for c in conditions if c["type"] == kind), None)


def hold(stage: Stage, workers: int, seconds: float) -> None:
    """The number stays for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = stage.get(NAME)
        assert count(found, "desiredReplicas") == workers, stage.tell(found)
        time.sleep(2.0)


def listed(stage: Stage) -> list[str]:
    [cluster] = json.loads(stage.kubectl("get", "rayclusters", "-o", "json"))["items"]
    groups = {group["groupName"]: group for group in cluster["spec"]["workerGroupSpecs"]}
    names: list[str] = (groups[DATA_WORKERS].get("scaleStrategy") or {}).get("workersToDelete", [])
    return names


@contextlib.contextmanager
def cut_off(stage: Stage) -> Iterator[None]:
    """Nobody reaches the driver's metrics meanwhile."""
    labels = f"{EXPERIMENT_LABEL}={NAME},{ROLE_LABEL}={HEAD}"
    [pod] = json.loads(stage.kubectl("get", "pods", "-l", labels, "-o", "json"))["items"]
    with open_network(pod["metadata"]["uid"]) as network:
        inside = ["nsenter", f"--net=/proc/self/fd/{network}", "iptables"]
        rule = ["INPUT", "-p", "tcp", "--dport", str(METRICS_PORT), "-j", "DROP"]
        subprocess.run([*inside, "-I", *rule], check=True, pass_fds=[network])
        yield
        subprocess.run([*inside, "-D", *rule], check=True, pass_fds=[network])


@contextlib.contextmanager
def open_network(pod_uid: str) -> Iterator[int]:
    """A descriptor of a pod's network, which stays though the process that it was found by ends."""
    processes = sorted(int(path.name) for path in Path("/proc").glob("[0-9]*"))
    network = next(filter(None, (_find_network(pid, pod_uid) for pid in processes)), None)
    assert network is not None, f"no process of pod {pod_uid}"
    try:
        yield network
    finally:
        os.close(network)


def _find_network(pid: int, pod_uid: str) -> int | None:
    """Return a process' network namespace if its control group is the pod's."""
    process = Path("/proc") / str(pid)
    with contextlib.suppress(OSError):
        if pod_uid in (process / "cgroup").read_text().replace("_", "-"):
            return os.open(process / "ns" / "net", os.O_RDONLY)
    return None
