"""One measured epoch: from the request for the first batch to the end of the last one.

The clock starts before the loader looks at the table, so listing files, reading footers, planning
and starting workers count; importing libraries and starting Ray do not. It stops at the tensors
that the model reads. The steady state is the middle 80 % of the rows.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.dataloading.jobs import PROVE, Job
from benchmarks.dataloading.measuring.checksums import Sums, add_sums, identities_of, proof_of
from benchmarks.harness.machine import tree_cpu_seconds
from pipeline_runtime.batches import ROW_WEIGHT

# The steady state lies between these shares of an epoch's rows.
_STEADY_FROM, _STEADY_TO = 0.1, 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """The middle of an epoch: seconds and rows between the arrivals of two batches."""

    seconds: float
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """Measurements of an epoch."""

    seconds: float
    first_batch_at: float  # by the system's clock, which other processes share
    steady_seconds_a_row: float  # of delivered rows
    cpu_seconds: float  # of all its processes
    sums: Sums  # of all batches


def run_epoch(job: Job, open_loader: Callable[[], Any]) -> Epoch:
    """Measure one epoch in this process."""
    sums_of, sums = proof_of if job.consumer == PROVE else identities_of, Sums()
    gc.collect()
    cpu = tree_cpu_seconds(os.getpid()) or 0.0
    rows, first_batch_at = 0, 0.0
    arrivals: list[tuple[float, int]] = []  # the time, and the number of rows until then
    started = time.perf_counter()
    loader = open_loader()
    for batch in loader.batches():
        first_batch_at = first_batch_at or time.time()
        rows += len(batch[ROW_WEIGHT])
        arrivals.append((time.perf_counter() - started, rows))
        sums = add_sums(sums, sums_of(batch))
    seconds = time.perf_counter() - started
    used = (tree_cpu_seconds(os.getpid()) or 0.0) - cpu
    del loader
    gc.collect()  # ends a DataLoader's workers
    steady = find_steady(arrivals, seconds)
    return Epoch(
        seconds=seconds,
        first_batch_at=first_batch_at or time.time(),
        steady_seconds_a_row=steady.seconds / max(1, steady.rows),
        cpu_seconds=used,
        sums=sums,
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
