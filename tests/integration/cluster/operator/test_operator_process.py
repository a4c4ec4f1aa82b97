"""`lastmile operator --dev` as a process, and the commands that a user types meanwhile.

The pods of the box run nothing, so that an experiment waits for its head to answer.
"""

import json
import re
import subprocess
from pathlib import Path

import pytest
from commands import LASTMILE, User, manifest
from facts import assert_told
from operator_process import operating

from dataset_operator.api import FINALIZER
from tools.cluster.box import Box

pytestmark = pytest.mark.usefixtures("played")


def test_a_user_submits_looks_scales_stops_and_resumes(
    box: Box, namespace: str, tmp_path: Path
) -> None:
    user = User(box=box, namespace=namespace)
    workers = {"minReplicas": 2, "maxReplicas": 4}
    with operating(user, tmp_path) as operator:
        told = user.reads("submit", "-f", "-", stdin=manifest(dataWorkers=workers))
        assert told == f"{namespace}/clicks created\n"

        def has_pods(number: int) -> bool:
            return f"{number} of {number} ready" in user.reads("describe", "clicks")

        operator.until(lambda: has_pods(2))
        operator.until(lambda: "Starting" in user.reads("get"))
        shown = user.reads("describe", "clicks")
        assert re.search(r"^Phase: +Starting\b", shown, re.MULTILINE)
        assert re.search(r"^Next: +\S", shown, re.MULTILINE)
        assert len(re.findall(r"^clicks-\S+ +\S+ +yes +Running", shown, re.MULTILINE)) == 4
        assert "PodsReady" in shown.split("EVENT")[1]
        assert "clicks" in user.fails("logs", "clicks")  # there is none yet
        root = ("--storage-root", "s3://bucket/team")
        run_id = f"{user.experiment()['metadata']['uid'][:8]}-1"
        where = f"s3://bucket/team/experiments/clicks/*-{run_id}/\n"
        assert user.reads("artifacts", "clicks", *root) == where

        error = user.fails("scale", "clicks", "--data-workers", "5")
        assert_told(error, "… minReplicas … 2 … 4 … 5")
        assert_told(user.reads("scale", "clicks", "--data-workers", "4"), "clicks: … 2 → 4")
        operator.until(lambda: has_pods(4))

        assert user.reads("stop", "clicks", "--wait").startswith("clicks ")
        assert "Suspended" in user.reads("get", "clicks")
        assert "lastmile resume clicks" in user.reads("describe", "clicks")
        assert "clicks" in user.fails("scale", "clicks", "--data-workers", "3")
        user.reads("resume", "clicks")
        operator.until(lambda: "Starting" in user.reads("get", "clicks"))


def test_the_process_tells_of_itself_and_ends_in_order(
    box: Box, namespace: str, tmp_path: Path
) -> None:
    user = User(box=box, namespace=namespace)
    with operating(user, tmp_path) as operator:
        assert operator.answer("/healthz") == "ok\n"
        user.reads("submit", "-f", "-", stdin=manifest())
        about = rf"{namespace}/clicks \(PodsReady\): Starting: .*ClusterReady"
        operator.until(lambda: re.search(about, operator.log.read_text()) is not None)
        operator.until(lambda: operator.answer("/readyz") == "ok\n")
        passes = 'lastmile_operator_reconcile_total{result="done"}'
        operator.until(lambda: float(operator.metrics()[passes]) > 1)  # it logs before it counts
        values = operator.metrics()

        assert values['lastmile_operator_experiments{phase="Starting"}'] == "1.0"
        counted = 'lastmile_operator_api_request_seconds_count{code="201",resource="%s",verb="%s"}'
        assert float(values[counted % ("rayclusters", "patch")]) >= 1
        box.kubectl("delete", "poddisruptionbudget", "--all", "-n", namespace)
        waits = 'lastmile_operator_queue_seconds_count{trigger="%s"}'
        for trigger in ("edit", "change", "clock"):
            operator.until(lambda: float(operator.metrics()[waits % trigger]) >= 1)  # noqa: B023
        about = {n.partition("{")[0] for n in values if namespace in n or "clicks" in n}
        assert about
        assert all(name.startswith("lastmile_experiment_") for name in about)

        assert operator.stop() == 0
        assert operator.log.read_text().splitlines()[-1].endswith("INFO stopped")


@pytest.mark.slow
def test_another_operator_goes_on_where_a_killed_one_was(
    box: Box, namespace: str, tmp_path: Path
) -> None:
    user = User(box=box, namespace=namespace)
    with operating(user, tmp_path) as operator:
        user.reads("submit", "-f", "-", stdin=manifest())
        operator.until(lambda: "status" in user.experiment())
    with operating(user, tmp_path) as operator:
        operator.until(lambda: "Starting" in user.reads("get", "clicks"))
        events = user.kubectl("get", "events", "-o", "jsonpath={.items[*].reason}").split()
        assert events.count("NewRun") == 1


def test_finalizers_are_released_without_an_operator(box: Box, namespace: str) -> None:
    user = User(box=box, namespace=namespace)
    user.reads("submit", "-f", "-", stdin=manifest())
    patch = json.dumps({"metadata": {"finalizers": [FINALIZER, "example.com/other"]}})
    user.kubectl("patch", "dsexp", "clicks", "--type=merge", "-p", patch)
    user.kubectl("delete", "dsexp", "clicks", "--wait=false")
    assert "lastmile operator release-finalizers" in user.reads("describe", "clicks")

    command = [LASTMILE, "operator", "release-finalizers", "-n", namespace]
    done = subprocess.run(
        command, env=user.environment(), capture_output=True, text=True, check=True
    )

    assert done.stdout == f"{namespace}/clicks: released\n"
    assert user.experiment()["metadata"]["finalizers"] == ["example.com/other"]
    user.kubectl("patch", "dsexp", "clicks", "--type=json", "-p", REMOVE_FINALIZERS)


REMOVE_FINALIZERS = json.dumps([{"op": "remove", "path": "/metadata/finalizers"}])
