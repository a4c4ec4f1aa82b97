"""Edits of an experiment's objects by others, on the real API server and the real KubeRay."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from facts import assert_told
from reconcile_stage import DEADLINE_SECONDS, POLL_SECONDS, Stage, play

from dataset_operator.api import CLUSTER_CORRECTED, RAY_API_VERSION
from dataset_operator.builders.drift import DEFAULTS
from dataset_operator.errors import KubeRefused
from dataset_operator.status import find_condition
from tools.cluster.box import Box

pytestmark = pytest.mark.usefixtures("played")


async def eventually(stage: Stage, holds: Callable[[], Any]) -> None:
    """Pass after pass until it is so."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not await holds():
            await stage.step()
            await asyncio.sleep(POLL_SECONDS)


def patch(stage: Stage, name: str, operations: list[dict[str, Any]]) -> None:
    stage.box.kubectl(
        "patch",
        "raycluster",
        name,
        "-n",
        stage.namespace,
        "--type=json",
        "-p",
        json.dumps(operations),
    )


def test_a_cluster_edited_by_hand_is_put_back_and_a_number_is_taken(
    box: Box, namespace: str
) -> None:
    async def story(stage: Stage) -> None:
        await stage.train(dataWorkers={"minReplicas": 1, "maxReplicas": 4})
        before = (await stage.ray_cluster())["spec"]
        name = (await stage.owner()).ray_cluster
        groups = "/spec/workerGroupSpecs"
        patch(
            stage,
            name,
            [
                {"op": "replace", "path": f"{groups}/1/replicas", "value": 3},
                {"op": "replace", "path": f"{groups}/1/maxReplicas", "value": 70},
                {
                    "op": "replace",
                    "path": f"{groups}/0/template/spec/containers/0/image",
                    "value": "other:1",
                },
                {
                    "op": "add",
                    "path": "/spec/headGroupSpec/template/spec/hostNetwork",
                    "value": True,
                },
                {"op": "add", "path": f"{groups}/1/template/spec/hostPID", "value": True},
            ],
        )
        before["workerGroupSpecs"][1]["replicas"] = 3

        async def is_put_back() -> bool:
            return (await stage.ray_cluster())["spec"] == before

        await eventually(stage, is_put_back)

        async def has_three() -> bool:
            return (await stage.status())["dataWorkers"] == {
                "currentReplicas": 3,
                "readyReplicas": 3,
                "desiredReplicas": 3,
            }

        await eventually(stage, has_three)
        assert (await stage.status())["attempt"] == 1

        # At rest, nothing is written.
        version = (await stage.ray_cluster())["metadata"]["generation"]
        await stage.step()
        assert (await stage.ray_cluster())["metadata"]["generation"] == version

    play(box, namespace, story)


def test_an_edit_of_the_cluster_side_makes_another_cluster_and_resumes(
    box: Box, namespace: str
) -> None:
    async def story(stage: Stage) -> None:
        await stage.train()
        first = (await stage.ray_cluster())["metadata"]["uid"]
        edit = {"env": [{"name": "TEAM", "value": "ads"}], "trainers": {"replicas": 2}}
        stage.apply(**edit)
        await stage.until("Accepted", "True", "ChangePending")
        assert (await stage.ray_cluster())["metadata"]["uid"] == first
        await stage.until("ClusterReady", "True", "PodsReady")  # as many trainers as it was made of
        stage.apply(**edit, updatePolicy="Restart")

        async def runs_again() -> bool:
            return (await stage.status())["attempt"] == 2

        await eventually(stage, runs_again)
        found = await stage.ray_cluster()
        assert found["metadata"]["uid"] != first
        container = found["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
        assert {"name": "TEAM", "value": "ads"} in container["env"]
        status = await stage.status()
        assert (status["run"], status["failures"]) == (1, 0)
        job = status["submission"]["id"]
        assert "--resume" in stage.ray.jobs[job]["entrypoint"]
        assert stage.ray.experiment_of(job)["spec"]["trainers"]["replicas"] == 2
        assert found["spec"]["workerGroupSpecs"][0]["replicas"] == 2

    play(box, namespace, story)


def test_a_template_that_the_api_server_refuses_changes_nothing(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        stage.apply(trainers={"template": {"spec": {"nodeSelectr": {"a": "b"}}}})
        said = await stage.until("Accepted", "False", "InvalidSpec")
        assert "spec.trainers.template" in said["message"]
        assert "nodeSelectr" in said["message"]
        owner = await stage.owner()
        assert await stage.reconciler.kube.get("Secret", namespace, owner.token_secret) is None
        await stage.train(trainers={"template": {"spec": {"nodeSelector": {}}}})

    play(box, namespace, story)


def quota(stage: Stage, **hard: str) -> None:
    document = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "team", "namespace": stage.namespace},
        "spec": {
            "hard": {name.replace("__", "/").replace("_", "."): n for name, n in hard.items()}
        },
    }
    stage.box.kubectl("apply", "-f", "-", stdin=json.dumps(document))
    jsonpath = "--for=jsonpath={.status.hard}"
    stage.box.kubectl("wait", jsonpath, "-n", stage.namespace, "resourcequota/team")


@pytest.mark.slow
def test_a_quota_on_clusters_is_said_and_lifted(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        quota(stage, count__rayclusters_ray_io="0")
        stage.apply()
        said = await stage.until("ClusterReady", "False", "ClusterRefused")
        facts = "… exceeded quota: team … count/rayclusters.ray.io: 1 … 0"
        assert_told(said["message"], facts)
        box.kubectl("delete", "resourcequota", "team", "-n", namespace)
        await stage.until("Training", "True", "Running")

    play(box, namespace, story)


@pytest.mark.slow
def test_a_quota_that_no_dry_run_sees_is_said_too(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        quota(stage, count__configmaps="1")  # the namespace has one already
        stage.apply()
        with pytest.raises(KubeRefused, match="exceeded quota"):
            await stage.step()
        found = find_condition(await stage.status(), "ClusterReady")
        assert found is not None
        assert found["reason"] == "ClusterRefused"
        assert "configmaps" in found["message"]
        box.kubectl("delete", "resourcequota", "team", "-n", namespace)
        await stage.until("Training", "True", "Running")

    play(box, namespace, story)


@pytest.mark.slow
def test_a_quota_on_pods_is_told_with_its_numbers(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        quota(stage, pods="1")
        stage.apply()
        said = ""
        while "exceeded quota" not in said:
            said = (await stage.until("ClusterReady", "False", "WaitingForPods"))["message"]
        assert_told(said, "… exceeded quota: team … pods: 1")

    play(box, namespace, story)


def test_what_bears_our_name_and_is_not_ours_stays(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        stage.apply(suspend=True)
        owner = await stage.owner()
        theirs = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": owner.token_secret, "namespace": namespace},
            "data": {"auth_token": "dGhlaXJz"},
        }
        box.kubectl("create", "-f", "-", stdin=json.dumps(theirs))
        stage.apply(suspend=False)
        said = await stage.until("ClusterReady", "False", "NameCollision")
        assert f"Secret {owner.token_secret}" in said["message"]
        assert await stage.reconciler.kube.get("RayCluster", namespace, owner.ray_cluster) is None
        box.kubectl("delete", "secret", owner.token_secret, "-n", namespace)
        await stage.until("Training", "True", "Running")

    play(box, namespace, story)


def trainer_of(stage: Stage, cluster: str) -> str:
    selector = f"ray.io/cluster={cluster},ray.io/group=trainers"
    names = stage.box.kubectl("get", "pods", "-n", stage.namespace, "-l", selector, "-o", "name")
    return names.strip()


@pytest.mark.slow
def test_a_failure_after_a_trainer_was_lost_says_so(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        await stage.train()
        name = (await stage.owner()).ray_cluster
        await asyncio.sleep(1.1)  # times have whole seconds
        box.kubectl("delete", "-n", namespace, trainer_of(stage, name), "--wait=false")
        stage.ray.end(stage.only_job()["submission_id"], "FAILED", driver_exit_code=1)
        said = await stage.until("Training", "False", "Retrying")
        assert "(NodeLost)" in said["message"]

    play(box, namespace, story)


@pytest.mark.slow
def test_a_failure_after_a_container_ran_out_of_memory_says_what_to_raise(
    box: Box, namespace: str
) -> None:
    async def story(stage: Stage) -> None:
        await stage.train()
        status = await stage.status()
        trainer = trainer_of(stage, (await stage.owner()).ray_cluster)
        killed = {
            "exitCode": 137,
            "reason": "OOMKilled",
            "startedAt": status["submission"]["time"],
            "finishedAt": status["submission"]["time"],
        }
        operations = [
            {
                "op": "add",
                "path": "/status/containerStatuses/0/lastState",
                "value": {"terminated": killed},
            }
        ]
        subresource = ("--subresource=status", "--type=json", "-p", json.dumps(operations))
        box.kubectl("patch", "-n", namespace, trainer, *subresource)
        stage.ray.end(stage.only_job()["submission_id"], "FAILED", driver_exit_code=1)
        said = await stage.until("Training", "False", "Retrying")
        assert "(OutOfMemory)" in said["message"]
        assert "spec.trainers.resources.limits.memory" in said["message"]

    play(box, namespace, story)


@pytest.mark.slow
def test_a_clusters_queue_is_its_experiments(box: Box, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        stage.apply()
        label = ("label", "dsexp", "clicks", "-n", namespace)
        box.kubectl(*label, "kueue.x-k8s.io/queue-name=gpus")
        await stage.until("ClusterReady", "True", "PodsReady")
        metadata = (await stage.ray_cluster())["metadata"]
        assert metadata["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
        assert metadata["annotations"]["kueue.x-k8s.io/elastic-job"] == "true"
        assert (await stage.ray_cluster())["apiVersion"] == RAY_API_VERSION

    play(box, namespace, story)


def test_what_kuberays_crd_adds_by_itself_is_known_to_be_no_drift(box: Box) -> None:
    crd = json.loads(box.kubectl("get", "crd", "rayclusters.ray.io", "-o", "json"))
    [version] = [version for version in crd["spec"]["versions"] if version["name"] == "v1"]
    found = set(find_defaults("spec", version["schema"]["openAPIV3Schema"]["properties"]["spec"]))
    told = {(name, value) for name, value in found if value != ""}
    assert told == {(name, value) for name, values in DEFAULTS.items() for value in values}


@pytest.mark.slow
def test_what_the_api_server_puts_back_each_time_is_not_told_each_time(
    box: Box, namespace: str
) -> None:
    """As a later KubeRay's defaults, or an admission webhook, would."""

    async def story(stage: Stage) -> None:
        await stage.train()
        with default_of_head(box, "enableIngress", value=False):

            async def has_default() -> bool:
                head = (await stage.ray_cluster())["spec"]["headGroupSpec"]
                return head.get("enableIngress") is False

            async with asyncio.timeout(DEADLINE_SECONDS):
                while not await has_default():
                    await asyncio.sleep(POLL_SECONDS)
            await stage.step()  # stores the default, which was only shown until now
            before = (await stage.ray_cluster())["metadata"]["resourceVersion"]
            told = times_told(box, stage.namespace)
            await stage.step()
            await stage.step()
            assert (await stage.ray_cluster())["metadata"]["resourceVersion"] == before
        assert times_told(box, stage.namespace) == told <= 1

    play(box, namespace, story)


def times_told(box: Box, namespace: str) -> int:
    """Return how many events say that the operator corrected the RayCluster."""
    events = json.loads(box.kubectl("get", "events", "-n", namespace, "-o", "json"))["items"]
    agreed = [event for event in events if event["reason"] == CLUSTER_CORRECTED]
    return sum(event.get("count", 1) for event in agreed)


@contextmanager
def default_of_head(box: Box, field: str, *, value: bool) -> Iterator[None]:
    """KubeRay's CRD with one more default."""
    crd = json.loads(box.kubectl("get", "crd", "rayclusters.ray.io", "-o", "json"))
    names = [version["name"] for version in crd["spec"]["versions"]]
    head = "schema/openAPIV3Schema/properties/spec/properties/headGroupSpec/properties"
    path = f"/spec/versions/{names.index('v1')}/{head}/{field}/default"
    how = ("patch", "crd", "rayclusters.ray.io", "--type=json", "-p")
    box.kubectl(*how, json.dumps([{"op": "add", "path": path, "value": value}]))
    try:
        yield
    finally:
        box.kubectl(*how, json.dumps([{"op": "remove", "path": path}]))


def find_defaults(name: str, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Fields that have a default, wherever they are, and which."""
    if "default" in schema:
        yield name, schema["default"]
    for field, below in schema.get("properties", {}).items():
        yield from find_defaults(field, below)
    for field in ("items", "additionalProperties"):
        if isinstance(schema.get(field), dict):
            yield from find_defaults(name, schema[field])
