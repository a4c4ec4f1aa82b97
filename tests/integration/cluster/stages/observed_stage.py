"""A real run, a real operator that scales it, and a real Prometheus that scrapes both.

The run is `lastmile run` on a Ray of this machine, whose data workers are slower than its trainer.
The operator's pods are played, so the stand-in head hands on the page of the run's driver: what the
operator reads, and decides by, is what the driver says. Nobody here has a GPU: of GPUs the stand-in
tells, in Ray's format.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from loopback import free_ports
from prometheus_server import running
from ray_heads import RealRay, running_head
from reconcile_stage import NAME, SMALL, Stage, stage_of

from dataset_operator.api import HEAD, RAY_METRICS_PORT, TRAINERS
from dataset_operator.serve import serving
from dataset_operator.settings import parse_settings
from dataset_operator.telemetry.freshness import compare_forever
from dataset_operator.telemetry.metrics import OperatorMetrics
from dataset_operator.telemetry.probes import answering
from dataset_operator.telemetry.watched import Watched
from tools.cluster.box import Box

BIN = Path(sys.executable).parent
RULES = Path(__file__).parents[4] / "deploy" / "prometheus" / "rules.yaml"
HEAD_POD, TRAINER_POD = f"{NAME}-head", f"{NAME}-trainer"
SETTINGS = parse_settings(
    {
        "runtimeImage": "example.com/lastmile:none",
        "resources": {"head": SMALL, "trainers": SMALL, "dataWorkers": SMALL},
        "gpuResource": None,  # GPUs are counted, and no node has to have them
        "prices": {"gpuHour": 2.5, "dataWorkerHour": 0.25, "currency": "EUR"},
    }
)
GPU_PAGE = 'ray_node_gpus_utilization{GpuDeviceName="NVIDIA H200",GpuIndex="0",GpuUuid="a"} 60\n'
POLL_SECONDS = 0.5
WAIT_SECONDS = 240.0  # for one thing, on a slow machine that does something else meanwhile
# The trainer takes rows faster than the pipeline makes them, and saves often.
MODULE = """
import time

def slow(table):
    time.sleep(0.0005 * table.num_rows)
    return table

def loop(ctx):
    for epoch in ctx.epochs():
        for batch in ctx.batches():
            time.sleep(0.002)
            saved = {"step": ctx.step} if ctx.checkpoint_due() else None
            ctx.report({"loss": 1 / ctx.step, "accuracy": 0.5}, saved)
"""
MANIFEST: dict[str, Any] = {
    "apiVersion": "experiments.lastmile.dev/v1alpha1",
    "kind": "DatasetExperiment",
    "metadata": {"name": NAME},
    "spec": {
        "dataset": {"parquet": {"uri": "impressions/"}},
        "pipeline": [
            {"filter": {"where": "position < 30"}},
            {"map": {"function": "slow_loop:slow"}},
        ],
        "training": {
            "entrypoint": "slow_loop:loop",
            "batchSize": 64,
            "epochs": 1000,
            "columns": ["dense_00"],
            "checkpoint": {"everySeconds": 5},
            "shuffle": {"windowRows": 2000},
        },
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A started stage, its Prometheus, and the logs of the run and its Ray."""

    stage: Stage
    url: str
    logs: tuple[Path, ...]

    async def query(self, expr: str) -> list[dict[str, Any]]:
        """The series of an expression now; Prometheus' own words fail the test."""
        return await self._ask("query", query=expr)

    async def query_range(self, expr: str, minutes: float) -> list[dict[str, Any]]:
        """The series of an expression over the last minutes."""
        end = time.time()
        span = {"start": f"{end - 60 * minutes:.0f}", "end": f"{end:.0f}", "step": "2"}
        return await self._ask("query_range", query=expr, **span)

    async def _ask(self, path: str, **asked: str) -> list[dict[str, Any]]:
        url = f"{self.url}/api/v1/{path}"
        async with aiohttp.ClientSession() as session, session.get(url, params=asked) as answer:
            body = await answer.json()
        assert body["status"] == "success", f"{asked}: {body}"
        series: list[dict[str, Any]] = body["data"]["result"]
        return series

    async def until(self, expr: str) -> list[dict[str, Any]]:
        """Wait until it has series; fail with what the run printed if it never has."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not (found := await self.query(expr)):
            assert time.monotonic() < deadline, f"no series of {expr}: {await self.tell()}"
            await asyncio.sleep(POLL_SECONDS)
        return found

    async def tell(self) -> str:
        """Everything that helps to see why."""
        up = {series["metric"]["job"]: series["value"][1] for series in await self.query("up")}
        printed = [f"{log.name}: {log.read_text()[-4000:]}" for log in self.logs]
        status = json.dumps(await self.stage.status(), indent=1)
        return "\n".join([f"targets up: {up}", status, *printed])


@contextlib.contextmanager
def training(folder: Path) -> Iterator[tuple[int, RealRay]]:
    """Run a training that goes on until the end; yield its driver's metrics port, and its Ray."""
    [driver_port] = free_ports(1)
    subprocess.run(
        [BIN / "lastmile", "sample-data", "--rows", "100000", "--output", folder],
        check=True,
        capture_output=True,
    )
    (folder / "slow_loop.py").write_text(MODULE)
    (folder / "manifest.yaml").write_text(json.dumps(MANIFEST))
    command = [BIN / "lastmile", "run", "-f", folder / "manifest.yaml", "--address", "auto"]
    command += ["--storage-root", folder, "--output", folder / "output"]
    command += ["--metrics-port", str(driver_port)]
    with (
        running_head() as ray,
        _started(command, folder / "run.log", ray.driver_env, folder),
    ):
        yield driver_port, ray


@contextlib.contextmanager
def _started(
    command: list[Any], log: Path, env: dict[str, str], folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=env, cwd=folder, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.asynccontextmanager
async def observing(
    box: Box, namespace: str, folder: Path, program: Path
) -> AsyncIterator[Observed]:
    """All of it, with an experiment that trains."""
    metrics = OperatorMetrics(Watched(), SETTINGS.prices)
    with training(folder) as (driver_port, ray):
        async with (
            stage_of(box, namespace, settings=SETTINGS, observe=metrics.count_request) as stage,
            answering(metrics, host="127.0.0.1", port=0) as operator_port,
            _beside(compare_forever(stage.reconciler.kube, [namespace], metrics.watched, 1.0)),
            serving(stage.reconciler, [namespace], metrics=metrics),
        ):
            node = int(stage.ray.urls[RAY_METRICS_PORT].rpartition(":")[2])
            of_pod = {"namespace": namespace, "experiment": NAME}
            config = _configure(
                _job("operator", operator_port),
                _job("driver", driver_port, **of_pod, pod=HEAD_POD),
                _job("node", ray.metrics, **of_pod, pod=HEAD_POD, role=HEAD),
                _job("gpus", node, **of_pod, pod=TRAINER_POD, role=TRAINERS),
            )
            with running(program, folder, config) as port:
                async with _beside(_hand_on(stage, driver_port)):
                    logs = (ray.folder / "start.log", folder / "run.log")
                    yield Observed(stage=stage, url=f"http://127.0.0.1:{port}", logs=logs)


def _configure(*jobs: dict[str, Any]) -> dict[str, object]:
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [*jobs],
    }


def _job(name: str, port: int, **labels: str) -> dict[str, Any]:
    """A target with the labels that the monitors of docs/operating/observe.md give it."""
    return {
        "job_name": name,
        "honor_labels": True,
        "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": labels}],
    }


@contextlib.asynccontextmanager
async def _beside(work: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _hand_on(stage: Stage, driver_port: int) -> None:
    """The driver's page becomes that of the stand-in head."""
    stage.ray.node_metrics = GPU_PAGE
    async with aiohttp.ClientSession() as session:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"http://127.0.0.1:{driver_port}/metrics") as answer:
                    stage.ray.metrics = await answer.text()
            await asyncio.sleep(POLL_SECONDS)
