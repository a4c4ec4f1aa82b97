"""A node is drained through the head alone, of a real Ray and of the stand-in for it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from heads import DEADLINE_SECONDS, POLL_SECONDS, Head, Open, open_real, play
from ray_heads import RealRay, running_node

from dataset_operator.errors import RayUnreachable
from dataset_operator.kube.execute import execute
from dataset_operator.observed import Observed
from dataset_operator.plan.outcome import Decision, Drain
from dataset_operator.ray.nodes import RayNode
from dataset_operator.settings import parse_settings
from dataset_operator.testing import LIES, StandInRay
from pipeline_runtime.config import ExperimentStatus

DRAIN_SECONDS = 60


@asynccontextmanager
async def open_stand_in() -> AsyncIterator[Head]:
    nodes = {"0a" * 28: "ALIVE", "0b" * 28: "ALIVE"}
    async with StandInRay(token="t", nodes=nodes) as ray, aiohttp.ClientSession() as session:
        yield Head(session=session, urls=ray.urls, token=ray.token)


@pytest.fixture
def data_worker(real_ray: RealRay, tmp_path: Path) -> Iterator[None]:
    """Run a second node of the real cluster."""
    with running_node(real_ray, tmp_path / "worker.log", num_cpus=1):
        yield


REAL = pytest.param("ray", marks=pytest.mark.slow)


@pytest.fixture(params=["stand-in", "ray"])
def head(request: pytest.FixtureRequest) -> Open:
    if request.param == "stand-in":
        return open_stand_in
    request.getfixturevalue("data_worker")
    return partial(open_real, request.getfixturevalue("real_ray"))


async def living(ray: Head, count: int) -> list[RayNode]:
    """The nodes that live, once there are so many."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            found = [node for node in await ray.jobs.nodes() if node.is_alive]
            if len(found) == count:
                return found
            await asyncio.sleep(POLL_SECONDS)


def test_a_drained_node_goes_and_the_others_stay(head: Open) -> None:
    async def story(ray: Head) -> None:
        [worker] = [node.id for node in await living(ray, 2) if not node.is_head]
        job = f"drain-{secrets.token_hex(4)}"
        for _ in range(2):  # as after a lost answer
            await ray.jobs.drain(job, [worker], deadline_seconds=DRAIN_SECONDS, why="it's not idle")
        done = await ray.until(job, "SUCCEEDED", "FAILED")
        assert done.status == "SUCCEEDED", await ray.jobs.logs(job)
        [left] = await living(ray, 1)
        assert left.is_head

    play(head, story)


@pytest.mark.parametrize("head", ["stand-in", REAL], indirect=True)
@pytest.mark.parametrize(
    ("node", "status"),
    [("ab" * 28, "SUCCEEDED"), ("zz", "FAILED")],
    ids=["a node that Ray does not know is gone", "no id of a node"],
)
def test_a_drain_of_nobody_touches_nobody(head: Open, node: str, status: str) -> None:
    async def story(ray: Head) -> None:
        before = await living(ray, 2)
        job = f"drain-{secrets.token_hex(4)}"
        await ray.jobs.drain(job, [node], deadline_seconds=DRAIN_SECONDS, why="it is gone")
        assert (await ray.until(job, "SUCCEEDED", "FAILED")).status == status
        assert await living(ray, 2) == before

    play(head, story)


def test_a_victim_that_starts_only_later_is_drained_too() -> None:
    drain = Drain(
        submission_id="drain-0", addresses=("127.0.0.1",), deadline_seconds=DRAIN_SECONDS, why="no"
    )

    async def story() -> None:
        nodes = {"0a" * 28: "ALIVE"}
        async with StandInRay(token="t", nodes=nodes) as ray, aiohttp.ClientSession() as session:
            jobs = Head(session=session, urls=ray.urls, token="t").jobs
            kube: Any = None  # nothing is written
            metadata = {"name": "e", "namespace": "n", "uid": "0" * 32}
            settings = parse_settings({"runtimeImage": "runtime:1"})
            observed = Observed(document={"metadata": metadata}, settings=settings)
            decision = Decision(status=ExperimentStatus(), has_finalizer=False, drains=(drain,))
            told = []
            for node in ("0a", "0a", "0b", "0b"):
                ray.nodes.setdefault(node * 28, "ALIVE")
                await execute(kube, jobs, observed, decision)
                told.append((set(ray.nodes.values()), len(ray.jobs)))
        assert told == [({"DEAD"}, 1), ({"DEAD"}, 1), ({"DEAD"}, 2), ({"DEAD"}, 2)]

    asyncio.run(story())


@pytest.mark.parametrize("lie", LIES)
def test_no_lie_is_taken_for_nodes(lie: str) -> None:
    async def story() -> None:
        async with StandInRay(token="t", lie=lie) as ray, aiohttp.ClientSession() as session:
            with pytest.raises(RayUnreachable):
                await Head(session=session, urls=ray.urls, token="t").jobs.nodes()

    asyncio.run(story())
