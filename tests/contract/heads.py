"""A head as the contract's tests see it, and stories that are played on one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import aiohttp
from loopback import free_ports
from ray_heads import RealRay

from dataset_operator.api import DASHBOARD_PORT, RUNTIME_METRICS_PORT
from dataset_operator.observed import Job
from dataset_operator.plan.outcome import Submit
from dataset_operator.ray.jobs import HttpRayJobs
from dataset_operator.ray.submission import build_job, build_package
from dataset_operator.ray.transport import REQUEST_SECONDS, Request
from dataset_operator.testing import Ending, PortsOf, StandInRay
from pipeline_runtime.config import API_VERSION, KIND

# A job starts within seconds on an idle machine.
DEADLINE_SECONDS = 180.0
POLL_SECONDS = 0.2
# What the contract's jobs run, and how that ends.
ENDINGS = {
    "echo made it": Ending(status="SUCCEEDED", log="made it"),
    "echo no such table; exit 3": Ending(status="FAILED", exit_code=3, log="no such table"),
    "exec sh -c 'kill -9 $$'": Ending(status="FAILED", exit_code=-9),
    "echo CUDA out of memory; exit 1": Ending(
        status="FAILED", exit_code=1, log="CUDA out of memory"
    ),
    # A log of 1.4 MB, of which only the end matters.
    "seq 200000; echo output: rows=3 files=2 bytes=1000; echo bye": Ending(
        status="SUCCEEDED",
        log="\n".join([*map(str, range(1, 200_001)), "output: rows=3 files=2 bytes=1000", "bye"]),
    ),
}
SUCCEEDS, FAILS, IS_KILLED, LACKS_MEMORY, WRITES = ENDINGS
RUNS_ON = "sleep 600"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A head that answers, and a client of it."""

    session: aiohttp.ClientSession
    urls: dict[int, str]
    token: str
    storage_root: str | None = None
    max_seconds: float = REQUEST_SECONDS

    @property
    def jobs(self) -> HttpRayJobs:
        """The operator's client."""
        return self.jobs_with(self.token)

    def jobs_with(self, token: str) -> HttpRayJobs:
        """The operator's client, with a token that may be wrong."""
        return HttpRayJobs(endpoint=self.endpoint, token=token, storage_root=self.storage_root)

    @property
    def endpoint(self) -> PortsOf:
        """Its ports."""
        return PortsOf(session=self.session, urls=self.urls, max_seconds=self.max_seconds)

    async def start(self, submission_id: str, entrypoint: str) -> None:
        """Submit a job as the operator does, but for its entrypoint."""
        submit = build_submit(submission_id)
        package, content = build_package(submit)
        job = build_job(submit, package, None) | {"entrypoint": entrypoint}
        for method, path, body in (
            ("PUT", f"/api/packages/gcs/{package}", content),
            ("POST", "/api/jobs/", job),
        ):
            request = Request(
                method=method, port=DASHBOARD_PORT, path=path, body=body, token=self.token
            )
            answer = await self.endpoint.send(request)
            assert answer.status == 200, answer.text

    async def until(self, submission_id: str, *states: str) -> Job:
        """Ask until a job is so."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                job = await self.jobs.get(submission_id)
                if job is not None and job.status in states:
                    return job
                await asyncio.sleep(POLL_SECONDS)


Story = Callable[[Head], Awaitable[None]]
Open = Callable[[], AbstractAsyncContextManager[Head]]


def play(opened: Open, story: Story) -> None:
    """Play a story on a head."""

    async def run() -> None:
        async with opened() as head:
            await story(head)

    asyncio.run(run())


@asynccontextmanager
async def open_stand_in() -> AsyncIterator[Head]:
    async with (
        StandInRay(token="the-token", endings=ENDINGS) as ray,
        aiohttp.ClientSession() as session,
    ):
        yield Head(session=session, urls=ray.urls, token=ray.token)


@asynccontextmanager
async def open_real(ray: RealRay) -> AsyncIterator[Head]:
    [closed] = free_ports(1)  # no driver trains, so nothing serves its metrics
    ports = {DASHBOARD_PORT: ray.dashboard, RUNTIME_METRICS_PORT: closed}
    urls = {port: f"http://127.0.0.1:{number}" for port, number in ports.items()}
    async with aiohttp.ClientSession() as session:
        yield Head(session=session, urls=urls, token=ray.token)


def build_submit(
    submission_id: str, *, run_id: str = "0f3c6c1e-1", resume: bool = False, **spec: object
) -> Submit:
    """An attempt at an experiment whose table is missing."""
    experiment = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "clicks"},
        "spec": {"dataset": {"parquet": {"uri": "missing/"}}, **spec},
    }
    return Submit(submission_id=submission_id, experiment=experiment, run_id=run_id, resume=resume)
