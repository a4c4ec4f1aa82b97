"""Runs the operator in a process of its own, and measures it.

The process is like `lastmile operator`, but with one stand-in for every head, and it answers each
request of the benchmark with its totals. `python -m benchmarks.operator.acting KUBECONFIG URLS LOG`
runs until the benchmark closes the pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import numpy as np
from kubernetes.aio.client import ApiClient
from prometheus_client import disable_created_metrics

from benchmarks.harness.cells import Document, Values
from benchmarks.harness.children import Child
from benchmarks.harness.serving import serve
from dataset_operator.kube.client import KubeClient
from dataset_operator.kube.login import Login
from dataset_operator.ray.jobs import HttpRayJobs
from dataset_operator.reconcile import Reconciler
from dataset_operator.scheduling.passes import Done
from dataset_operator.serve import serving
from dataset_operator.settings import OperatorSettings, parse_settings
from dataset_operator.sources.driver_metrics import RuntimeSource
from dataset_operator.telemetry.freshness import LIST_SECONDS, compare_forever
from dataset_operator.telemetry.log_records import set_up_logging
from dataset_operator.telemetry.metrics import OperatorMetrics
from dataset_operator.telemetry.watched import Watched
from dataset_operator.testing import PortsOf, StandInRay

TOKEN: Final = "shared"
_SMALL: Final = {"requests": {"cpu": "100m", "memory": "100Mi"}, "limits": {"memory": "100Mi"}}


def build_settings() -> OperatorSettings:
    """Build the settings of an operator whose pods run nothing."""
    resources = {"head": _SMALL, "trainers": _SMALL, "dataWorkers": _SMALL}
    return parse_settings({"runtimeImage": "example.com/lastmile:none", "resources": resources})


class Counting(OperatorMetrics):
    """The operator's metrics, which also count for the benchmark."""

    def __init__(self) -> None:
        super().__init__(Watched())
        self._num_requests = self._num_writes = 0
        self._pass_seconds_now: list[float] = []  # since the last request of the benchmark

    def count_pass(self, done: Done) -> None:
        """See OperatorMetrics."""
        super().count_pass(done)
        self._pass_seconds_now.append(done.seconds)

    def count_request(self, method: str, path: str, status: int, seconds: float) -> None:
        """See OperatorMetrics."""
        super().count_request(method, path, status, seconds)
        self._num_requests += 1
        self._num_writes += method != "GET"

    def look(self, _: Any) -> Document:
        """Return the totals of the process, and the duration of each pass since the last time."""
        passes, self._pass_seconds_now = self._pass_seconds_now, []
        resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
        return {
            "at": time.monotonic(),
            "cpuSeconds": time.process_time(),
            "rssMiB": resident_pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
            "requests": self._num_requests,
            "writes": self._num_writes,
            "passes": passes,
        }


async def act(kubeconfig: str, urls: dict[int, str]) -> None:
    """Run an operator until the benchmark closes the pipe."""
    login, metrics = Login(kubeconfig=kubeconfig), Counting()
    async with (
        ApiClient(await login.configuration()) as client,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        head = PortsOf(session=session, urls=urls)
        kube = KubeClient(client, observe=metrics.count_request)
        reconciler = Reconciler(
            kube=kube,
            connect=lambda owner, token, service=None, address="": HttpRayJobs(
                endpoint=head, token=TOKEN
            ),
            source=RuntimeSource(reach_pod=lambda namespace, pod: head),
            settings=build_settings(),
        )
        async with serving(reconciler, log_in=login.connection, metrics=metrics):
            comparing = asyncio.create_task(
                compare_forever(kube, (), metrics.watched, LIST_SECONDS)
            )
            await asyncio.to_thread(serve, lambda: (None, metrics.look))
            comparing.cancel()


@dataclass(slots=True, kw_only=True)
class Acting:
    """A running operator, and its measurements by the name of the period."""

    child: Child
    windows: dict[str, Values] = field(default_factory=dict)

    @contextlib.asynccontextmanager
    async def measuring(self, period: str, size: int) -> AsyncIterator[None]:
        """Measure the operator of this many experiments in the meantime."""
        before = self.child.ask("look")
        yield
        after = self.child.ask("look")
        seconds, requests = (after[name] - before[name] for name in ("at", "requests"))
        values = {
            "cores": (after["cpuSeconds"] - before["cpuSeconds"]) / seconds,
            "rssMiB": after["rssMiB"],
            "requestsPerSecond": requests / seconds,
            "requestsPerExperiment": requests / size,
            "writes": after["writes"] - before["writes"],
        }
        if passes := after["passes"]:
            values |= {f"passP{p}": 1000 * float(np.quantile(passes, p / 100)) for p in (50, 99)}
        self.windows[period] = {name: [value] for name, value in values.items()}


@contextlib.asynccontextmanager
async def operating(kubeconfig: Path, folder: Path, ray: StandInRay) -> AsyncIterator[Acting]:
    """Run an operator, and shut it down in order; its requests to `ray` go on meanwhile."""
    command = ["-m", "benchmarks.operator.acting", str(kubeconfig), json.dumps(ray.urls)]
    command.append(str(folder / "operator.log"))
    child = await asyncio.to_thread(Child, "the operator", command)
    try:
        yield Acting(child=child)
    finally:
        await asyncio.to_thread(child.close)


if __name__ == "__main__":
    disable_created_metrics()  # type: ignore[no-untyped-call]
    given = {int(port): url for port, url in json.loads(sys.argv[2]).items()}
    with Path(sys.argv[3]).open("w") as log:
        with contextlib.redirect_stderr(log):
            set_up_logging(as_text=True, verbose=False)
        sys.excepthook = sys.__excepthook__  # the log is removed with the control plane
        asyncio.run(act(sys.argv[1], given))
