"""A stand-in for Kueue writes to a RayCluster as Kueue's documentation says.

No real Kueue runs here. It keeps `spec.suspend` until a cluster is admitted, puts the chosen
nodes and tolerations into the templates as it is, and takes them out again when it evicts it
(https://kueue.sigs.k8s.io/docs/tasks/run/rayclusters/, pkg/podset of its source).
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest
from reconcile_stage import DEADLINE_SECONDS, POLL_SECONDS, Stage, play

from tools.cluster.box import Box, KubectlError

pytestmark = pytest.mark.usefixtures("played")

ADMITTED = {
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "reserved", "operator": "Exists"}],
}
LABELS = {"kueue.x-k8s.io/queue-name": "gpus", "kueue.x-k8s.io/priority-class": "research"}


@dataclass(frozen=True)
class Kueue:
    """As far as it writes to a RayCluster."""

    stage: Stage

    async def write(self, suspend: bool, added: dict[str, Any]) -> None:
        """Update the whole object, as Kueue does; again if KubeRay wrote meanwhile."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not await self._update(suspend, added):
                await asyncio.sleep(POLL_SECONDS)

    async def _update(self, suspend: bool, added: dict[str, Any]) -> bool:
        cluster = await self.stage.ray_cluster()
        spec = cluster["spec"]
        spec["suspend"] = suspend
        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
            for field in ADMITTED:
                group["template"]["spec"].pop(field, None)
            group["template"]["spec"].update(added)
        command = ("replace", "--field-manager=kueue", "-f", "-")
        try:
            self.stage.box.kubectl(*command, stdin=json.dumps(cluster))
        except KubectlError as error:
            if "Conflict" not in str(error):
                raise
            return False
        return True


async def templates(stage: Stage) -> list[dict[str, Any]]:
    spec = (await stage.ray_cluster())["spec"]
    groups = (spec["headGroupSpec"], *spec["workerGroupSpecs"])
    return [group["template"]["spec"] for group in groups]


@pytest.mark.slow
def test_a_queue_has_the_last_word_on_when_and_where_a_cluster_runs(
    box: Box, namespace: str
) -> None:
    async def story(stage: Stage) -> None:
        kueue = Kueue(stage)
        workers = {"minReplicas": 1, "maxReplicas": 2}
        stage.apply(dataWorkers=workers)
        words = [f"{name}={value}" for name, value in LABELS.items()]
        box.kubectl("label", "dsexp", "clicks", "-n", namespace, *words)
        await stage.step()
        metadata = (await stage.ray_cluster())["metadata"]
        assert LABELS.items() <= metadata["labels"].items()

        # Its webhook does so as the cluster is made; KubeRay may have begun with pods here.
        await kueue.write(suspend=True, added={})
        labels = f"ray.io/cluster={metadata['name']}"
        box.kubectl("wait", "--for=delete", "pod", "-n", namespace, "-l", labels, "--timeout=60s")
        said = await stage.until("ClusterReady", "False", "WaitingForQueue")
        assert " gpus " in said["message"]
        for _ in range(5):
            await stage.step()
        assert (await stage.ray_cluster())["spec"]["suspend"] is True
        assert stage.ray.jobs == {}

        await kueue.write(suspend=False, added=ADMITTED)
        await stage.until("Training", "True", "Running")
        admitted = await stage.ray_cluster()
        for _ in range(3):
            await stage.step()
        assert (await stage.ray_cluster())["spec"] == admitted["spec"]

        stage.apply(dataWorkers=workers | {"minReplicas": 2, "maxReplicas": 3})
        await stage.step()
        groups = (await stage.ray_cluster())["spec"]["workerGroupSpecs"]
        assert [group["maxReplicas"] for group in groups] == [1, 3]
        for template in await templates(stage):
            assert ADMITTED.items() <= template.items()

    play(box, namespace, story)


def test_what_a_queue_takes_back_while_it_trains_resumes_and_is_no_failure(
    box: Box, namespace: str
) -> None:
    async def story(stage: Stage) -> None:
        kueue = Kueue(stage)
        stage.apply(backoffLimit=0)
        await stage.until("Training", "True", "Running")
        first = await stage.status()

        await kueue.write(suspend=True, added={})
        await stage.until("Training", "False", "WaitingForQueue")
        labels = f"ray.io/cluster={(await stage.owner()).ray_cluster}"
        box.kubectl("wait", "--for=delete", "pod", "-n", namespace, "-l", labels, "--timeout=60s")
        await stage.until("ClusterReady", "False", "WaitingForQueue")
        assert len(stage.ray.jobs) == 1

        await kueue.write(suspend=False, added=ADMITTED)
        await stage.until("Training", "True", "Running")
        status = await stage.status()
        assert status["attempt"] == first["attempt"] + 1
        assert status["run"] == first["run"]
        assert status.get("failures", 0) == 0

    play(box, namespace, story)


@pytest.mark.slow
def test_a_priority_class_is_taken_along_and_one_that_is_not_there_is_told(
    box: Box, namespace: str
) -> None:
    async def story(stage: Stage) -> None:
        absent = {"spec": {"priorityClassName": "not-there"}}
        stage.apply(trainers={"template": absent})
        said = ""
        while "no PriorityClass with name not-there was found" not in said:
            said = (await stage.until("ClusterReady", "False", "WaitingForPods"))["message"]
        there = {"spec": {"priorityClassName": "system-cluster-critical"}}
        stage.apply(trainers={"template": there})
        await stage.until("Training", "True", "Running")
        pods = await stage.reconciler.kube.list_objects(
            "Pod", namespace, "experiments.lastmile.dev/role=trainers"
        )
        assert {pod["spec"]["priority"] for pod in pods} == {2_000_000_000}

    play(box, namespace, story)
