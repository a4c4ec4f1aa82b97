"""The operator as it runs: it watches a real API server, and everything follows from `apply`."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from operator_stage import comes, operated, settles
from reconcile_stage import DEADLINE_SECONDS, NAME, POLL_SECONDS, Stage

from dataset_operator.scheduling.passes import Passes
from dataset_operator.telemetry.metrics import OperatorMetrics
from dataset_operator.telemetry.watched import Watched
from pipeline_runtime.config import KIND
from tools.cluster.box import Box

pytestmark = pytest.mark.usefixtures("played")

# The API server begins a change anew when another came between: more writers only cost more.
NUM_WRITERS, NUM_CHANGES = 2, 500


async def events_until(box: Box, namespace: str, wanted: tuple[str, str]) -> list[tuple[str, str]]:
    """Type and reason of the experiment's events, once one is there: it follows the status."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            events = json.loads(box.kubectl("get", "events", "-n", namespace, "-o", "json"))
            told = [
                (event["type"], event["reason"])
                for event in events["items"]
                if event["involvedObject"]["kind"] == "DatasetExperiment"
            ]
            if wanted in told:
                return told
            await asyncio.sleep(POLL_SECONDS)


def test_apply_edit_and_delete_are_all_that_a_user_does(
    box: Box, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(box.kubeconfig))

    async def story() -> None:
        async with operated(box, namespace) as (stage, passes):
            stage.apply()
            await comes(stage, "Training", "True", "Running")

            # A pod that goes is seen, one that is labelled is no news.
            before = await settles(passes)
            owner = await stage.owner()
            cluster = f"ray.io/cluster={owner.ray_cluster}"
            pods = ("pods", "-n", namespace, "-l", cluster)
            for index in range(20):
                box.kubectl("annotate", *pods, f"touched=x{index}", "--overwrite")
            assert await settles(passes) - before <= 40  # 80 events
            attempt = (await stage.status())["attempt"]
            assert attempt == 1

            stage.apply(backoffLimit=0)
            stage.ray.end(stage.only_job()["submission_id"], "FAILED", driver_exit_code=1)
            await comes(stage, "Failed", "True", "BackoffLimitExceeded")
            told = await events_until(box, namespace, ("Warning", "BackoffLimitExceeded"))
            assert ("Normal", "Running") in told
            assert len(told) == len(set(told)), "an event is told once"

            box.kubectl("delete", "dsexp", NAME, "-n", namespace, "--wait=false")
            async with asyncio.timeout(DEADLINE_SECONDS):
                while await stage.experiment() is not None:
                    await asyncio.sleep(POLL_SECONDS)

    asyncio.run(story())


@asynccontextmanager
async def held(passes: Passes) -> AsyncIterator[None]:
    """Passes begin meanwhile, and none comes to its end."""
    reconcile, is_open = passes.reconcile, asyncio.Event()

    async def wait(namespace: str, name: str) -> float | None:
        await is_open.wait()
        return await reconcile(namespace, name)

    passes.reconcile = wait
    try:
        yield
    finally:
        is_open.set()


async def touch(stage: Stage, writer: int) -> None:
    """Change the experiment again and again, while others do so too."""
    for index in range(NUM_CHANGES):
        change = {"metadata": {"annotations": {f"writer-{writer}": str(index)}}}
        await stage.reconciler.kube.patch(KIND, stage.namespace, NAME, change)


async def is_seen(stage: Stage, watched: Watched) -> None:
    """Wait until the experiment as it is now has come through the watch."""
    document = await stage.experiment()
    assert document is not None
    version = document["metadata"]["resourceVersion"]
    watched.compare({(stage.namespace, NAME): version}, time.monotonic())
    async with asyncio.timeout(DEADLINE_SECONDS):
        while watched.find_oldest_missed() is not None:
            await asyncio.sleep(POLL_SECONDS)


@pytest.mark.slow
def test_a_thousand_events_at_once_cost_at_most_two_passes(
    box: Box, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(box.kubeconfig))

    async def story() -> None:
        watched = Watched()
        async with operated(box, namespace, OperatorMetrics(watched)) as (stage, passes):
            stage.apply(suspend=True)  # no clock wakes what is suspended
            await comes(stage, "Suspended", "True", "SuspendedBySpec")
            before = await settles(passes)
            async with held(passes):
                await asyncio.gather(*(touch(stage, writer) for writer in range(NUM_WRITERS)))
                await is_seen(stage, watched)
            assert 1 <= await settles(passes) - before <= 2

    asyncio.run(story())
