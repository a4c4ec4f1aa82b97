"""A namespace without a Role for the operator keeps no other namespace waiting."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from commands import LASTMILE
from operator_stage import comes, eventually, impatient
from reconcile_stage import stage_of

import dataset_operator.serve
from dataset_operator.api import FINALIZER
from dataset_operator.kube.login import Login
from dataset_operator.serve import serving
from dataset_operator.telemetry.freshness import compare_forever
from dataset_operator.telemetry.log_records import build_handler
from dataset_operator.telemetry.metrics import OperatorMetrics
from dataset_operator.telemetry.watched import Watched
from pipeline_runtime.config import API_VERSION, KIND
from tools.cluster.box import Box

pytestmark = pytest.mark.usefixtures("kuberay")

ACCOUNT = "operator"


@pytest.fixture
def other(box: Box) -> Iterator[str]:
    name = f"test-{secrets.token_hex(4)}"
    box.kubectl("create", "namespace", name)
    box.kubectl("wait", "--for=create", "--timeout=60s", "serviceaccount/default", "-n", name)
    yield name
    box.kubectl("delete", "namespace", name, "--wait=false")


def let_in(box: Box, home: str, namespace: str) -> None:
    account = f"--serviceaccount={home}:{ACCOUNT}"
    box.kubectl(
        "create", "rolebinding", ACCOUNT, "--clusterrole=cluster-admin", account, "-n", namespace
    )


def log_in(box: Box, home: str, folder: Path) -> Path:
    """Write the kubeconfig of a new service account, which has no rights yet; return its path."""
    box.kubectl("create", "serviceaccount", ACCOUNT, "-n", home)
    config = yaml.safe_load(box.kubeconfig.read_text())
    token = box.kubectl("create", "token", ACCOUNT, "-n", home).strip()
    for user in config["users"]:
        user["user"] = {"token": token}
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.slow
def test_a_namespace_that_refuses_pauses_alone_and_is_watched_once_it_lets_the_operator_in(
    box: Box,
    namespace: str,
    other: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setattr(dataset_operator.serve, "REFUSED_SECONDS", 1.0)
    monkeypatch.setattr(dataset_operator.serve, "build_kopf_settings", impatient)
    login = Login(kubeconfig=log_in(box, namespace, tmp_path))
    let_in(box, namespace, namespace)
    log = io.StringIO()
    handler = build_handler(log, as_text=True, verbose=False)
    logging.getLogger().addHandler(handler)
    request.addfinalizer(lambda: logging.getLogger().removeHandler(handler))
    watched = Watched()
    metrics = OperatorMetrics(watched)

    async def story() -> None:
        watches = [namespace, other]
        async with stage_of(box, namespace) as stage:
            beside = replace(stage, namespace=other)
            beside.apply()
            stop = asyncio.Event()
            async with (
                serving(
                    stage.reconciler, watches, log_in=login.connection, metrics=metrics, stop=stop
                ),
                asyncio.TaskGroup() as tasks,
            ):
                comparing = tasks.create_task(
                    compare_forever(stage.reconciler.kube, watches, watched, 0.2)
                )
                stage.apply()
                await comes(stage, "Training", "True", "Running")
                await eventually(lambda: watched.is_synced)
                # A list may be a moment ahead of the watch.
                await eventually(lambda: watched.find_oldest_missed() is None)
                assert {key for key, _ in watched.list_standings()} == {(namespace, "clicks")}
                await eventually(lambda: f"the namespace {other}" in caplog.text)
                assert await beside.status() == {}

                told = f"the namespace {other} "
                await eventually(lambda: log.getvalue().count(told) >= 3)
                lines = [line for line in log.getvalue().splitlines() if other in line]
                assert "Request attempt" in caplog.text  # what Kopf says of it
                assert "Traceback" not in log.getvalue()
                for line in lines:
                    assert told in line
                    assert line.endswith(f'in the namespace "{other}"')

                let_in(box, namespace, other)
                await comes(beside, "ClusterReady", "True", "PodsReady")
                assert not stop.is_set()
                comparing.cancel()

    asyncio.run(story())


@pytest.mark.slow
def test_finalizers_are_released_where_they_can_be(
    box: Box, namespace: str, other: str, tmp_path: Path
) -> None:
    config = log_in(box, namespace, tmp_path)
    let_in(box, namespace, other)
    experiment = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "clicks", "namespace": other, "finalizers": [FINALIZER]},
        "spec": {"dataset": {"parquet": {"uri": "t/"}}},
    }
    box.kubectl("apply", "-f", "-", stdin=json.dumps(experiment))
    command = [LASTMILE, "operator", "release-finalizers", f"--kubeconfig={config}"]

    done = subprocess.run(
        [*command, "-n", namespace, "-n", other], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert done.stdout == f"{other}/clicks: released\n"
    assert f"{namespace}: " in done.stderr
