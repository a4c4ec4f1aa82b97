"""An experiment that does not run and does not change costs the API server no write."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from reconcile_stage import Stage, stage_of

from tools.cluster.box import Box

NUM_LOOKS = 3
# Passes after its last write: the cluster that it announced may still be changing.
MAX_SETTLING = 20


async def be_suspended(stage: Stage) -> None:
    stage.apply(suspend=True)
    await stage.until("Suspended", "True", "SuspendedBySpec")


async def be_complete(stage: Stage) -> None:
    await stage.train(ttlSecondsAfterFinished=3600)
    stage.ray.end(stage.only_job()["submission_id"], "SUCCEEDED")
    await stage.until("Complete", "True", "Succeeded")


async def be_refused(stage: Stage) -> None:
    stage.apply(pipeline=[{"filter": {"where": "price > and clicks"}}])
    await stage.until("Accepted", "False", "InvalidSpec")


@pytest.mark.parametrize(
    "become_idle",
    [
        pytest.param(be_suspended, id="suspended"),
        pytest.param(be_complete, id="complete", marks=pytest.mark.slow),
        pytest.param(be_refused, id="refused", marks=pytest.mark.slow),
    ],
)
def test_an_idle_experiment_is_not_written(
    become_idle: Callable[[Stage], Awaitable[None]], box: Box, namespace: str
) -> None:
    asked: list[str] = []

    def note(method: str, path: str, status: int, seconds: float) -> None:
        asked.append(method)

    async def story() -> None:
        async with stage_of(box, namespace, observe=note) as stage:
            await become_idle(stage)
            for _ in range(MAX_SETTLING):
                asked.clear()
                await stage.step()
                if set(asked) == {"GET"}:
                    break
            asked.clear()
            for _ in range(NUM_LOOKS):
                await stage.step()

    asyncio.run(story())
    assert len(asked) >= NUM_LOOKS
    assert set(asked) == {"GET"}
