"""What a source of metrics is asked, and what it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from dataset_operator.api import HEAD, TRAINERS
from dataset_operator.autoscaling.decision import PERIOD_SECONDS
from dataset_operator.errors import MetricsUnreachable, RayUnreachable
from dataset_operator.names import Owner
from dataset_operator.observed import Pod, Progress
from dataset_operator.ray.jobs import RayJobs
from dataset_operator.sources.gpus import GpuUse

# A value older than so many of the law's periods is not known any more (design, «Signals»).
STALE_SCRAPES = 3
STALE_SECONDS = STALE_SCRAPES * PERIOD_SECONDS

_Told = TypeVar("_Told")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The attempt whose numbers are asked for.

    Attributes:
        jobs: Ray of its cluster.
        pods: of its cluster.
        trainers: pods with trainers that its cluster was made with; None: it does not say.
        gpus_per_trainer: GPUs of each; 0: they train on CPUs.
        since: when the attempt was submitted; numbers from before are another's.
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
        """Pods with trainers that are up."""
        return [pod for pod in self.pods if pod.role == TRAINERS and pod.ready and pod.ip]

    @property
    def num_gpus(self) -> int:
        """GPUs of all trainers; 0 if they have none, or nobody knows."""
        return (self.trainers or 0) * self.gpus_per_trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a source told.

    Attributes:
        progress: what is known; None: nothing.
        unknown: what is not and why, in words; "" if all is known.
    """

    progress: Progress | None = None
    unknown: str = ""


class MetricsSource(Protocol):
    """Tells the numbers of a run."""

    async def read(self, run: Run) -> Reading:
        """Within a few seconds, whatever is reached by then; failures are told, not raised."""


def build_reading(
    progress: Progress | None, failure: str, gpus: GpuUse | None, gpu_failure: str
) -> Reading:
    """What the driver and the GPUs' exporters told, as one.

    Args:
        failure, gpu_failure: why one of them told nothing, or not all of it; "": it did.
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
        return "the driver does not tell lastmile_run_* of its trainers, or not all of them"
    if counters.workers is None or counters.readers is None:
        return "the driver does not tell lastmile_run_* of its data workers, or not all of them"
    return ""


@dataclass(slots=True)
class PerNamespace:
    """A bound of simultaneous requests for each namespace.

    A namespace whose requests hang keeps no other one's waiting.
    """

    number: int
    _free: WeakValueDictionary[str, asyncio.Semaphore] = field(
        default_factory=WeakValueDictionary, init=False
    )

    def of(self, namespace: str) -> asyncio.Semaphore:
        """Return the semaphore of a namespace; it exists as long as somebody uses it."""
        return self._free.setdefault(namespace, asyncio.Semaphore(self.number))


async def finish(tasks: Sequence[asyncio.Task[Any]], seconds: float) -> None:
    """Wait so long; what is not done then, or when the pass is cut off, is given up."""
    try:
        await asyncio.wait(tasks, timeout=seconds)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def result_of(task: asyncio.Task[_Told]) -> tuple[_Told | None, str]:
    """What a finished task came to, and why it did not; another error than no answer is raised."""
    if task.cancelled():
        return None, "no answer in time"
    try:
        return task.result(), ""
    except (RayUnreachable, MetricsUnreachable) as error:
        return None, str(error)
