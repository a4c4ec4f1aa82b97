"""The job of a measuring process: one epoch of one loader with its settings."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

from benchmarks.dataloading.workloads import Workload

BATCHES: Final = "batches"
ROW_GROUPS: Final = "row groups"
# Consumers of batches. The timed one only receives the tensors; the proof reads all their values.
TAKE, PROVE = "take", "prove"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Settings of a peer. A peer ignores those that it does not have.

    Args:
        workers: processes of a DataLoader; with 0 the trainer's own process does the work.
        prefetch: units that each worker makes ahead; ignored without workers.
        unit: what workers send: `BATCHES` of exact size, or whole `ROW_GROUPS` in one buffer.
        groups: row groups that one task of Ray reads.
    """

    workers: int = 0
    prefetch: int = 2
    unit: str = BATCHES
    groups: int = 1

    def __str__(self) -> str:
        """Format the settings that differ from the default."""
        plain = Tuning()
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        changed = [f"{n} {v}" for n, v in found.items() if v != getattr(plain, n)]
        return ", ".join(changed) or "defaults"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One epoch to measure.

    Args:
        loader: one of `peers.LOADERS`.
        workload: level and table.
        consumer: `TAKE` or `PROVE`.
        tuning: of the loader.
        until_first_batch: stop the epoch after its first batch.
        asks_again: request the next epoch's first batch when this epoch has ended.
        keeps_memory: the process keeps freed memory for a while, as `lastmile` sets it.
    """

    loader: str
    workload: Workload
    consumer: str = TAKE
    tuning: Tuning = field(default_factory=Tuning)
    until_first_batch: bool = False
    asks_again: bool = False
    keeps_memory: bool = True

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Self:
        """Return the job of `dataclasses.asdict`, after a way as JSON."""
        work = found["workload"]
        work["options"] = tuple((name, value) for name, value in work["options"])
        work["more_columns"] = tuple(work["more_columns"])
        return cls(**found | {"workload": Workload(**work), "tuning": Tuning(**found["tuning"])})
