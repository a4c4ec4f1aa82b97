"""Runs the operator's process: like `lastmile operator`, but with one stand-in for every head.

For the namespace `SILENT`, a server that never answers can take the place of the stand-in.

`python -m benchmarks.operator.acting PLACE` runs until SIGTERM, and writes a line for each pass.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TextIO

import aiohttp
from kubernetes.aio.client import ApiClient
from prometheus_client import disable_created_metrics

from dataset_operator.kube.client import KubeClient
from dataset_operator.kube.login import Login
from dataset_operator.names import Owner
from dataset_operator.ray.jobs import HttpRayJobs
from dataset_operator.ray.transport import Answer, Endpoint, Request
from dataset_operator.reconcile import Reconciler
from dataset_operator.scheduling.passes import Done
from dataset_operator.serve import serving
from dataset_operator.settings import OperatorSettings, parse_settings
from dataset_operator.sources.driver_metrics import RuntimeSource
from dataset_operator.telemetry.freshness import LIST_SECONDS, compare_forever
from dataset_operator.telemetry.log_records import set_up_logging
from dataset_operator.telemetry.metrics import OperatorMetrics
from dataset_operator.telemetry.probes import answering
from dataset_operator.telemetry.watched import Watched
from dataset_operator.testing import PortsOf

LOOPBACK: Final = "127.0.0.1"
TOKEN: Final = "shared"
SILENT: Final = "silent"  # the namespace of a tenant whose heads never answer
_SMALL: Final = {"requests": {"cpu": "100m", "memory": "100Mi"}, "limits": {"memory": "100Mi"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The arguments of an operator's process.

    Attributes:
        ports: the stand-in's URLs, by the port of a head.
        notes: the file that gets a line for each pass.
        port: the file that gets the port of the operator's metrics.
        remembers: whether the operator keeps rarely changing objects between passes.
        silent: the URL of the heads in the namespace `SILENT`; "": the stand-in.
    """

    kubeconfig: str
    ports: dict[int, str]
    notes: str
    port: str
    remembers: bool = True
    silent: str = ""

    def command(self) -> list[str]:
        """Return the command that starts the process."""
        return [sys.executable, "-m", "benchmarks.operator.acting", json.dumps(asdict(self))]


def build_settings() -> OperatorSettings:
    """Build the settings of an operator whose pods run nothing."""
    resources = {"head": _SMALL, "trainers": _SMALL, "dataWorkers": _SMALL}
    return parse_settings({"runtimeImage": "example.com/lastmile:none", "resources": resources})


@dataclass(slots=True)
class _Waits:
    """Requests of the current pass, and its seconds of waiting for the API server and Ray."""

    requests: int = 0
    api: float = 0.0
    ray: float = 0.0


_waits: ContextVar[_Waits | None] = ContextVar("waits", default=None)


def _waiting() -> _Waits:
    """Return the waits of the current task, which runs an experiment's passes one by one."""
    found = _waits.get()
    if found is None:
        found = _Waits()
        _waits.set(found)
    return found


class NotingMetrics(OperatorMetrics):
    """The operator's metrics, which also write a line for each pass."""

    def __init__(self, notes: TextIO) -> None:
        super().__init__(Watched())
        self._notes = notes

    def count_request(self, method: str, path: str, status: int, seconds: float) -> None:
        """See OperatorMetrics."""
        super().count_request(method, path, status, seconds)
        waits = _waiting()
        waits.requests += 1
        waits.api += seconds

    def count_pass(self, done: Done) -> None:
        """See OperatorMetrics."""
        super().count_pass(done)
        waits = _waiting()
        _waits.set(None)
        line = [time.time(), done.result, done.seconds, waits.api, waits.ray, waits.requests]
        self._notes.write(json.dumps(line) + "\n")


@dataclass(frozen=True, slots=True)
class _Timed:
    """An endpoint that measures how long each answer takes."""

    endpoint: Endpoint

    async def send(self, request: Request) -> Answer:
        started = time.monotonic()
        try:
            return await self.endpoint.send(request)
        finally:
            _waiting().ray += time.monotonic() - started


async def act(place: Place) -> None:
    """Run an operator until SIGTERM."""
    stop = asyncio.Event()
    login = Login(kubeconfig=place.kubeconfig)
    with Path(place.notes).open("w") as notes:
        metrics = NotingMetrics(notes)
        async with (
            ApiClient(await login.configuration()) as client,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        ):
            heads = _Timed(PortsOf(session=session, urls=place.ports))
            silent = _Timed(PortsOf(session=session, urls=dict.fromkeys(place.ports, place.silent)))

            def find(namespace: str) -> Endpoint:
                return silent if place.silent and namespace == SILENT else heads

            def connect(
                owner: Owner, token: str, service: str | None = None, address: str = ""
            ) -> HttpRayJobs:
                return HttpRayJobs(endpoint=find(owner.namespace), token=TOKEN)

            kube = KubeClient(client, observe=metrics.count_request)
            reconciler = Reconciler(
                kube=kube,
                connect=connect,
                source=RuntimeSource(reach_pod=lambda namespace, pod: find(namespace)),
                settings=build_settings(),
            )
            async with (
                answering(metrics, host=LOOPBACK, port=0) as port,
                serving(
                    reconciler,
                    [],
                    log_in=login.connection,
                    metrics=metrics,
                    stop=stop,
                    remembers=place.remembers,
                ),
            ):
                comparing = asyncio.create_task(
                    compare_forever(kube, (), metrics.watched, LIST_SECONDS)
                )
                for number in (signal.SIGTERM, signal.SIGINT):
                    asyncio.get_running_loop().add_signal_handler(number, stop.set)
                Path(place.port).write_text(str(port))
                await stop.wait()
                comparing.cancel()


def _main() -> None:
    disable_created_metrics()  # type: ignore[no-untyped-call]
    set_up_logging(as_text=True, verbose=False)
    document: dict[str, Any] = json.loads(sys.argv[1])
    ports = {int(port): url for port, url in document["ports"].items()}
    asyncio.run(act(Place(**{**document, "ports": ports})))


if __name__ == "__main__":
    _main()
