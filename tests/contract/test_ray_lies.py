"""A head that is slow, loses answers, crashes or lies: the operator goes on without it.

The stand-in alone: no real Ray can be made to do this.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import aiohttp
import pytest
from heads import RUNS_ON, Head, Story, build_submit
from loopback import free_ports

from dataset_operator.api import DASHBOARD_PORT, RUNTIME_METRICS_PORT
from dataset_operator.errors import RayUnreachable
from dataset_operator.testing import LIES, StandInRay


def run_with(ray: StandInRay, story: Story) -> None:
    async def run() -> None:
        async with ray, aiohttp.ClientSession() as session:
            await story(Head(session=session, urls=ray.urls, token=ray.token))

    asyncio.run(run())


@pytest.mark.parametrize("lie", LIES)
def test_no_lie_is_taken_for_an_answer(lie: str) -> None:
    ray = StandInRay(token="t", metrics="lastmile_progress_ratio 0.5")

    async def story(head: Head) -> None:
        await head.start("clicks-1", RUNS_ON)
        ray.lie = lie
        with pytest.raises(RayUnreachable):
            await head.jobs.get("clicks-1")
        with pytest.raises(RayUnreachable):
            await head.jobs.logs("clicks-1")
        with contextlib.suppress(RayUnreachable):
            assert await head.jobs.progress() is None
        # Taken for done at worst: the next pass asks Ray, which does not know or goes on.
        for tell in (head.jobs.submit(build_submit("clicks-2")), head.jobs.stop("clicks-1")):
            try:
                await tell
            except RayUnreachable:
                continue
        assert list(ray.jobs) == ["clicks-1"]

    run_with(ray, story)


def test_lost_answers_to_a_submission_are_made_good_by_the_next() -> None:
    ray = StandInRay(token="t", answers_lost=5)

    async def story(head: Head) -> None:
        failures = 0
        while ray.answers_lost:
            try:
                await head.jobs.submit(build_submit("clicks-1"))
            except RayUnreachable:
                failures += 1
        await head.jobs.submit(build_submit("clicks-1"))
        assert failures > 0
        assert list(ray.jobs) == ["clicks-1"]

    run_with(ray, story)


def test_a_head_that_is_slow_is_not_waited_for() -> None:
    ray = StandInRay(token="t", delay_seconds=600.0)

    async def story(head: Head) -> None:
        with pytest.raises(RayUnreachable, match="TimeoutError"):
            await replace(head, max_seconds=0.1).jobs.get("clicks-1")

    run_with(ray, story)


def test_a_head_that_was_replaced_knows_nothing_of_before() -> None:
    ray = StandInRay(token="t")

    async def story(head: Head) -> None:
        await head.jobs.submit(build_submit("clicks-1"))
        ray.crash()
        assert await head.jobs.get("clicks-1") is None

    run_with(ray, story)


def test_where_nothing_listens_nothing_answers() -> None:
    async def story() -> None:
        ports = free_ports(2)
        urls = {
            port: f"http://127.0.0.1:{number}"
            for port, number in zip((DASHBOARD_PORT, RUNTIME_METRICS_PORT), ports, strict=True)
        }
        async with aiohttp.ClientSession() as session:
            jobs = Head(session=session, urls=urls, token="t").jobs
            for ask in (
                jobs.get("a"),
                jobs.logs("a"),
                jobs.stop("a"),
                jobs.submit(build_submit("a")),
                jobs.progress(),
            ):
                with pytest.raises(RayUnreachable):
                    await ask

    asyncio.run(story())
