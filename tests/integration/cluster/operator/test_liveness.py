"""An operator whose watch has ended says so where the kubelet asks, until another one watches."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from operator_stage import eventually
from reconcile_stage import NAME, Stage, stage_of

from dataset_operator.errors import RayUnreachable
from dataset_operator.serve import serving
from dataset_operator.telemetry.freshness import DEAD_SECONDS, compare_forever
from dataset_operator.telemetry.metrics import OperatorMetrics
from dataset_operator.telemetry.probes import answering
from dataset_operator.telemetry.watched import Watched
from tools.cluster.box import Box

pytestmark = pytest.mark.usefixtures("kuberay")

LIST_SECONDS = 0.2  # in place of a minute


class Clock:
    """The process's own, of which a while may be skipped."""

    skipped = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.skipped


@asynccontextmanager
async def probed(stage: Stage, metrics: OperatorMetrics) -> AsyncIterator[str]:
    """Serve the probes of a process beside its watches; yield their URL."""
    listing = compare_forever(
        stage.reconciler.kube, [stage.namespace], metrics.watched, LIST_SECONDS
    )
    async with answering(metrics, host="127.0.0.1", port=0) as port, asyncio.TaskGroup() as tasks:
        task = tasks.create_task(listing)
        yield f"http://127.0.0.1:{port}"
        task.cancel()


async def answer(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


def test_a_process_whose_watch_has_ended_is_not_healthy_until_another_watches(
    box: Box, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(box.kubeconfig))
    clock = Clock()
    watched = Watched(clock=clock)
    metrics = OperatorMetrics(watched)

    async def story() -> None:
        async with stage_of(box, namespace) as stage, probed(stage, metrics) as url:
            async with serving(stage.reconciler, [namespace], metrics=metrics):
                stage.apply()
                await eventually(lambda: watched.event_age_seconds is not None)

            stage.apply(backoffLimit=7)
            await eventually(lambda: watched.find_oldest_missed() is not None)
            assert await answer(f"{url}/healthz") == (200, "ok\n")  # it may still come

            clock.skipped += DEAD_SECONDS
            status, said = await answer(f"{url}/healthz")
            assert status == 503
            assert f"{namespace}/{NAME}" in said

            async with serving(stage.reconciler, [namespace], metrics=metrics):
                await eventually(lambda: watched.find_oldest_missed() is None)
                assert await answer(f"{url}/healthz") == (200, "ok\n")

    asyncio.run(story())


@pytest.mark.slow
def test_watches_that_end_leave_the_other_tasks_of_the_process_alone(
    box: Box, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reconcile pass may fail, or take long, while the watches stop."""
    monkeypatch.setenv("KUBECONFIG", str(box.kubeconfig))
    ending = asyncio.Event()

    async def fail() -> None:
        await ending.wait()
        raise RayUnreachable("GET /metrics: Server disconnected")

    async def story() -> None:
        async with stage_of(box, namespace) as stage:
            async with serving(stage.reconciler, [namespace]):
                failing = asyncio.create_task(fail())
                lasting = asyncio.create_task(asyncio.Event().wait())
                ending.set()
            with pytest.raises(RayUnreachable):
                await failing
            assert not lasting.done()
            lasting.cancel()

    asyncio.run(story())
