"""The client of a command retries a request when a busy API server asks for that."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration
from local_http import serving

from dataset_operator.errors import KubeUnavailable
from dataset_operator.kube import client as kube_client
from dataset_operator.kube.client import KubeClient
from dataset_operator.retrying import MAX_RETRY_AFTER_SECONDS

CLUSTER = {"kind": "RayCluster", "metadata": {"namespace": "ns", "name": "clicks"}}
AT_ONCE = {"Retry-After": "0"}
Answer = tuple[int, dict[str, str]]  # HTTP status, headers


@asynccontextmanager
async def answering(
    answers: Sequence[Answer], *, retry_seconds: float = 20.0
) -> AsyncIterator[tuple[KubeClient, list[str]]]:
    """Yield a client of a server that gives these answers, and the methods of the requests."""
    left, came = list(answers), list[str]()

    async def answer(request: web.Request) -> web.Response:
        came.append(request.method)
        status, headers = left.pop(0)
        return web.json_response({"message": "said so"}, status=status, headers=headers)

    async with serving(answer) as url, ApiClient(Configuration(host=url)) as client:
        yield KubeClient(client, retry_seconds=retry_seconds), came


def test_a_request_is_retried_after_the_servers_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_client, "LEAST_WAIT_SECONDS", 0.01)

    async def story() -> None:
        async with answering([(429, AT_ONCE), (429, AT_ONCE), (201, {})]) as (kube, came):
            await kube.create(CLUSTER)
            assert came == ["POST"] * 3

    asyncio.run(story())


@pytest.mark.parametrize(
    ("status", "headers", "retry_seconds"),
    [
        (429, {}, 20.0),
        (429, {"Retry-After": "3600"}, 20.0),
        (429, {"Retry-After": "later"}, 20.0),
        (500, AT_ONCE, 20.0),
        (503, AT_ONCE, 20.0),
        (429, AT_ONCE, 0.0),
    ],
    ids=[
        "the server does not ask",
        "the server asks to wait for an hour",
        "the server asks for nonsense",
        "a write may have happened",
        "so may one before the API server went away",
        "it is the operator's, whose pass is tried again",
    ],
)
def test_refusals_that_are_final(
    status: int, headers: dict[str, str], retry_seconds: float
) -> None:
    async def story() -> None:
        answers = [(status, headers)]
        async with answering(answers, retry_seconds=retry_seconds) as (kube, came):
            with pytest.raises(KubeUnavailable, match="said so"):
                await kube.create(CLUSTER)
            assert came == ["POST"]

    asyncio.run(story())


def test_a_read_is_retried_after_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_client, "LEAST_WAIT_SECONDS", 0.01)

    async def story() -> None:
        async with answering([(503, AT_ONCE), (200, {})]) as (kube, came):
            await kube.get("Pod", "ns", "x")
            assert came == ["GET"] * 2

    asyncio.run(story())


@pytest.mark.parametrize("status", [429, 503])
def test_a_failure_has_the_pause_that_the_server_asks_for(status: int) -> None:
    async def failure(seconds: str) -> float:
        answers = [(status, {"Retry-After": seconds})]
        async with answering(answers, retry_seconds=0.0) as (kube, _):
            with pytest.raises(KubeUnavailable) as caught:
                await kube.create(CLUSTER)
        return caught.value.retry_after_seconds

    assert 20.0 <= asyncio.run(failure("20")) <= 30.0
    assert asyncio.run(failure("1000000")) == MAX_RETRY_AFTER_SECONDS
    assert asyncio.run(failure("soon")) == 0.0
