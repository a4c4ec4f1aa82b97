"""The default source: reads the driver's metrics on the head, and Ray's on the trainers' pods.

Each pass makes one sweep over all pages at once. The sweep is bounded in time, in connections of
the experiments of a namespace, and in bytes of a page; meanwhile the pass holds no slot. The head's
own page of Ray (half a megabyte) is not fetched: the runtime reports the same values in less. A pod
that is not reached keeps its last value for three scrapes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dataset_operator.api import RAY_METRICS_PORT
from dataset_operator.autoscaling.interface import EARLY_SECONDS, PERIOD_SECONDS
from dataset_operator.errors import RayUnreachable
from dataset_operator.observed import Pod, Progress
from dataset_operator.ray.endpoints import ReachPod
from dataset_operator.ray.runtime_metrics import SCRAPE_SECONDS
from dataset_operator.ray.transport import Request
from dataset_operator.scheduling.places import outside
from dataset_operator.sources.base import (
    STALE_SECONDS,
    PerNamespace,
    Reading,
    Run,
    build_reading,
    finish,
    result_of,
)
from dataset_operator.sources.gpus import GpuBook, GpuUse
from dataset_operator.sources.ray_nodes import FAMILY, parse_gpus

# The longest that a pass waits for all pages together.
SWEEP_SECONDS = SCRAPE_SECONDS
# Simultaneous requests to the trainers' pods of a namespace; a page takes milliseconds.
MAX_CONNECTIONS = 16
# Every event causes a pass, but GPUs are read once per period; tolerate a pass that is early.
_EVERY_SECONDS = PERIOD_SECONDS - EARLY_SECONDS
# Ray's pages have 100 to 120 KB, with the GPUs near the end; no more than this is read of one.
MAX_PAGE_BYTES = 1 << 20


@dataclass(slots=True, kw_only=True)
class RuntimeSource:
    """See `MetricsSource`; one for the whole process.

    Attributes:
        sweep_seconds: time limit of a sweep; pages that have not arrived by then count as unknown.
        now: seconds of a clock that only goes forward.
    """

    reach_pod: ReachPod
    sweep_seconds: float = SWEEP_SECONDS
    now: Callable[[], float] = time.monotonic
    _book: GpuBook = field(default_factory=lambda: GpuBook(stale_seconds=STALE_SECONDS))
    _connections: PerNamespace = field(
        default_factory=lambda: PerNamespace(MAX_CONNECTIONS), init=False
    )

    async def read(self, run: Run) -> Reading:
        """See MetricsSource."""
        async with outside():
            driver = asyncio.create_task(run.jobs.progress())
            nodes = {pod: asyncio.create_task(self._ask(run, pod)) for pod in self._list_due(run)}
            await finish([driver, *nodes.values()], self.sweep_seconds)
        progress, failure = _take_driver(driver)
        gpus, gpu_failure = self._take_gpus(run, nodes)
        return build_reading(progress, failure, gpus, gpu_failure)

    def _list_due(self, run: Run) -> list[Pod]:
        """Return the pods to read, oldest values first, since a sweep may not reach all."""
        if not run.num_gpus or not self._book.is_due(run.owner, self.now(), _EVERY_SECONDS):
            return []
        return sorted(
            run.trainer_pods, key=lambda pod: self._book.oldest(run.owner, _prefix_of(pod))
        )

    async def _ask(self, run: Run, pod: Pod) -> dict[str, float]:
        request = Request(
            method="GET",
            port=RAY_METRICS_PORT,
            path="/metrics",
            seconds=self.sweep_seconds,
            max_bytes=MAX_PAGE_BYTES,
            family=FAMILY,
        )
        async with self._connections.of(run.owner.namespace):
            answer = await self.reach_pod(run.owner.namespace, pod).send(request)
        if answer.status != 200:
            raise RayUnreachable(f"{request}: HTTP {answer.status}: {answer.text}")
        return parse_gpus(answer.content.decode(errors="replace"))

    def _take_gpus(
        self, run: Run, nodes: dict[Pod, asyncio.Task[dict[str, float]]]
    ) -> tuple[GpuUse | None, str]:
        if not run.num_gpus:
            return None, ""
        percents: dict[str, float] = {}
        failures = []
        for pod, task in nodes.items():
            told, failure = result_of(task)
            failures += [f"{pod.name}: {failure}"] if failure else []
            percents |= {_prefix_of(pod) + index: value for index, value in (told or {}).items()}
        now = self.now()
        if nodes:
            self._book.take_in(run.owner, percents, now)
        prefixes = [_prefix_of(pod) for pod in run.trainer_pods]
        gpus, why = self._book.judge(run.owner, run.num_gpus, now, prefixes)
        return gpus, ", ".join([why, *sorted(failures)[:1]]) if why else ""


def _take_driver(task: asyncio.Task[Progress | None]) -> tuple[Progress | None, str]:
    progress, failure = result_of(task)
    return progress, f"the driver's metrics: {failure}" if failure else ""


def _prefix_of(pod: Pod) -> str:
    """Return the prefix of the names of a pod's GPUs; a uid has no slash."""
    return f"{pod.uid}/"
