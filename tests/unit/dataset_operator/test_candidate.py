"""One that stands for the lease: what probes and metrics say of it, and how it ends."""

import asyncio
import logging
from typing import NoReturn

import pytest
from aiohttp import ClientSession
from facts import assert_told
from kubernetes.aio.client import ApiClient, Configuration

from dataset_operator.election.candidate import Candidate, build_identity
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


class Clock:
    """A clock that goes when it is told to."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def leave(why: str) -> NoReturn:
    raise Ended(why)


def stand(client: ApiClient, clock: Clock) -> Candidate:
    elector = Elector(identity="one", terms=TERMS)
    return Candidate(kube=KubeClient(client), elector=elector, clock=clock, leave=leave)


def test_an_api_server_that_does_not_answer_is_asked_again_and_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    clock, stop = Clock(), asyncio.Event()

    async def story() -> None:
        async with ApiClient(Configuration(host=NOBODY)) as client:
            candidate = stand(client, clock)
            asyncio.get_running_loop().call_later(0.3, stop.set)
            async with candidate.leading(stop) as leads:
                assert not leads
            clock.now += 60  # four durations of the lease: at the limit
            assert candidate.find_staleness() is None
            clock.now += 1
            assert_told(candidate.find_staleness() or "", "… 61 s … 60 s")

    asyncio.run(story())
    [told] = [record.getMessage() for record in caplog.records]
    assert "ns/lease" in told


def test_who_does_not_lead_may_not_write() -> None:
    async def story() -> None:
        async with ApiClient(Configuration(host=NOBODY)) as client:
            with pytest.raises(Ended, match="ns/lease"):
                stand(client, Clock()).check()

    asyncio.run(story())


def test_who_stands_by_is_ready_and_alive_until_its_election_is_stuck() -> None:
    clock = Clock()

    async def story() -> None:
        async with ApiClient(Configuration(host=NOBODY)) as client, ClientSession() as session:
            metrics = OperatorMetrics(Watched(), leadership=stand(client, clock))
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


def test_no_two_processes_are_of_one_identity() -> None:
    assert build_identity() != build_identity()
