"""A cluster and the pod that keeps its history, on the real API server with the real KubeRay.

kwok plays the pods, so what that pod writes is tests/integration/test_history_on_s3.py's; here it
ends as a test says.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from reconcile_stage import DEADLINE_SECONDS, NAME, POLL_SECONDS, SETTINGS, Stage, stage_of

from dataset_operator.api import HISTORY_ANNOTATION, HISTORY_LABEL
from dataset_operator.errors import KubeRefused
from pipeline_runtime.config import KIND
from tools.cluster.box import Box

pytestmark = pytest.mark.usefixtures("played")

KEPT = SETTINGS.model_copy(update={"storage_root": "s3://bucket/team/"})


def play(box: Box, namespace: str, story: Callable[[Stage], Awaitable[None]]) -> None:
    async def run() -> None:
        async with stage_of(box, namespace, settings=KEPT) as stage:
            await stage.train()
            await story(stage)

    asyncio.run(run())


async def until_state(stage: Stage, state: str) -> dict[str, Any]:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            await stage.step()
            history: dict[str, Any] = (await stage.status()).get("history", {})
            if history.get("state") == state:
                return history
            await asyncio.sleep(POLL_SECONDS)


async def until_pod(stage: Stage) -> dict[str, Any]:
    """The short pod, once it is there."""
    owner = await stage.owner()
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            await stage.step()
            found = await history_pods(stage, owner.ray_cluster)
            if found:
                [pod] = found
                return pod
            await asyncio.sleep(POLL_SECONDS)


async def until_no_pod(stage: Stage, cluster: str) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while await history_pods(stage, cluster):
            await stage.step()
            await asyncio.sleep(POLL_SECONDS)


async def history_pods(stage: Stage, cluster: str) -> list[dict[str, Any]]:
    selector = f"{HISTORY_LABEL}={cluster}"
    return await stage.reconciler.kube.list_objects("Pod", stage.namespace, selector)


def end(stage: Stage, pod: dict[str, Any], phase: str, message: str = "") -> None:
    state = {"terminated": {"exitCode": 0 if phase == "Succeeded" else 1, "message": message}}
    container = {"name": "history", "image": "i", "imageID": "i", "ready": False}
    container |= {"restartCount": 0, "state": state}
    status = {"status": {"phase": phase, "containerStatuses": [container]}}
    how = ("--subresource=status", "--type=merge", "-n", stage.namespace, "-p", json.dumps(status))
    stage.box.kubectl("patch", "pod", pod["metadata"]["name"], *how)


def test_a_cluster_goes_when_its_history_is_kept(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        owner, cluster = await stage.owner(), await stage.ray_cluster()
        head = cluster["spec"]["headGroupSpec"]["template"]["spec"]
        [sidecar] = head["initContainers"]
        assert (sidecar["name"], sidecar["restartPolicy"]) == ("lastmile-logs", "Always")
        pods = await stage.reconciler.kube.list_objects("Pod", namespace, "")
        for pod in pods:
            assert "lastmile-logs" in {c["name"] for c in pod["spec"]["initContainers"]}

        stage.ray.end(next(iter(stage.ray.jobs)), "SUCCEEDED")
        await stage.until("Complete", "True", "Succeeded")
        pod = await until_pod(stage)
        payload = json.loads(pod["metadata"]["annotations"][HISTORY_ANNOTATION])
        reasons = {event["reason"] for event in payload["events"]}
        assert {"Submitted", "Succeeded"} <= reasons  # the operator's
        assert "CreatedHeadPod" in reasons  # KubeRay's
        assert len(payload["pods"]) == len(pods)
        assert payload["status"]["phase"] == "Complete"
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert not [v for v in pod["spec"]["volumes"] if "projected" in v]
        policy = await stage.child("NetworkPolicy", owner.history_policy)
        assert policy["spec"]["podSelector"]["matchLabels"] == {HISTORY_LABEL: owner.ray_cluster}
        for _ in range(3):
            await stage.step()
        assert "deletionTimestamp" not in (await stage.ray_cluster())["metadata"]

        end(stage, pod, "Succeeded")
        await until_state(stage, "Kept")
        await stage.until_gone("RayCluster", owner.ray_cluster)
        await until_no_pod(stage, owner.ray_cluster)
        await stage.step()
        assert "podName" not in (await stage.status())["history"]
        document = await stage.child(KIND, NAME)
        assert not document["metadata"].get("finalizers")

    play(box, namespace, story)


@pytest.mark.slow
def test_what_a_pod_failed_by_is_told_and_the_cluster_goes(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        owner = await stage.owner()
        stage.apply(suspend=True)
        pod = await until_pod(stage)
        end(stage, pod, "Failed", "error: s3://bucket: Access Denied")
        history = await until_state(stage, "Failed")
        assert history["message"] == "error: s3://bucket: Access Denied"
        await stage.until_gone("RayCluster", owner.ray_cluster)

        stage.ray.crash()
        await stage.train(suspend=False)  # and goes on as ever
        assert (await stage.status())["attempt"] == 2

    play(box, namespace, story)


@pytest.mark.slow
def test_a_quota_that_has_no_room_for_the_pod_holds_nothing_up(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        owner = await stage.owner()
        number = len(await stage.reconciler.kube.list_objects("Pod", namespace, ""))
        box.kubectl("create", "quota", "full", f"--hard=pods={number}", "-n", namespace)
        used = "--for=jsonpath={.status.used.pods}=" + str(number)
        box.kubectl("wait", used, "quota/full", "-n", namespace, "--timeout=60s")
        stage.ray.end(next(iter(stage.ray.jobs)), "SUCCEEDED")
        history = await until_state_despite_refusals(stage, "Failed")
        assert "exceeded quota: full" in history["message"]
        await stage.until_gone("RayCluster", owner.ray_cluster)

    play(box, namespace, story)


async def until_state_despite_refusals(stage: Stage, state: str) -> dict[str, Any]:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            try:
                return await until_state(stage, state)
            except KubeRefused:
                await asyncio.sleep(POLL_SECONDS)


@pytest.mark.slow
def test_a_deleted_experiments_history_is_kept_before_it_goes(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        cluster = (await stage.owner()).ray_cluster
        box.kubectl("delete", "dsexp", NAME, "-n", namespace, "--wait=false")
        pod = await until_pod(stage)
        assert await stage.experiment() is not None
        end(stage, pod, "Succeeded")
        await stage.until_gone(KIND, NAME)
        await until_no_pod(stage, cluster)

    play(box, namespace, story)
