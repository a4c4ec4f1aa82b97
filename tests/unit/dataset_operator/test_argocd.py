"""Argo CD's health of an experiment in every state that a plan can leave it in.

The scripts run in Lua 5.1, which Argo CD's own interpreter (gopher-lua) is one of.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml
from facts import assert_told
from lupa import lua51
from world import World, build_document, running

CONFIG = Path(__file__).parents[3] / "deploy" / "argocd" / "argocd-cm.yaml"
EXPERIMENT = "experiments.lastmile.dev_DatasetExperiment"
RAY_CLUSTER = "ray.io_RayCluster"
OUTPUT = {"output": {"parquet": {"uri": "kept/"}}}


def judge(kind: str, document: dict[str, Any]) -> tuple[str, str]:
    """Health and message."""
    script = yaml.safe_load(CONFIG.read_text())["data"][f"resource.customizations.health.{kind}"]
    lua = lua51.LuaRuntime(register_eval=False)
    lua.globals().obj = lua.table_from(document, recursive=True)
    found = lua.execute(script)
    return found["status"], found["message"] or ""


def health(world: World) -> tuple[str, str]:
    return judge(EXPERIMENT, world.document)


def test_what_no_operator_has_seen_progresses() -> None:
    assert judge(EXPERIMENT, build_document())[0] == "Progressing"


@pytest.mark.parametrize("spec", [{}, OUTPUT], ids=["a training", "a table"])
def test_a_run_progresses_is_healthy_and_stays_so(spec: dict[str, Any]) -> None:
    world = World(build_document(**spec), unready={"data-workers"}, waiting="no node is free")
    world.settle()
    said, message = health(world)
    assert said == "Progressing"
    assert_told(message, "WaitingForPods: … no node is free")
    world.unready.clear()
    world.settle()
    assert health(world)[0] == "Healthy"
    world.end_job("SUCCEEDED")
    world.settle()
    said, message = health(world)
    assert said == "Healthy"
    assert message.startswith("Succeeded")


def test_an_edit_is_progress_until_it_was_looked_at() -> None:
    world = running()
    world.edit(dataset={"parquet": {"uri": "u/"}}, updatePolicy="Restart")
    assert health(world)[0] == "Progressing"
    world.settle()
    assert health(world)[0] == "Healthy"


def test_an_edit_that_is_refused_is_a_fault_though_the_run_goes_on() -> None:
    world = running()
    world.edit(pipeline=[{"filter": "clicks >"}])
    world.settle()
    said, message = health(world)
    assert said == "Degraded"
    assert message.startswith("InvalidSpec")


def test_a_failure_that_is_tried_again_progresses_and_the_last_is_a_fault() -> None:
    world = running(backoffLimit=1)
    world.end_job("FAILED", message="boom", exit_code=1)
    world.step()
    assert health(world)[0] == "Progressing"
    world.step(60)
    world.settle()
    world.end_job("FAILED", message="boom", exit_code=1)
    world.settle()
    said, message = health(world)
    assert said == "Degraded"
    assert message.startswith("BackoffLimitExceeded")


def test_who_suspends_sees_it() -> None:
    world = running()
    world.edit(suspend=True)
    world.settle()
    assert health(world)[0] == "Suspended"


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({}, "Healthy"),
        ({"state": "ready", "readyWorkerReplicas": 3, "desiredWorkerReplicas": 3}, "Healthy"),
        ({"state": "suspended"}, "Suspended"),
        ({"state": "", "conditions": [{"type": "HeadPodReady", "status": "False"}]}, "Progressing"),
        (
            {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": "quota"}]},
            "Degraded",
        ),
        ({"observedGeneration": 1, "state": "ready"}, "Progressing"),
    ],
)
def test_a_ray_cluster_is_judged_by_what_kuberay_says(status: dict[str, Any], said: str) -> None:
    document = {
        "metadata": {"generation": 2},
        "status": {"observedGeneration": 2, "state": "ready"} | status,
    }
    assert judge(RAY_CLUSTER, document)[0] == said
