"""One measured epoch: from asking a loader for its first batch to the consumer's last.

The clock starts before the loader looks at the table, so listing files, reading footers, planning
and starting workers count; importing libraries, starting Ray and building the model do not.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from benchmarks.dataloading.checksums import Sums, num_rows
from benchmarks.dataloading.consumers import CONSUMERS
from benchmarks.dataloading.machine import tree_cpu_seconds
from benchmarks.dataloading.workloads import Workload
from pipeline_runtime.batches import Batch


class Loader(Protocol):
    """What brings an epoch's batches."""

    def batches(self) -> Iterator[Batch]:
        """The batches, once."""
        ...

    def profile(self) -> dict[str, float]:
        """Seconds inside the loader, after the epoch; empty if it counts none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One epoch to measure.

    Args:
        loader: one of `hosts.LOADERS`.
        workload: level and table.
        consumer: one of `consumers.CONSUMERS`.
        num_workers: of a DataLoader; other loaders pay no heed to it.
    """

    loader: str
    workload: Workload
    consumer: str
    num_workers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """What an epoch gave; `cpu_seconds` are those of all its processes, None where unknown."""

    job: Job
    seconds: float
    first_batch_seconds: float
    first_batch_rows: int
    batches: int
    num_bytes: int
    cpu_seconds: float | None
    sums: Sums
    profile: dict[str, float]

    @property
    def rows_out(self) -> int:
        """Rows that reached the consumer."""
        return self.sums["rows"]

    def rows_per_second(self, rows_in: int) -> float:
        """Input rows over the whole epoch."""
        return rows_in / self.seconds

    def steady_rows_per_second(self, rows_in: int) -> float:
        """Input rows after the first batch, over the time after it; all of one that is alone."""
        rest = 1 - self.first_batch_rows / max(1, self.rows_out)
        if rest <= 0:
            return self.rows_per_second(rows_in)
        return rows_in * rest / max(self.seconds - self.first_batch_seconds, 1e-9)


def run_epoch(job: Job, open_loader: Callable[[], Loader]) -> Epoch:
    """Measure one epoch in this process."""
    consumer = CONSUMERS[job.consumer](job.workload)
    gc.collect()
    cpu = tree_cpu_seconds()
    batches = num_bytes = first_rows = 0
    first_seconds = 0.0
    started = time.perf_counter()
    loader = open_loader()
    for batch in loader.batches():
        if batches == 0:
            first_seconds, first_rows = time.perf_counter() - started, num_rows(batch)
        batches += 1
        num_bytes += sum(tensor.nbytes for tensor in batch.values())
        consumer.take(batch)
    seconds = time.perf_counter() - started
    profile = loader.profile()
    del loader
    gc.collect()  # ends a DataLoader's workers, whose time the system counts only then
    used = tree_cpu_seconds()
    return Epoch(
        job=job,
        seconds=seconds,
        first_batch_seconds=first_seconds,
        first_batch_rows=first_rows,
        batches=batches,
        num_bytes=num_bytes,
        cpu_seconds=used - cpu if cpu is not None and used is not None else None,
        sums=consumer.sums,
        profile=profile,
    )
