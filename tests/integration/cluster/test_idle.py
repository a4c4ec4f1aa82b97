"""An experiment that does not run and does not change costs the API server no write."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from reconcile_stage import Stage, stage_of

from tools.cluster.box import Box

NUM_LOOKS = 3


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


IDLE: dict[str, Callable[[Stage], Awaitable[None]]] = {
    "suspended": be_suspended,
    "complete": be_complete,
    "refused": be_refused,
}


@pytest.mark.parametrize("state", IDLE)
def test_who_does_not_run_and_does_not_change_is_not_written(
    state: str, box: Box, namespace: str
) -> None:
    asked: list[str] = []

    def note(method: str, path: str, status: int, seconds: float) -> None:
        asked.append(method)

    async def story() -> None:
        async with stage_of(box, namespace, observe=note) as stage:
            await IDLE[state](stage)
            await stage.step()  # what its last write announced
            asked.clear()
            for _ in range(NUM_LOOKS):
                await stage.step()

    asyncio.run(story())
    assert len(asked) >= NUM_LOOKS
    assert set(asked) == {"GET"}
