"""Runs the operator in a process of its own, and measures it.

The process is like `lastmile operator`, but with one stand-in for every head. `python -m
benchmarks.operator.acting KUBECONFIG URLS PASSES` prints the port of its metrics, runs until
SIGTERM, and writes the end and the duration of each pass to the file PASSES.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TextIO

import aiohttp
import numpy as np
from kubernetes.aio.client import ApiClient
from prometheus_client import disable_created_metrics
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness.cells import Values
from benchmarks.harness.errors import BenchmarkError
from dataset_operator.kube.client import KubeClient
from dataset_operator.kube.login import Login
from dataset_operator.names import Owner
from dataset_operator.ray.jobs import HttpRayJobs
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
from dataset_operator.testing import PortsOf, StandInRay

LOOPBACK: Final = "127.0.0.1"
TOKEN: Final = "shared"
_REQUESTS: Final = "lastmile_operator_api_request_seconds_count"
_SMALL: Final = {"requests": {"cpu": "100m", "memory": "100Mi"}, "limits": {"memory": "100Mi"}}
_STOP_SECONDS: Final = 60.0


def build_settings() -> OperatorSettings:
    """Build the settings of an operator whose pods run nothing."""
    resources = {"head": _SMALL, "trainers": _SMALL, "dataWorkers": _SMALL}
    return parse_settings({"runtimeImage": "example.com/lastmile:none", "resources": resources})


class PassMetrics(OperatorMetrics):
    """The operator's metrics, which also write a line for each pass."""

    def __init__(self, passes: TextIO) -> None:
        super().__init__(Watched())
        self._file = passes

    def count_pass(self, done: Done) -> None:
        """See OperatorMetrics."""
        super().count_pass(done)
        self._file.write(f"{time.time()} {done.seconds}\n")


async def act(kubeconfig: str, urls: dict[int, str], passes: str) -> None:
    """Run an operator until SIGTERM."""
    stop = asyncio.Event()
    login = Login(kubeconfig=kubeconfig)
    with Path(passes).open("w", buffering=1) as lines:
        metrics = PassMetrics(lines)
        async with (
            ApiClient(await login.configuration()) as client,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        ):
            head = PortsOf(session=session, urls=urls)

            def connect(
                owner: Owner, token: str, service: str | None = None, address: str = ""
            ) -> HttpRayJobs:
                return HttpRayJobs(endpoint=head, token=TOKEN)

            kube = KubeClient(client, observe=metrics.count_request)
            reconciler = Reconciler(
                kube=kube,
                connect=connect,
                source=RuntimeSource(reach_pod=lambda namespace, pod: head),
                settings=build_settings(),
            )
            async with (
                answering(metrics, host=LOOPBACK, port=0) as port,
                serving(reconciler, log_in=login.connection, metrics=metrics, stop=stop),
            ):
                comparing = asyncio.create_task(
                    compare_forever(kube, (), metrics.watched, LIST_SECONDS)
                )
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
                print(port, flush=True)
                await stop.wait()
                comparing.cancel()


@dataclass(slots=True, kw_only=True)
class Acting:
    """A running operator, and its measurements by the name of the period."""

    url: str
    passes: Path
    log: Path
    windows: dict[str, Values] = field(default_factory=dict)

    @contextlib.asynccontextmanager
    async def measuring(self, period: str, size: int) -> AsyncIterator[None]:
        """Measure the operator of this many experiments in the meantime."""
        before = await self._look()
        yield
        after = await self._look()
        used = {name: value - before.get(name, 0.0) for name, value in after.items()}
        values = {
            "cores": used["process_cpu_seconds_total"] / used["at"],
            "rssMiB": after["process_resident_memory_bytes"] / 2**20,
            "requestsPerSecond": used["requests"] / used["at"],
            "requestsPerExperiment": used["requests"] / size,
            "writes": used["writes"],
        }
        rows = [tuple(map(float, line.split())) for line in self.passes.read_text().splitlines()]
        seconds = [row[1] for row in rows if before["at"] <= row[0] <= after["at"]]
        if seconds:
            values |= {f"passP{p}": 1000 * float(np.quantile(seconds, p / 100)) for p in (50, 99)}
        self.windows[period] = {name: [value] for name, value in values.items()}

    async def _look(self) -> dict[str, float]:
        """Return the metrics of the process at this moment."""
        try:
            async with aiohttp.ClientSession() as session, session.get(self.url) as answer:
                families = list(text_string_to_metric_families(await answer.text()))
        except aiohttp.ClientError as error:
            raise BenchmarkError(f"the operator ended: {_read_end(self.log)}") from error
        found = {"at": time.time(), "requests": 0.0, "writes": 0.0}
        for sample in (sample for family in families for sample in family.samples):
            if sample.name == _REQUESTS:
                found["requests"] += sample.value
                if sample.labels["verb"] not in ("get", "list"):
                    found["writes"] += sample.value
            elif not sample.labels:
                found[sample.name] = sample.value
        return found


@contextlib.asynccontextmanager
async def operating(kubeconfig: Path, folder: Path, ray: StandInRay) -> AsyncIterator[Acting]:
    """Run an operator, and shut it down in order."""
    passes, log = folder / "passes", folder / "operator.log"
    command = [sys.executable, "-m", "benchmarks.operator.acting", str(kubeconfig)]
    command += [json.dumps(ray.urls), str(passes)]
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stream, text=True)
    assert process.stdout is not None
    try:
        port = (await asyncio.to_thread(process.stdout.readline)).strip()
        if not port:
            raise BenchmarkError(f"the operator ended: {_read_end(log)}")
        yield Acting(url=f"http://{LOOPBACK}:{port}/metrics", passes=passes, log=log)
        process.terminate()
        await asyncio.to_thread(process.wait, _STOP_SECONDS)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _read_end(log: Path) -> str:
    return log.read_text()[-2000:]


if __name__ == "__main__":
    disable_created_metrics()  # type: ignore[no-untyped-call]
    set_up_logging(as_text=True, verbose=False)
    given = {int(port): url for port, url in json.loads(sys.argv[2]).items()}
    asyncio.run(act(sys.argv[1], given, sys.argv[3]))
