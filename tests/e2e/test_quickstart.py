"""The README's commands on a cluster, in its order: real pods, Ray and store."""

import io
import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from knocking import knock_as_stranger, knock_from
from release import APPLY, OPERATOR_NAMESPACE, ROOT, commands_after
from stage import LASTMILE, NAMESPACE, S3_PORT, Stage, condition

from dataset_operator.api import EXPERIMENT_LABEL, HEAD, ROLE_LABEL
from tools.cluster.box import KubectlError
from tools.cluster.components import SERVICE_ADDRESS

pytestmark = pytest.mark.timeout(1200)  # minutes, of which the pods' start is most

EXPERIMENTS = "team/experiments/quickstart"
LOOK = commands_after("kubectl get dsexp")
GCS_PORT, DASHBOARD_PORT, METRICS_PORT, KUBELET_PORT = 6379, 8265, 8080, 10250
DOORS_SECONDS = 120.0
RAY_JOBS = "/api/v1/namespaces/{0}/services/{1}-head-svc:8265/proxy/api/jobs/"


@pytest.fixture
def environment(stage: Stage, tmp_path: Path) -> dict[str, str]:
    """A user's shell: kubectl, its plugin, a context with the namespace, keys to the store."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_bytes(stage.node.kubeconfig.read_bytes())
    path = f"{stage.node.layout.bin}:{LASTMILE.parent}:{os.environ['PATH']}"
    environment = {
        **os.environ,
        **stage.store.environment,
        "PATH": path,
        "KUBECONFIG": str(kubeconfig),
    }
    choose = ["kubectl", "config", "set-context", "--current", f"--namespace={NAMESPACE}"]
    subprocess.run(choose, env=environment, check=True, capture_output=True)
    return environment


def run(command: list[str], environment: dict[str, str], folder: Path) -> str:
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def check_doors(stage: Stage) -> None:
    """Pods of an experiment reach each other and the store, and nobody else reaches them."""
    labels = ("-l", f"{EXPERIMENT_LABEL}=quickstart", "-o", "json")
    pods = json.loads(stage.kubectl("get", "pods", *labels))["items"]
    heads = [pod for pod in pods if pod["metadata"]["labels"][ROLE_LABEL] == HEAD]
    [(name, head)] = [(pod["metadata"]["name"], pod["status"]["podIP"]) for pod in heads]
    own = {(head, port) for port in (GCS_PORT, DASHBOARD_PORT)}
    own |= {(pod["status"]["podIP"], METRICS_PORT) for pod in pods}
    node = stage.node.network.node_address
    store, kubelet, api = (node, S3_PORT), (node, KUBELET_PORT), (SERVICE_ADDRESS, 443)
    # The page of a pod's node is served by a process that Ray starts after the node has joined.
    deadline = time.monotonic() + DOORS_SECONDS
    while (found := knock_from(stage, name, {*own, store})) != {*own, store}:
        assert time.monotonic() < deadline, f"still closed: {sorted({*own, store} - found)}"
        time.sleep(1)
    assert knock_from(stage, name, {kubelet, api}) == set()
    for elsewhere in (stage, stage.within(OPERATOR_NAMESPACE)):
        assert knock_as_stranger(elsewhere, {*own, store}) == {store}


def check_history(stage: Stage, environment: dict[str, str], folder: Path) -> None:
    """Check that the store has the cluster's history after its end."""

    def is_settled(found: dict[str, Any]) -> bool:
        state = found["status"].get("history", {}).get("state", "Pending")
        return state != "Pending" and not found["metadata"].get("finalizers")

    history = stage.until("quickstart", is_settled)["status"]["history"]
    assert history["state"] == "Kept", history
    for kind in ("raycluster", "pod"):
        stage.kubectl("wait", "--for=delete", kind, "--all", "--timeout=180s")

    def lastmile(*command: str) -> str:
        return run(["kubectl", "lastmile", *command], environment, folder)

    assert "report: " in lastmile("logs", "quickstart")  # printed last
    pods = {line.split()[0] for line in lastmile("logs", "quickstart", "--pods").splitlines()[1:]}
    assert len(pods) == 4  # the head, a trainer and two data workers
    for pod in pods:
        assert "raylet" in lastmile("logs", "quickstart", "--pod", pod)
    described = lastmile("describe", "quickstart")
    assert pods <= set(described.split())
    assert "Succeeded" in described
    metrics = [path for path in stage.store.files(EXPERIMENTS) if "/metrics/" in path]
    names = {row["name"] for row in read_metrics(stage, metrics)}
    assert "lastmile_run_rows_total" in names


def read_metrics(stage: Stage, paths: list[str]) -> list[dict[str, Any]]:
    tables = [pq.read_table(io.BytesIO(stage.store.read(path))) for path in paths]
    return [row for table in tables for row in table.to_pylist()]


def test_the_readmes_commands_train_in_real_pods_and_fetch_the_report(
    stage: Stage, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    run(APPLY, environment, tmp_path)
    training = stage.until("quickstart", lambda found: condition(found, "Training"))["status"]
    assert training["dataWorkers"]["desiredReplicas"] == 2
    assert training["gpus"] == 1
    with pytest.raises(KubectlError, match="provide credentials"):  # the proxy passes no token on
        stage.kubectl("get", "--raw", RAY_JOBS.format(NAMESPACE, training["rayClusterName"]))
    check_doors(stage)

    said = {" ".join(command): run(command, environment, tmp_path) for command in LOOK}
    assert re.search(r"^quickstart +Training +1 +2 +2 ", said["kubectl get dsexp"], re.M)
    assert "quickstart" in said["kubectl lastmile describe quickstart"]
    assert training["runHash"] in said["kubectl lastmile logs -f quickstart"]

    done = stage.until("quickstart", lambda found: condition(found, "Complete"))
    status = done["status"]
    assert [status[field] for field in ("run", "attempt", "failures")] == [1, 1, 0]
    assert status["trainer"]["progressPercent"] == 100
    check_history(stage, environment, tmp_path)

    fetched = {path.name for path in (tmp_path / "build" / "quickstart").iterdir()}
    assert {"report.html", "summary.json", "metrics.parquet", "plan.json"} < fetched
    summary = json.loads((tmp_path / "build" / "quickstart" / "summary.json").read_text())
    assert summary["run"]["outcome"] == "Complete"
    folders = {"/".join(path.split("/")[:4]) for path in stage.store.files(EXPERIMENTS)}
    [run_folder] = folders - {f"{EXPERIMENTS}/history"}
    files = [path.removeprefix(f"{run_folder}/") for path in stage.store.files(run_folder)]
    assert any(path.startswith("checkpoints/") for path in files)
    [log] = [path for path in files if path.startswith("logs/")]
    assert "report: " in stage.store.read(f"{run_folder}/{log}").decode()  # printed last
