"""The operator as it runs: it watches a real API server, and everything follows from `apply`."""

import asyncio
import json

import pytest
from operator_stage import comes, operated, settles
from reconcile_stage import DEADLINE_SECONDS, NAME, POLL_SECONDS

from tools.cluster.box import Box


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
