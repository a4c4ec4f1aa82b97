"""One measured epoch: from the request for the first batch to the end of the consumer's last.

The clock starts before the loader looks at the table, so listing files, reading footers, planning
and starting workers count; importing libraries, starting Ray and building the model do not. It
stops at the tensors that the model reads. The steady state is the middle 80 % of the rows.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from benchmarks.dataloading.jobs import Job
from benchmarks.dataloading.measuring.checksums import Sums, num_rows
from benchmarks.dataloading.measuring.consumers import CONSUMERS
from benchmarks.harness.machine import tree_cpu_seconds
from pipeline_runtime.batches import Batch

# Work that was started ahead for a stopped epoch must not run while the next epoch is measured.
_IDLE_SHARE, _LOOK_SECONDS, _MAX_LOOKS = 0.2, 0.1, 50
# The steady state lies between these shares of an epoch's rows.
_STEADY_FROM, _STEADY_TO = 0.1, 0.9


class Loader(Protocol):
    """A loader of batches."""

    def batches(self) -> Iterator[Batch]:
        """Yield the next epoch's batches. Called again only after the previous epoch has ended."""
        ...

    def profile(self) -> dict[str, float]:
        """Return the seconds spent inside the loader, after the epoch; empty if it counts none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """The middle of an epoch: seconds and rows between the arrivals of two batches."""

    seconds: float
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """Measurements of an epoch.

    `cpu_seconds` are those of all its processes, None where unknown; `cold_seconds` from the start
    of the process to the first batch and `peak_bytes` of all processes, None but in a fresh one;
    `next_first_batch_seconds` from this epoch's end to the next one's first batch, None if nobody
    asked for it.
    """

    job: Job
    seconds: float
    first_batch_seconds: float
    first_batch_at: float  # by the system's clock, which other processes share
    steady: Steady
    batches: int
    num_bytes: int
    cpu_seconds: float | None
    sums: Sums
    profile: dict[str, float]
    next_first_batch_seconds: float | None = None
    cold_seconds: float | None = None
    peak_bytes: int | None = None

    @property
    def rows_out(self) -> int:
        """The number of rows that reached the consumer."""
        return self.sums.get("rows", 0)

    @property
    def steady_seconds_a_row(self) -> float:
        """Seconds per delivered row in the steady state."""
        return self.steady.seconds / max(1, self.steady.rows)

    def rows_per_second(self, rows_in: int) -> float:
        """Input rows per second over the whole epoch."""
        return rows_in / self.seconds

    def steady_rows_per_second(self, rows_in: int) -> float:
        """Input rows per second in the steady state; each delivered row stands for equally many."""
        return rows_in / max(1, self.rows_out) / max(self.steady_seconds_a_row, 1e-12)


def run_epoch(job: Job, open_loader: Callable[[], Loader], *helpers: int) -> Epoch:
    """Measure one epoch in this process. `helpers` are pids of processes that work for it."""
    roots = (os.getpid(), *helpers)
    consumer = CONSUMERS[job.consumer](job.workload)
    gc.collect()
    cpu = tree_cpu_seconds(*roots)
    num_bytes = rows = 0
    arrivals: list[tuple[float, int]] = []  # the time, and the number of rows until then
    first_batch_at = 0.0
    started = time.perf_counter()
    loader = open_loader()
    for batch in islice(loader.batches(), 1 if job.until_first_batch else None):
        first_batch_at = first_batch_at or time.time()
        rows += num_rows(batch)
        arrivals.append((time.perf_counter() - started, rows))
        num_bytes += sum(tensor.nbytes for tensor in batch.values())
        consumer.take(batch)
    seconds = time.perf_counter() - started
    used = tree_cpu_seconds(*roots)
    profile = {} if job.until_first_batch else loader.profile()
    next_seconds = _time_first_batch(loader) if job.asks_again else None
    del loader
    gc.collect()  # ends a DataLoader's workers
    _wait_until_idle(*roots)
    return Epoch(
        job=job,
        seconds=seconds,
        first_batch_seconds=arrivals[0][0] if arrivals else seconds,
        first_batch_at=first_batch_at or time.time(),
        steady=find_steady(arrivals, seconds),
        batches=len(arrivals),
        num_bytes=num_bytes,
        cpu_seconds=used - cpu if cpu is not None and used is not None else None,
        sums=consumer.sums,
        profile=profile,
        next_first_batch_seconds=next_seconds,
    )


def find_steady(arrivals: Sequence[tuple[float, int]], seconds: float) -> Steady:
    """Return the steady part of an epoch, or the whole epoch if it has too few batches.

    Args:
        arrivals: for each batch, the seconds since the start and the rows delivered until then.
        seconds: of the whole epoch.
    """
    rows = arrivals[-1][1] if arrivals else 0
    first = next((a for a in arrivals if a[1] >= _STEADY_FROM * rows), (0.0, 0))
    last = next((a for a in arrivals if a[1] >= _STEADY_TO * rows), (seconds, rows))
    if last[1] <= first[1] or last[0] <= first[0]:
        return Steady(seconds=seconds, rows=rows)
    return Steady(seconds=last[0] - first[0], rows=last[1] - first[1])


def _time_first_batch(loader: Loader) -> float:
    """Return the seconds to the first batch of an epoch, and stop the epoch there."""
    started = time.perf_counter()
    batches = loader.batches()
    next(batches, None)
    return time.perf_counter() - started


def _wait_until_idle(*roots: int) -> None:
    """Wait until these processes use almost no CPU time, for a few seconds at most."""
    used = tree_cpu_seconds(*roots)
    for _ in range(_MAX_LOOKS):
        time.sleep(_LOOK_SECONDS)
        before, used = used, tree_cpu_seconds(*roots)
        if before is None or used is None or used - before <= _IDLE_SHARE * _LOOK_SECONDS:
            return
