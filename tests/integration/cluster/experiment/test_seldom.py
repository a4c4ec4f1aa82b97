"""Rare events in an experiment's life, on the real API server and the real KubeRay."""

from dataclasses import replace

import pytest
from reconcile_stage import NAME, SETTINGS, Stage, play

from dataset_operator.documents import Document
from dataset_operator.errors import KubeConflict
from dataset_operator.kube.execute import execute
from dataset_operator.kube.observe import observe
from dataset_operator.observed import Observed
from dataset_operator.plan import decide
from pipeline_runtime.config import KIND
from tools.cluster.box import Box

pytestmark = pytest.mark.usefixtures("kuberay")


def test_a_run_past_its_deadline_is_stopped_and_deleted_after_its_ttl(
    box: Box, namespace: str
) -> None:
    async def story(stage: Stage) -> None:
        await stage.train()
        owner = await stage.owner()
        stage.apply(activeDeadlineSeconds=1)
        said = await stage.until("Failed", "True", "DeadlineExceeded")
        assert "activeDeadlineSeconds (1)" in said["message"]
        assert stage.only_job()["status"] == "STOPPED"
        await stage.until_gone("RayCluster", owner.ray_cluster)

        before = await stage.child(KIND, NAME)
        stage.apply(activeDeadlineSeconds=1, ttlSecondsAfterFinished=0)
        namesake = await stage.child(KIND, NAME)
        namesake["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
        for other in (before, namesake):
            with pytest.raises(KubeConflict):
                await stage.reconciler.kube.delete_observed(other)
        await stage.until_gone(KIND, NAME)

    play(box, namespace, story)


@pytest.mark.slow
def test_a_cluster_without_its_token_is_recreated_with_another(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        await stage.train()
        owner, first = await stage.owner(), stage.ray.token
        cluster = (await stage.ray_cluster())["metadata"]["uid"]
        box.kubectl("delete", "secret", owner.token_secret, "-n", namespace)
        said = await stage.until("Training", "False", "Retrying")
        assert "(ClusterLost)" in said["message"]
        assert "Secret" in said["message"]
        stage.ray.crash()
        stage.ray.token = ""  # the next head has a token of its own
        await stage.until("Training", "True", "Running")
        assert stage.ray.token not in ("", first)
        made = await stage.ray_cluster()
        assert made["metadata"]["uid"] != cluster
        status = await stage.status()
        assert (status["attempt"], status["failures"]) == (2, 1)

    play(box, namespace, story)


def write_number(cluster: Document, number: int) -> Document:
    """Build a merge patch that only applies to the observed version."""
    trainers, workers = cluster["spec"]["workerGroupSpecs"]
    return {
        "metadata": {"resourceVersion": cluster["metadata"]["resourceVersion"]},
        "spec": {"workerGroupSpecs": [trainers, {**workers, "replicas": number}]},
    }


@pytest.mark.slow
def test_a_concurrent_change_of_workers_is_not_overwritten(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        await stage.train(dataWorkers={"maxReplicas": 4})
        stage.apply(dataWorkers={"minReplicas": 2, "maxReplicas": 8})
        kube, owner = stage.reconciler.kube, await stage.owner()
        document = await stage.child(KIND, NAME)
        reconciler = stage.reconciler
        known = Observed(document=document, settings=SETTINGS)
        observed, jobs = await observe(
            kube, reconciler.connect, reconciler.source, known, reconciler.seal
        )
        decision = decide(observed, reconciler.now())
        assert decision.patches

        assert observed.cluster is not None
        seen = dict(observed.cluster.document)
        # A user's write between a pass's observation and its patch.
        written = write_number(seen, 3)
        await kube.patch("RayCluster", namespace, owner.ray_cluster, written)
        with pytest.raises(KubeConflict):
            await execute(kube, jobs, observed, decision)
        patch = write_number(seen, 4)
        with pytest.raises(KubeConflict):
            await kube.patch("RayCluster", namespace, owner.ray_cluster, patch)

        await stage.step()
        cluster = await stage.ray_cluster()
        workers = cluster["spec"]["workerGroupSpecs"][1]
        bounds = [workers[field] for field in ("minReplicas", "replicas", "maxReplicas")]
        assert bounds == [2, 3, 8]

    play(box, namespace, story)


@pytest.mark.slow
def test_changed_settings_of_the_operator_do_not_touch_a_running_cluster(
    box: Box, namespace: str
) -> None:
    async def story(stage: Stage) -> None:
        await stage.train()
        owner = await stage.owner()
        before = (await stage.ray_cluster())["metadata"]
        changed = {"runtime_image": "example.com/lastmile:next", "run_as_user": 2000}
        settings = SETTINGS.model_copy(update=changed)
        stage.reconciler = replace(stage.reconciler, settings=settings)
        for _ in range(3):
            await stage.step()
        after = (await stage.ray_cluster())["metadata"]
        assert (after["uid"], after["generation"]) == (before["uid"], before["generation"])
        status = await stage.status()
        assert (status["phase"], status["run"], status["attempt"]) == ("Training", 1, 1)

        # A new cluster uses the new settings.
        stage.apply(suspend=True)
        await stage.until_gone("RayCluster", owner.ray_cluster)
        stage.ray.crash()
        await stage.train(suspend=False)
        made = await stage.ray_cluster()
        [container] = made["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
        assert container["image"] == changed["runtime_image"]

    play(box, namespace, story)
