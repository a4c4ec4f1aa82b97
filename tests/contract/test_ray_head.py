"""A real Ray head and its stand-in both behave as the operator relies on."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Any

import pytest
from heads import (
    FAILS,
    IS_KILLED,
    LACKS_MEMORY,
    RUNS_ON,
    SUCCEEDS,
    WRITES,
    Head,
    Open,
    build_submit,
    open_real,
    open_stand_in,
    play,
)

from dataset_operator.api import DASHBOARD_PORT
from dataset_operator.errors import RayRefused, RayUnreachable
from dataset_operator.observed import CatalogTables, WrittenTable
from dataset_operator.ray.submission import build_package
from dataset_operator.ray.transport import Request


@pytest.fixture(params=["stand-in", "ray"])
def head(request: pytest.FixtureRequest) -> Open:
    if request.param == "stand-in":
        return open_stand_in
    return partial(open_real, request.getfixturevalue("real_ray"))


@pytest.fixture
def name() -> str:
    """A submission id that no test had before."""
    return f"clicks-{secrets.token_hex(4)}-1"


def test_a_job_that_nobody_submitted_is_unknown(head: Open, name: str) -> None:
    async def story(ray: Head) -> None:
        assert await ray.jobs.get(name) is None
        assert await ray.jobs.logs(name) is None
        await ray.jobs.stop(name)  # it does not run: done

    play(head, story)


def test_a_submission_can_be_repeated(head: Open, name: str) -> None:
    async def story(ray: Head) -> None:
        await ray.start(name, RUNS_ON)
        await ray.jobs.submit(build_submit(name))  # as after a lost answer
        job = await ray.until(name, "RUNNING")
        assert job.is_active
        assert job.exit_code is None
        await ray.jobs.stop(name)
        job = await ray.until(name, "STOPPED")
        assert not job.is_active
        await ray.jobs.stop(name)  # it has ended: done

    play(head, story)


def test_a_job_that_succeeds_is_told_so_and_leaves_its_log(head: Open, name: str) -> None:
    async def story(ray: Head) -> None:
        await ray.start(name, SUCCEEDS)
        job = await ray.until(name, "SUCCEEDED")
        assert (job.exit_code, job.out_of_memory) == (0, False)
        assert "made it" in (await ray.jobs.logs(name) or "")

    play(head, story)


def test_the_log_of_a_driver_ends_with_its_table(head: Open, name: str) -> None:
    async def story(ray: Head) -> None:
        assert await ray.jobs.tables(name) == (None, CatalogTables())
        for each, entrypoint in ((f"{name}-a", WRITES), (f"{name}-b", SUCCEEDS)):
            await ray.start(each, entrypoint)
            await ray.until(each, "SUCCEEDED")
        written, _ = await ray.jobs.tables(f"{name}-a")
        assert written == WrittenTable(rows=3, files=2, num_bytes=1000)
        assert await ray.jobs.tables(f"{name}-b") == (None, CatalogTables())

    play(head, story)


@pytest.mark.parametrize(
    ("entrypoint", "exit_code", "out_of_memory", "says"),
    [
        (FAILS, 3, False, "no such table"),
        (IS_KILLED, -9, True, "exit code -9"),
        (LACKS_MEMORY, 1, True, "CUDA out of memory"),
    ],
    ids=["by itself", "killed, as for want of memory", "out of a GPU's memory"],
)
def test_a_job_that_fails_says_how(
    head: Open, name: str, entrypoint: str, exit_code: int, out_of_memory: bool, says: str
) -> None:
    async def story(ray: Head) -> None:
        await ray.start(name, entrypoint)
        job = await ray.until(name, "FAILED")
        assert (job.exit_code, job.out_of_memory) == (exit_code, out_of_memory)
        assert says in job.message

    play(head, story)


def test_a_package_can_be_uploaded_again(head: Open, name: str) -> None:
    async def story(ray: Head) -> None:
        package, content = build_package(build_submit(name))
        path = f"/api/packages/gcs/{package}"
        request = Request(
            method="PUT", port=DASHBOARD_PORT, path=path, body=content, token=ray.token
        )
        assert [(await ray.endpoint.send(request)).status for _ in range(2)] == [200, 200]

    play(head, story)


def test_a_wrong_token_is_no_answer(head: Open, name: str) -> None:
    async def story(ray: Head) -> None:
        stranger = ray.jobs_with("another token")
        with pytest.raises(RayUnreachable, match=r"HTTP 40[13]"):
            await stranger.get(name)
        with pytest.raises(RayUnreachable, match=r"HTTP 40[13]"):
            await stranger.submit(build_submit(name))
        assert await ray.jobs.get(name) is None

    play(head, story)


def test_a_submission_that_makes_no_sense_is_refused_for_good_and_in_rays_words(
    head: Open, name: str
) -> None:
    async def story(ray: Head) -> None:
        no_id: Any = 7
        with pytest.raises(RayRefused, match="TypeError: submission_id"):
            await ray.jobs.submit(build_submit(no_id))
        assert await ray.jobs.get("7") is None
        await ray.start(name, SUCCEEDS)  # a head that refused one takes the next
        await ray.until(name, "SUCCEEDED")

    play(head, story)


def test_nothing_is_known_of_a_training_before_its_driver_serves_metrics(head: Open) -> None:
    async def story(ray: Head) -> None:
        with pytest.raises(RayUnreachable):
            await ray.jobs.progress()

    play(head, story)
