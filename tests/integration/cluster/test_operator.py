"""The operator as it runs: it watches a real API server, and everything follows from `apply`."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from reconcile_stage import DEADLINE_SECONDS, NAME, POLL_SECONDS, Stage, stage_of

from dataset_operator.passes import Passes
from dataset_operator.serve import serving
from dataset_operator.status import find_condition
from tools.cluster.box import Box


@asynccontextmanager
async def operated(box: Box, namespace: str) -> AsyncIterator[tuple[Stage, Passes]]:
    async with (
        stage_of(box, namespace) as stage,
        serving(stage.reconciler, [namespace]) as passes,
    ):
        yield stage, passes


async def comes(stage: Stage, kind: str, status: str, reason: str) -> None:
    """Wait without a hand in it."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            found = find_condition(await stage.status(), kind)
            if found and (found["status"], found["reason"]) == (status, reason):
                return
            await asyncio.sleep(POLL_SECONDS)


async def settles(passes: Passes) -> int:
    """Wait until no pass has begun for a second; how many there were."""
    count = -1
    while count != passes.count:
        count = passes.count
        await asyncio.sleep(1)
    return count


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
            events = json.loads(box.kubectl("get", "events", "-n", namespace, "-o", "json"))
            told = [
                (event["type"], event["reason"])
                for event in events["items"]
                if event["involvedObject"]["kind"] == "DatasetExperiment"
            ]
            assert ("Normal", "Running") in told
            assert ("Warning", "BackoffLimitExceeded") in told
            assert len(told) == len(set(told)), "an event is told once"

            box.kubectl("delete", "dsexp", NAME, "-n", namespace, "--wait=false")
            async with asyncio.timeout(DEADLINE_SECONDS):
                while await stage.experiment() is not None:
                    await asyncio.sleep(POLL_SECONDS)

    asyncio.run(story())
