"""Runs the operator on a whole control plane, with one stand-in for all Ray heads."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from reconcile_stage import DEADLINE_SECONDS, POLL_SECONDS, SETTINGS, all_closed, log_in

from dataset_operator.kube.client import KubeClient
from dataset_operator.kube.login import Login
from dataset_operator.names import Owner
from dataset_operator.ray.jobs import HttpRayJobs
from dataset_operator.reconcile import Reconciler
from dataset_operator.serve import serving
from dataset_operator.sources.driver_metrics import RuntimeSource
from dataset_operator.testing import PortsOf, StandInRay
from pipeline_runtime.config import KIND
from tools.cluster.box import Box

TOKEN = "shared"


@dataclass(slots=True)
class Head(StandInRay):
    """The head of all experiments.

    Attributes:
        keeps_running: True if stopped drivers go on writing their checkpoint.
        asked: ids of the drivers that were told to stop.
    """

    keeps_running: bool = False
    asked: set[str] = field(default_factory=set)

    async def _stop(self, request: web.Request) -> web.Response:
        self.asked.add(request.match_info["id"])
        if self.keeps_running:
            return web.json_response({"stopped": True})
        return await StandInRay._stop(self, request)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operated:
    """A control plane whose experiments run."""

    head: Head
    kube: KubeClient

    async def experiment(self, namespace: str, name: str) -> dict[str, Any]:
        found = await self.kube.get(KIND, namespace, name)
        assert found is not None, f"{namespace}/{name} is gone"
        return dict(found)

    async def status(self, namespace: str, name: str) -> dict[str, Any]:
        found = await self.kube.get(KIND, namespace, name)
        return dict((found or {}).get("status", {}))

    async def driver(self, namespace: str, name: str) -> str:
        """Wait until a driver of an experiment runs; return its id."""

        async def find() -> str:
            job = (await self.status(namespace, name)).get("submission", {}).get("id", "")
            is_running = self.head.jobs.get(job, {}).get("status") == "RUNNING"
            return job if is_running else ""

        return str(await until(f"the driver of {name}", find))


async def until(what: str, holds: Callable[[], Awaitable[Any]]) -> Any:
    """Wait until `holds` returns something true, and return that."""
    found = None
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not (found := await holds()):
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise AssertionError(f"timed out waiting for {what}") from None
    return found


@asynccontextmanager
async def operated(box: Box) -> AsyncIterator[Operated]:
    """Run the operator for all namespaces, with the rights from its manifest."""
    configuration = Configuration()
    await config.load_kube_config(str(box.kubeconfig), client_configuration=configuration)
    async with (
        all_closed(),
        ApiClient(configuration) as client,
        aiohttp.ClientSession() as session,
        Head(token=TOKEN) as head,
    ):
        for name, value in log_in(box.kubectl).items():
            client.set_default_header(name, value)
        ports = PortsOf(session=session, urls=head.urls)

        def connect(
            owner: Owner, token: str, service: str | None = None, address: str = ""
        ) -> HttpRayJobs:
            return HttpRayJobs(endpoint=ports, token=TOKEN)

        kube = KubeClient(client)
        reconciler = Reconciler(
            kube=kube,
            connect=connect,
            source=RuntimeSource(reach_pod=lambda namespace, pod: ports),
            settings=SETTINGS,
        )
        login = Login(kubeconfig=str(box.kubeconfig)).connection
        async with serving(reconciler, log_in=login):
            yield Operated(head=head, kube=kube)
