"""Conditions and events report what the operator or the API server refuses."""

import json
from typing import Any

import pytest
from reconcile_stage import Stage, play

from dataset_operator.errors import KubeRefused
from dataset_operator.status import find_condition
from tools.cluster.box import Box

pytestmark = pytest.mark.usefixtures("played")


def events(stage: Stage, reason: str) -> list[tuple[str, str]]:
    """Type and message of the experiment's events of a reason."""
    about = f"reason={reason},involvedObject.kind=DatasetExperiment"
    listed = stage.box.kubectl(
        "get", "events", "-n", stage.namespace, "--field-selector", about, "-o", "json"
    )
    return [(event["type"], event["message"]) for event in json.loads(listed)["items"]]


async def condition(stage: Stage, kind: str) -> dict[str, Any]:
    found = find_condition(await stage.status(), kind)
    assert found is not None
    return dict(found)


def test_a_text_that_is_no_expression_is_refused_before_a_cluster_is_made(
    box: Box, namespace: str
) -> None:
    async def story(stage: Stage) -> None:
        stage.apply(pipeline=[{"filter": {"where": "price > and clicks"}}])
        said = await stage.until("Accepted", "False", "InvalidSpec")
        assert "spec.pipeline[0].filter.where: " in said["message"]
        [(kind, _)] = events(stage, "InvalidSpec")
        assert kind == "Warning"
        owner = await stage.owner()
        assert await stage.reconciler.kube.get("RayCluster", namespace, owner.ray_cluster) is None
        await stage.train(pipeline=[{"filter": {"where": "price > 0 and clicks > 0"}}])

    play(box, namespace, story)


def test_pods_without_a_node_are_one_warning(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        huge = {"requests": {"memory": "900Ti"}, "limits": {"memory": "900Ti"}}
        stage.apply(trainers={"resources": huge})
        said = await stage.until("ClusterReady", "False", "WaitingForPods")
        while "Insufficient memory" not in said["message"]:
            said = await stage.until("ClusterReady", "False", "WaitingForPods")
        for _ in range(3):
            await stage.step()
        [warning] = [m for kind, m in events(stage, "WaitingForPods") if kind == "Warning"]
        assert warning

    play(box, namespace, story)


@pytest.mark.slow
def test_a_part_that_is_refused_while_the_cluster_is_up_is_said_and_made_once_it_may_be(
    box: Box, namespace: str
) -> None:
    async def story(stage: Stage) -> None:
        await stage.train()
        quota = "count/networkpolicies.networking.k8s.io=0,count/poddisruptionbudgets.policy=0"
        box.kubectl("create", "quota", "none", f"--hard={quota}", "-n", namespace)
        jsonpath = "--for=jsonpath={.status.hard}"
        box.kubectl("wait", jsonpath, "-n", namespace, "resourcequota/none", "--timeout=60s")
        box.kubectl("delete", "networkpolicy", "--all", "-n", namespace)
        for _ in range(3):
            with pytest.raises(KubeRefused, match="exceeded quota"):
                await stage.step()
            said = await condition(stage, "ClusterReady")
            assert (said["status"], said["reason"]) == ("True", "OwnedObjectRefused")
            assert "networkpolicies" in said["message"]
        assert [kind for kind, _ in events(stage, "OwnedObjectRefused")] == ["Warning"]
        assert (await stage.status())["phase"] == "Training"  # nobody is stopped for it

        box.kubectl("delete", "resourcequota", "none", "-n", namespace)
        await stage.until("ClusterReady", "True", "PodsReady")

    play(box, namespace, story)


@pytest.mark.slow
def test_a_submission_that_ray_refuses_is_an_attempt_that_failed(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        stage.ray.refuses = "TypeError: entrypoint must be a string"
        stage.apply()
        said = await stage.until("Training", "False", "Retrying")
        assert "(JobFailed)" in said["message"]
        assert stage.ray.refuses in said["message"]
        stage.ray.refuses = ""
        await stage.until("Training", "True", "Running")
        status = await stage.status()
        assert (status["attempt"], status["failures"]) == (2, 1)

    play(box, namespace, story)
