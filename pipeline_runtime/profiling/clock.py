"""Seconds, and whose they were: a core's own, those in line for one, those of waiting.

Owned here: what makes a measurement one of one core, and what several of them come to.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import torch

from pipeline_runtime.profiling.document import Measured

# Nanoseconds on a core, nanoseconds in line for one, time slices; on Linux with CONFIG_SCHED_INFO.
_SCHEDULER_STATISTICS = Path("/proc/thread-self/schedstat")
_NANOSECONDS = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Seconds of this thread.

    Attributes:
        wall: from start to end.
        core: on a core.
        queued: ready to run, while others had the cores.
    """

    wall: float = 0.0
    core: float = 0.0
    queued: float = 0.0

    @property
    def waiting(self) -> float:
        """Neither on a core nor in line for one: waiting for the storage, mostly."""
        return max(0.0, self.wall - self.core - self.queued)

    @property
    def own(self) -> float:
        """Seconds with a core of its own: without the time in the queue for one."""
        return max(self.core, self.wall - self.queued)

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            wall=self.wall + other.wall,
            core=self.core + other.core,
            queued=self.queued + other.queued,
        )

    def __sub__(self, other: Spent) -> Spent:
        return Spent(
            wall=self.wall - other.wall,
            core=self.core - other.core,
            queued=self.queued - other.queued,
        )


def read_clock() -> Spent:
    """This thread's clocks; only the difference of two readings means anything."""
    return Spent(wall=time.perf_counter(), core=time.thread_time(), queued=_queued_seconds())


def _queued_seconds() -> float:
    try:
        return int(_SCHEDULER_STATISTICS.read_text().split()[1]) / _NANOSECONDS
    except (OSError, IndexError, ValueError):  # not Linux, or a sandbox that has no such file
        return 0.0


@contextmanager
def on_one_core() -> Iterator[None]:
    """Let Arrow and Torch use one thread, as a reader and a trainer's CPU part have, till the end.

    Ray gives each rank one logical CPU and says so in OMP_NUM_THREADS, so Torch has one there too.
    """
    arrow_threads, torch_threads = pa.cpu_count(), torch.get_num_threads()
    pa.set_cpu_count(1)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        pa.set_cpu_count(arrow_threads)
        torch.set_num_threads(torch_threads)


def summarise(values: Sequence[float]) -> Measured:
    """Median, smallest and largest of at least one repetition."""
    return Measured(
        median=statistics.median(values), low=min(values), high=max(values), times=len(values)
    )
