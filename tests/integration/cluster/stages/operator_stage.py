"""The operator at work on a stage: it watches by itself, the test only applies and waits."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import kopf
from reconcile_stage import DEADLINE_SECONDS, POLL_SECONDS, Stage, stage_of

from dataset_operator.handlers import build_kopf_settings
from dataset_operator.scheduling.passes import Passes
from dataset_operator.serve import serving
from dataset_operator.status import find_condition
from dataset_operator.telemetry.metrics import OperatorMetrics
from tools.cluster.box import Box


@asynccontextmanager
async def operated(
    box: Box, namespace: str, metrics: OperatorMetrics | None = None
) -> AsyncIterator[tuple[Stage, Passes]]:
    async with (
        stage_of(box, namespace) as stage,
        serving(stage.reconciler, [namespace], metrics=metrics) as passes,
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


async def eventually(is_so: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not is_so():
            await asyncio.sleep(POLL_SECONDS)


def impatient() -> kopf.OperatorSettings:
    """Build the operator's settings with one short retry, since Kopf repeats refused requests."""
    settings = build_kopf_settings()
    settings.networking.error_backoffs = (0.1,)
    return settings
