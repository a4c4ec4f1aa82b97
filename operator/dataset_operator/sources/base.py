"""Defines the interface of metrics sources, with the helpers that both sources share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from dataset_operator.api import HEAD, TRAINERS
from dataset_operator.autoscaling.interface import PERIOD_SECONDS
from dataset_operator.errors import MetricsUnreachable, RayUnreachable
from dataset_operator.names import Owner
from dataset_operator.observed import Pod, Progress
from dataset_operator.ray.jobs import RayJobs
from dataset_operator.sources.gpus import GpuUse

# A value older than this many periods of the autoscaling policy counts as unknown.
STALE_SCRAPES = 3
STALE_SECONDS = STALE_SCRAPES * PERIOD_SECONDS

_Told = TypeVar("_Told")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The attempt whose metrics are read.

    Attributes:
        jobs: Ray of its cluster.
        pods: of its cluster.
        trainers: number of trainer pods that its cluster was created with; None: unknown.
        gpus_per_trainer: GPUs of each; 0: they train on CPUs.
        since: when the attempt was submitted; older values belong to another attempt.
    """

    owner: Owner
    jobs: RayJobs
    pods: tuple[Pod, ...]
    trainers: int | None = None
    gpus_per_trainer: int = 0
    since: datetime

    @property
    def head(self) -> Pod | None:
        """The head's pod."""
        return next((pod for pod in self.pods if pod.role == HEAD), None)

    @property
    def trainer_pods(self) -> list[Pod]:
        """The trainer pods that are ready."""
        return [pod for pod in self.pods if pod.role == TRAINERS and pod.ready and pod.ip]

    @property
    def num_gpus(self) -> int:
        """GPUs of all trainers; 0 if they have none, or if it is unknown."""
        return (self.trainers or 0) * self.gpus_per_trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The values that a source read.

    Attributes:
        progress: the known values; None: none.
        unknown: a message about the unknown values and their reason; "" if all are known.
    """

    progress: Progress | None = None
    unknown: str = ""


class MetricsSource(Protocol):
    """Reads the metrics of a run."""

    async def read(self, run: Run) -> Reading:
        """Return the values that arrive within a few seconds; report failures, never raise."""


def build_reading(
    progress: Progress | None, failure: str, gpus: GpuUse | None, gpu_failure: str
) -> Reading:
    """Combine the values of the driver and of the GPUs' exporters.

    Args:
        failure, gpu_failure: why the driver or the GPUs reported nothing, or not all; "": they did.
    """
    known = progress or Progress()
    if gpus is not None:
        known = replace(known, gpu_utilization_ratio=gpus.mean, slowest_gpu_ratio=gpus.slowest)
    reasons = [failure or _find_missing(known), gpu_failure]
    return Reading(
        progress=None if known == Progress() else known,
        unknown="; ".join(reason for reason in reasons if reason),
    )


def _find_missing(progress: Progress) -> str:
    counters = progress.counters
    if counters.trainer is None:
        return "the driver does not report all metrics lastmile_run_* of its trainers"
    if counters.workers is None or counters.readers is None:
        return "the driver does not report all metrics lastmile_run_* of its data workers"
    return ""


@dataclass(slots=True)
class PerNamespace:
    """A bound on simultaneous requests for each namespace.

    If the requests of one namespace hang, those of others do not wait for them.
    """

    number: int
    _free: WeakValueDictionary[str, asyncio.Semaphore] = field(
        default_factory=WeakValueDictionary, init=False
    )

    def of(self, namespace: str) -> asyncio.Semaphore:
        """Return the semaphore of a namespace; it exists while it is used."""
        return self._free.setdefault(namespace, asyncio.Semaphore(self.number))


async def finish(tasks: Sequence[asyncio.Task[Any]], seconds: float) -> None:
    """Wait for tasks; cancel those that are not done in time, or if the pass is cancelled."""
    try:
        await asyncio.wait(tasks, timeout=seconds)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def result_of(task: asyncio.Task[_Told]) -> tuple[_Told | None, str]:
    """Return a finished task's result, or why there was no answer; raise any other error."""
    if task.cancelled():
        return None, "no answer in time"
    try:
        return task.result(), ""
    except (RayUnreachable, MetricsUnreachable) as error:
        return None, str(error)
