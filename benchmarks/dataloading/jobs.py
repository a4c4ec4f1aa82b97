"""The job of a measuring process: one epoch of one loader."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.dataloading.workloads import Workload

# Consumers of batches. The timed one only receives the tensors; the proof reads all their values.
TAKE, PROVE = "take", "prove"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One epoch to measure: of one of `peers.LOADERS`, for `TAKE` or `PROVE`."""

    loader: str
    workload: Workload
    consumer: str = TAKE
