"""The lease is checked before every write, on real sessions; and the settings of the election."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import kopf
import pytest
from aiohttp import web
from facts import assert_told
from kubernetes.aio.client import ApiClient, Configuration
from local_http import serving
from pydantic import ValidationError

from dataset_operator.election.guard import build_trace
from dataset_operator.kube.client import KubeClient
from dataset_operator.kube.watching import watch_metadata
from dataset_operator.settings import parse_settings

WRITES = ["POST", "PUT", "PATCH", "DELETE"]


class Ended(BaseException):
    """Stands for the end of the process."""


class Lease:
    """A lease that may be lost."""

    is_lost = False

    def check(self) -> None:
        if self.is_lost:
            raise Ended


@asynccontextmanager
async def counting() -> AsyncIterator[tuple[str, list[str]]]:
    """Yield a server's URL, and the methods of the requests that came."""
    came: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        came.append(request.method)
        return web.json_response({})

    async with serving(answer) as url:
        yield url, came


@pytest.mark.parametrize("method", WRITES)
@pytest.mark.parametrize("is_warm", [False, True], ids=["a new connection", "one that is kept"])
def test_a_write_after_losing_the_lease_is_never_sent(method: str, is_warm: bool) -> None:
    async def story() -> None:
        lease = Lease()
        traces = [build_trace(lease.check)]
        async with counting() as (url, came), aiohttp.ClientSession(trace_configs=traces) as ours:
            if is_warm:
                await ours.request(method, url)
            came.clear()
            lease.is_lost = True
            with pytest.raises(Ended):
                await ours.request(method, url)
            await ours.get(url)
            assert came == ["GET"]

    asyncio.run(story())


def test_api_server_clients_check_the_lease() -> None:
    async def story() -> None:
        lease = Lease()
        trace = build_trace(lease.check)
        async with counting() as (url, came):
            configuration = Configuration(host=url)
            configuration.trace_configs = [trace]
            async with ApiClient(configuration) as client:
                kube = KubeClient(client)
                await kube.delete("RayCluster", "ns", "name", "uid")
                lease.is_lost = True
                with pytest.raises(Ended):
                    await kube.delete("RayCluster", "ns", "name", "uid")
                with pytest.raises(Ended):
                    await kube.patch("RayCluster", "ns", "name", {})
            assert came == ["DELETE"]

    asyncio.run(story())


def test_kopfs_session_checks_the_lease_and_compares_by_credentials() -> None:
    async def story() -> None:
        lease = Lease()
        async with counting() as (url, came):

            async def log_in() -> kopf.ConnectionInfo:
                return kopf.ConnectionInfo(server=url, scheme="Bearer", token="t")

            guarded = watch_metadata(log_in, [build_trace(lease.check)])
            first, second = await guarded(), await guarded()
            # Otherwise Kopf would use a refused token for ever.
            assert first == second
            await first.aiohttp_session.request("PATCH", url)
            lease.is_lost = True
            with pytest.raises(Ended):
                await first.aiohttp_session.request("PATCH", url)
            assert came == ["PATCH"]
            for session in (first, second):
                assert session.aiohttp_session.headers["Authorization"] == "Bearer t"
                await session.aiohttp_session.close()

    asyncio.run(story())


def test_only_the_observed_cluster_is_deleted() -> None:
    bodies: list[Any] = []

    async def story() -> None:
        async def answer(request: web.Request) -> web.Response:
            bodies.append(await request.json())
            return web.json_response({}, status=409)  # it is another cluster

        app = web.Application()
        app.router.add_delete("/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with ApiClient(Configuration(host=host)) as client:
            await KubeClient(client).delete("RayCluster", "ns", "name", "uid-1")
        await runner.cleanup()

    asyncio.run(story())
    assert [body["preconditions"] for body in bodies] == [{"uid": "uid-1"}]


@pytest.mark.parametrize(
    ("lease", "told"),
    [
        pytest.param({}, None, id="client-go's defaults"),
        pytest.param(
            {"leaseDurationSeconds": 10},
            "renewDeadlineSeconds … 10",
            id="a lease no longer than its deadline",
        ),
        pytest.param(
            {"renewDeadlineSeconds": 12, "retryPeriodSeconds": 10},
            "1.2 … retryPeriodSeconds … 10 … 12",
            id="a deadline that a single retry misses",
        ),
        pytest.param(
            {"leaseDurationSeconds": 3, "renewDeadlineSeconds": 2, "retryPeriodSeconds": 1},
            None,
            id="the shortest",
        ),
        pytest.param({"name": "no/name"}, "name", id="an invalid name"),
    ],
)
def test_inconsistent_lease_times_are_refused(lease: dict[str, Any], told: str | None) -> None:
    document = {"runtimeImage": "runtime:1", "lease": lease}
    if told is None:
        assert parse_settings(document).leader_election is None
        return
    with pytest.raises(ValidationError) as refused:
        parse_settings(document)
    assert_told(str(refused.value), f"… {told}")
