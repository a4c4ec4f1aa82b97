"""Passes against a real API server and the real KubeRay operator; the Jobs API is a stand-in."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from dataset_operator.errors import KubeConflict
from dataset_operator.kube.client import KubeClient
from dataset_operator.names import Owner
from dataset_operator.ray.jobs import EXPERIMENT_ENV, HttpRayJobs
from dataset_operator.reconcile import Reconciler
from dataset_operator.settings import parse_settings
from dataset_operator.status import find_condition
from dataset_operator.testing import StandInRay
from pipeline_runtime.config import API_VERSION, KIND
from tools.cluster.box import Box

CRD = Path(__file__).parents[3] / "crds" / "datasetexperiments.yaml"
NAME = "clicks"
POLL_SECONDS = 0.2
DEADLINE_SECONDS = 120.0  # each step is there within seconds on an idle machine
SMALL = {"requests": {"cpu": "100m", "memory": "100Mi"}, "limits": {"memory": "100Mi"}}
SETTINGS = parse_settings(
    {
        "runtimeImage": "example.com/lastmile:none",
        "resources": {"head": SMALL, "trainers": SMALL, "dataWorkers": SMALL},
    }
)


@pytest.fixture(scope="module", autouse=True)
def installed(box: Box) -> None:
    """Our API on a cluster that has KubeRay."""
    box.kubectl("apply", "--server-side", "-f", str(CRD))
    box.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(CRD))
    if "rayclusters.ray.io" not in box.kubectl("api-resources", "--cached=false", "-o", "name"):
        pytest.skip("the existing cluster has no KubeRay")


@dataclass(slots=True)
class Stage:
    """An experiment in a namespace of its own, a reconciler, and the Ray that it finds."""

    box: Box
    namespace: str
    reconciler: Reconciler
    ray: StandInRay

    def apply(self, **spec: Any) -> None:
        document = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": NAME, "namespace": self.namespace},
            "spec": {"dataset": {"parquet": {"uri": "t/"}}, **spec},
        }
        strict = ("--server-side", "--force-conflicts", "--validate=strict", "-f", "-")
        self.box.kubectl("apply", *strict, stdin=json.dumps(document))

    async def experiment(self) -> dict[str, Any] | None:
        return await self.reconciler.kube.get(KIND, self.namespace, NAME)

    async def status(self) -> dict[str, Any]:
        document = await self.experiment()
        return (document or {}).get("status", {})

    async def step(self) -> float | None:
        """One pass; a stale look is followed by another, as the operator would."""
        try:
            return await self.reconciler.reconcile(self.namespace, NAME)
        except KubeConflict:
            return 0.0

    async def until(self, kind: str, status: str, reason: str) -> dict[str, Any]:
        """Pass after pass, until a condition is so."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                await self.step()
                found = find_condition(await self.status(), kind)
                if found and (found["status"], found["reason"]) == (status, reason):
                    return dict(found)
                await asyncio.sleep(POLL_SECONDS)

    async def until_gone(self, kind: str, name: str) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while await self.reconciler.kube.get(kind, self.namespace, name):
                await self.step()
                await asyncio.sleep(POLL_SECONDS)

    async def owner(self) -> Owner:
        document = await self.experiment()
        assert document is not None
        uid = document["metadata"]["uid"]
        return Owner(name=NAME, namespace=self.namespace, uid=uid)

    def only_job(self) -> dict[str, Any]:
        [job] = self.ray.jobs.values()
        return job


@asynccontextmanager
async def stage_of(box: Box, namespace: str) -> AsyncIterator[Stage]:
    configuration = Configuration()
    await config.load_kube_config(str(box.kubeconfig), client_configuration=configuration)
    async with (
        ApiClient(configuration) as client,
        aiohttp.ClientSession() as session,
        StandInRay(token="") as ray,
    ):

        def connect(owner: Owner, token: str) -> HttpRayJobs:
            ray.token = ray.token or token
            return HttpRayJobs(session=session, url=ray.url, token=token)

        reconciler = Reconciler(kube=KubeClient(client), connect=connect, settings=SETTINGS)
        yield Stage(box=box, namespace=namespace, reconciler=reconciler, ray=ray)


def play(box: Box, namespace: str, story: Callable[[Stage], Any]) -> None:
    async def run() -> None:
        async with stage_of(box, namespace) as stage:
            await story(stage)

    asyncio.run(run())


def test_an_experiment_trains_in_a_ray_cluster_and_completes(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        stage.apply(dataWorkers={"minReplicas": 2})
        await stage.until("Training", "True", "Running")
        owner = await stage.owner()
        status = await stage.status()
        assert status["dataWorkers"] == {
            "currentReplicas": 2,
            "readyReplicas": 2,
            "desiredReplicas": 2,
        }
        assert status["phase"] == "Training"
        job = stage.only_job()
        assert job["submission_id"] == owner.submission_id(1)
        sent = json.loads(job["runtime_env"]["env_vars"][EXPERIMENT_ENV])
        assert sent["spec"]["dataset"] == {"parquet": {"uri": "t/"}}
        secret = await stage.reconciler.kube.get("Secret", namespace, owner.token_secret)
        assert secret is not None
        token = base64.b64decode(secret["data"]["auth_token"]).decode()
        assert token == stage.ray.token
        assert token not in json.dumps(await stage.experiment())

        stage.ray.end(job["submission_id"], "SUCCEEDED")
        await stage.until("Complete", "True", "Succeeded")
        await stage.until_gone("RayCluster", owner.ray_cluster)
        document = await stage.experiment()
        assert document is not None
        assert not document["metadata"].get("finalizers")
        box.kubectl("wait", "--for=condition=Complete", "-n", namespace, f"dsexp/{NAME}")
        # A finished experiment is written no more.
        before = document["metadata"]["resourceVersion"]
        assert await stage.step() is None
        again = await stage.experiment()
        assert again is not None
        assert again["metadata"]["resourceVersion"] == before

    play(box, namespace, story)


def test_a_lost_answer_submits_no_second_job(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        stage.apply()
        await stage.until("ClusterReady", "True", "PodsReady")
        stage.ray.answers_lost = 3
        await stage.until("Training", "True", "Running")
        assert (await stage.status())["attempt"] == 1
        assert len(stage.ray.jobs) == 1

    play(box, namespace, story)


def test_a_deleted_experiment_stops_its_driver_and_takes_everything_along(
    box: Box, namespace: str
) -> None:
    async def story(stage: Stage) -> None:
        stage.apply()
        await stage.until("Training", "True", "Running")
        owner = await stage.owner()
        box.kubectl("delete", "dsexp", NAME, "-n", namespace, "--wait=false")
        await stage.until_gone(KIND, NAME)
        assert stage.only_job()["status"] == "STOPPED"
        await stage.until_gone("RayCluster", owner.ray_cluster)
        await stage.until_gone("Secret", owner.token_secret)

    play(box, namespace, story)


def test_a_cluster_deleted_by_hand_is_made_again_and_counts_as_a_failure(
    box: Box, namespace: str
) -> None:
    async def story(stage: Stage) -> None:
        stage.apply()
        await stage.until("Training", "True", "Running")
        owner = await stage.owner()
        box.kubectl("delete", "raycluster", owner.ray_cluster, "-n", namespace, "--wait=true")
        stage.ray.crash()
        found = await stage.until("Training", "False", "Retrying")
        assert "(ClusterLost)" in found["message"]
        await stage.until("Training", "True", "Running")
        status = await stage.status()
        assert (status["attempt"], status["failures"]) == (2, 1)
        assert "--resume" in stage.only_job()["entrypoint"]

    play(box, namespace, story)


def test_suspend_gives_the_cluster_back_and_resume_goes_on(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        stage.apply()
        await stage.until("Training", "True", "Running")
        owner = await stage.owner()
        stage.apply(suspend=True)
        await stage.until("Suspended", "True", "SuspendedBySpec")
        await stage.until_gone("RayCluster", owner.ray_cluster)
        stage.ray.crash()
        stage.apply(suspend=False)
        await stage.until("Training", "True", "Running")
        status = await stage.status()
        assert (status["attempt"], status["failures"]) == (2, 0)

    play(box, namespace, story)


def test_pods_that_find_no_node_are_said_in_the_schedulers_words(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        huge = {"requests": {"memory": "900Ti"}, "limits": {"memory": "900Ti"}}
        stage.apply(trainers={"resources": huge})
        found = await stage.until("ClusterReady", "False", "WaitingForPods")
        while "Insufficient memory" not in found["message"]:
            found = await stage.until("ClusterReady", "False", "WaitingForPods")
        stage.apply(trainers={"resources": huge}, preRunningDeadlineSeconds=1)
        failed = await stage.until("Failed", "True", "PreRunningDeadlineExceeded")
        assert "preRunningDeadlineSeconds (1)" in failed["message"]
        assert "Insufficient memory" in failed["message"]

    play(box, namespace, story)


def test_a_guard_that_was_deleted_by_hand_comes_back(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        stage.apply()
        await stage.until("Training", "True", "Running")
        owner = await stage.owner()
        box.kubectl("delete", "networkpolicy,pdb", "--all", "-n", namespace)
        await stage.step()
        for kind, name in owner.guards:
            assert await stage.reconciler.kube.get(kind, namespace, name) is not None

    play(box, namespace, story)
