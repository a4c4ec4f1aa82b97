"""The candidate for the lease: its probes and metrics, its renewals, and its end."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NoReturn

import pytest
from aiohttp import ClientSession
from clocks import Clock
from facts import assert_told
from kubernetes.aio.client import ApiClient, Configuration

from dataset_operator.documents import Document
from dataset_operator.election.candidate import Candidate, Leases, build_identity
from dataset_operator.election.elector import Elector, Terms
from dataset_operator.kube.client import KubeClient
from dataset_operator.telemetry.metrics import OperatorMetrics
from dataset_operator.telemetry.probes import answering
from dataset_operator.telemetry.watched import Watched

NOBODY = "http://127.0.0.1:1"  # refuses every connection
TERMS = Terms(
    name="lease", namespace="ns", duration_seconds=15, deadline_seconds=10, retry_seconds=0
)


class Ended(Exception):
    """Stands for the end of the process."""


def leave(why: str) -> NoReturn:
    raise Ended(why)


@asynccontextmanager
async def connect() -> AsyncIterator[KubeClient]:
    async with ApiClient(Configuration(host=NOBODY)) as client:
        yield KubeClient(client)


def stand(clock: Clock) -> Candidate:
    elector = Elector(identity="one", terms=TERMS)
    return Candidate(connect=connect, elector=elector, clock=clock, leave=leave)


def test_a_silent_api_server_is_retried_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    clock, stop = Clock(), asyncio.Event()

    async def story() -> None:
        candidate = stand(clock)
        asyncio.get_running_loop().call_later(0.3, stop.set)
        async with candidate.leading(stop) as leads:
            assert not leads
        clock.now += 60  # four durations of the lease: just within the limit
        assert candidate.find_staleness() is None
        clock.now += 1
        assert_told(candidate.find_staleness() or "", "… 61 s … 60 s")

    asyncio.run(story())
    [told] = [record.getMessage() for record in caplog.records]
    assert "ns/lease" in told


def test_only_the_leader_may_write() -> None:
    with pytest.raises(Ended, match="ns/lease"):
        stand(Clock()).check()


def test_a_standby_is_healthy_until_its_election_is_stuck() -> None:
    clock = Clock()

    async def story() -> None:
        async with ClientSession() as session:
            metrics = OperatorMetrics(Watched(), leadership=stand(clock))
            async with answering(metrics, host="127.0.0.1", port=0) as port:
                url = f"http://127.0.0.1:{port}"

                async def ask(path: str) -> tuple[int, str]:
                    async with session.get(url + path) as answer:
                        return answer.status, await answer.text()

                assert await ask("/readyz") == (200, "ok\n")
                assert await ask("/healthz") == (200, "ok\n")
                assert "\nlastmile_operator_leader 0.0\n" in (await ask("/metrics"))[1]
                clock.now += 100
                assert (await ask("/healthz"))[0] == 503
                assert (await ask("/readyz"))[0] == 200

    asyncio.run(story())


class Server:
    """Keeps one lease, and counts its renewals."""

    def __init__(self) -> None:
        self.stored: Document | None = None
        self.num_renewals = 0
        self.renewed = threading.Semaphore(0)

    async def get(self, kind: str, namespace: str, name: str) -> Document | None:
        return self.stored

    async def create_new(self, document: Document) -> Document:
        self.stored = {**document, "metadata": {**document["metadata"], "resourceVersion": "1"}}
        return self.stored

    async def replace(self, document: Document) -> Document:
        self.stored = document
        self.num_renewals += 1
        self.renewed.release()
        return document

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Leases]:
        yield self


def wait_for_renewals(server: Server) -> None:
    """Wait for three new renewals, and block the caller's event loop meanwhile."""
    while server.renewed.acquire(blocking=False):
        pass
    for _ in range(3):
        assert server.renewed.acquire(timeout=20), "nobody renews the lease"


def test_the_lease_is_renewed_until_the_event_loop_hangs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    clock, server, has_left = Clock(), Server(), threading.Event()

    def leave(why: str) -> NoReturn:
        has_left.set()
        raise Ended(why)

    async def story() -> None:
        elector = Elector(identity="one", terms=TERMS)
        candidate = Candidate(connect=server.connect, elector=elector, clock=clock, leave=leave)
        async with candidate.leading(asyncio.Event()) as leads:
            assert leads
            await asyncio.sleep(0)  # the loop has shown that it answers
            wait_for_renewals(server)
            clock.now += TERMS.deadline_seconds / 2  # at the limit
            wait_for_renewals(server)
            clock.now += 1  # beyond: the last renewal still holds
            while not caplog.records:
                await_thread()
            renewals = server.num_renewals
            candidate.check()
            clock.now += TERMS.deadline_seconds
            assert has_left.wait(60)
            assert server.num_renewals == renewals

    with pytest.raises(Ended, match="renewDeadlineSeconds"):
        asyncio.run(story())


def await_thread() -> None:
    """Give other threads a turn."""
    time.sleep(0.001)


def test_the_lease_is_released_after_the_work_ends() -> None:
    server, clock, stop = Server(), Clock(), asyncio.Event()

    async def story() -> None:
        elector = Elector(identity="one", terms=TERMS)
        candidate = Candidate(connect=server.connect, elector=elector, clock=clock, leave=leave)
        async with candidate.leading(stop):
            stop.set()
            await asyncio.sleep(0)
            wait_for_renewals(server)
            assert holder(server) == "one"
        assert holder(server) == ""

    asyncio.run(story())


def holder(server: Server) -> str:
    assert server.stored is not None
    found: str = server.stored["spec"]["holderIdentity"]
    return found


def test_two_candidates_have_different_identities() -> None:
    assert build_identity() != build_identity()
