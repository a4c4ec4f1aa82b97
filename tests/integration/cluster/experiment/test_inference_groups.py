"""A group of inference workers is scaled in a real RayCluster by the real KubeRay."""

import asyncio
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from reconcile_stage import DEADLINE_SECONDS, SMALL, Stage, play

from dataset_operator.api import ROLE_LABEL
from dataset_operator.autoscaling.interface import PERIOD_SECONDS
from tools.cluster.box import Box

pytestmark = pytest.mark.usefixtures("played")

GROUP, ROLE = "large", "inference-large"
MODEL = {
    "name": "large",
    "onnx": {"uri": "m"},
    "outputs": [{"name": "score", "type": "float32"}],
    "workerGroup": GROUP,
}
SPEC: dict[str, Any] = {
    "pipeline": [{"predict": {"models": [MODEL]}}],
    "output": {"parquet": {"uri": "scores/"}},
    "dataWorkers": {"minReplicas": 1, "maxReplicas": 1},
    "inferenceWorkers": [
        {"name": GROUP, "maxReplicas": 3, "gpusPerReplica": 0, "resources": SMALL}
    ],
}


@dataclass
class Scored:
    """A run whose driver reports processes that are busy or idle, on a clock of its own."""

    stage: Stage
    waiting: int = 0
    seconds: float = 0.0
    busy: float = 0.0

    async def step(self) -> None:
        """Run the pass of the next period."""
        workers = len(await self.pods())
        self.seconds += PERIOD_SECONDS
        self.busy += workers * PERIOD_SECONDS * (1.0 if self.waiting else 0.1)
        counters = {
            "workers": workers,
            "waiting_requests": self.waiting,
            "rows_total": 100.0 * self.busy,
            "busy_seconds_total": self.busy,
        }
        lines = [f'lastmile_inference_{k}{{group="{GROUP}"}} {v}' for k, v in counters.items()]
        self.stage.ray.metrics = "\n".join(["lastmile_read_ratio 0.1", *lines, ""])
        ahead = timedelta(seconds=self.seconds)
        self.stage.reconciler = replace(
            self.stage.reconciler, now=lambda: datetime.now(UTC) + ahead
        )
        await self.stage.step()

    async def until(self, number: int) -> None:
        """Run passes until so many pods are there, and none is draining."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while len(await self.pods()) != number or (await self.numbers()).get("draining"):
                await self.step()

    async def pods(self) -> set[str]:
        kube, stage = self.stage.reconciler.kube, self.stage
        found = await kube.list_objects("Pod", stage.namespace, f"{ROLE_LABEL}={ROLE}")
        return {pod["metadata"]["name"] for pod in found}

    async def numbers(self) -> dict[str, Any]:
        [numbers] = (await self.stage.status())["inferenceWorkers"]
        return dict(numbers)


def test_pods_are_added_for_waiting_requests_and_drained_when_idle(
    box: Box, namespace: str
) -> None:
    async def story(stage: Stage) -> None:
        stage.apply(**SPEC)
        await stage.until("Writing", "True", "Running")
        run = Scored(stage)
        [first] = await run.pods()
        run.waiting = 5
        await run.until(2)
        run.waiting = 0
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not (await run.numbers()).get("draining"):
                await run.step()
        [victim] = (await run.numbers())["draining"]
        assert victim["name"] in await run.pods() - {first}  # the youngest
        stage.reconciler = replace(stage.reconciler, memories={})  # another operator
        await run.until(1)
        assert await run.pods() == {first}
        [group] = [
            group
            for group in (await stage.ray_cluster())["spec"]["workerGroupSpecs"]
            if group["groupName"] == ROLE
        ]
        assert [group[field] for field in ("minReplicas", "replicas", "maxReplicas")] == [1, 1, 3]
        assert not (group.get("scaleStrategy") or {}).get("workersToDelete")
        status = await stage.status()
        assert (status["attempt"], status["failures"]) == (1, 0)

    play(box, namespace, story)
