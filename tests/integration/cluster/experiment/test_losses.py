"""A pod of a running experiment is lost: the real KubeRay replaces it, the operator tells it."""

import asyncio

import pytest
from reconcile_stage import Stage, play

from tools.cluster.box import Box

pytestmark = pytest.mark.usefixtures("played")


async def lose(stage: Stage, role: str) -> None:
    """Delete a pod of a role as if its node had gone, and wait until KubeRay has replaced it."""
    await asyncio.sleep(1.0)  # pods tell their age in whole seconds: the new one is to be younger
    owner = await stage.owner()
    selector = f"ray.io/cluster={owner.ray_cluster},experiments.lastmile.dev/role={role}"
    here = ("-n", stage.namespace, "-l", selector)
    name = stage.box.kubectl("get", "pods", *here, "-o", "jsonpath={.items[0].metadata.name}")
    at_once = ("--grace-period=0", "--force", "--wait=true")
    stage.box.kubectl("delete", "pod", name, "-n", stage.namespace, *at_once)
    stage.box.kubectl("wait", "pods", *here, "--for=create", "--timeout=120s")
    stage.box.kubectl("wait", "pods", *here, "--for=condition=Ready", "--timeout=120s")


async def cluster_uid(stage: Stage) -> str:
    return str((await stage.ray_cluster())["metadata"]["uid"])


async def check_resumes(stage: Stage, cluster: str) -> None:
    """The next attempt of the same run trains in the same cluster, from the last checkpoint."""
    await stage.until("Training", "True", "Running")
    status = await stage.status()
    assert (status["run"], status["attempt"], status["failures"]) == (1, 2, 1)
    run_id = (await stage.owner()).run_id(1)
    command = stage.ray.jobs[status["submission"]["id"]]["entrypoint"]
    assert command.endswith(f"--run-id {run_id} --resume")
    assert await cluster_uid(stage) == cluster


def test_a_lost_head_is_a_lost_cluster_and_the_next_attempt_resumes(
    box: Box, namespace: str
) -> None:
    async def story(stage: Stage) -> None:
        await stage.train()
        cluster = await cluster_uid(stage)
        await lose(stage, "head")
        stage.ray.crash()  # jobs live in the head's memory
        said = await stage.until("Training", "False", "Retrying")
        assert "(ClusterLost)" in said["message"]
        assert "head" in said["message"]
        await check_resumes(stage, cluster)

    play(box, namespace, story)


def test_a_lost_trainer_fails_the_attempt_and_the_next_resumes(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        await stage.train()
        cluster = await cluster_uid(stage)
        first = stage.only_job()["submission_id"]
        await lose(stage, "trainers")
        stage.ray.end(first, "FAILED", driver_exit_code=1)  # what Ray Train makes of it
        said = await stage.until("Training", "False", "Retrying")
        assert "(NodeLost)" in said["message"]
        await check_resumes(stage, cluster)

    play(box, namespace, story)


def test_a_lost_data_worker_costs_no_attempt(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        await stage.train(dataWorkers={"minReplicas": 2})
        await lose(stage, "data-workers")
        await stage.step()
        status = await stage.status()
        assert status["phase"] == "Training"
        assert (status["attempt"], status["failures"]) == (1, 0)
        assert status["dataWorkers"]["readyReplicas"] == 2
        assert len(stage.ray.jobs) == 1

    play(box, namespace, story)
