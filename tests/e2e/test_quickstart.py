"""`kubectl apply` of the quickstart: real pods, real Ray, a real store, to a trained model."""

import json

import pytest
from stage import NAMESPACE, SAMPLES, Stage, condition

from tools.cluster.errors import KubectlError

pytestmark = pytest.mark.timeout(1200)  # minutes, of which the pods' start is most

RAY_JOBS = "/api/v1/namespaces/{0}/services/{1}-head-svc:8265/proxy/api/jobs/"


def test_the_quickstart_trains_in_real_pods_and_leaves_its_report_in_the_store(
    stage: Stage,
) -> None:
    stage.apply((SAMPLES / "quickstart.yaml").read_text())
    training = stage.until("quickstart", lambda found: condition(found, "Training"))
    assert training["status"]["dataWorkers"]["desiredReplicas"] == 2
    assert training["status"]["gpus"] == 1
    cluster = training["status"]["rayClusterName"]
    with pytest.raises(KubectlError, match="provide credentials"):  # nor a token
        stage.kubectl("get", "--raw", RAY_JOBS.format(NAMESPACE, cluster))

    done = stage.until("quickstart", lambda found: condition(found, "Complete"))
    status = done["status"]
    assert [status[field] for field in ("run", "attempt", "failures")] == [1, 1, 0]
    assert status["trainer"]["progressPercentage"] == 100
    assert not done["metadata"].get("finalizers")

    [run] = {"/".join(path.split("/")[:4]) for path in stage.store.files("team/experiments")}
    assert run.startswith("team/experiments/quickstart/")
    files = [path.removeprefix(f"{run}/") for path in stage.store.files(run)]
    assert {"report.html", "summary.json", "metrics.parquet", "plan.json"} <= set(files)
    assert any(path.startswith("checkpoints/") for path in files)
    [log] = [path for path in files if path.startswith("logs/")]
    assert status["runHash"] in stage.store.read(f"{run}/{log}").decode()
    summary = json.loads(stage.store.read(f"{run}/summary.json"))
    assert summary["run"]["outcome"] == "Complete"
