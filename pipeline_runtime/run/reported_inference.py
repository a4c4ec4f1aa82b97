"""Counts of a run's inference workers by group, for the metrics and the summary."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the options of a run are known before these are imported
    from pipeline_runtime.feed.over_ray.model_pool import PoolReading
    from pipeline_runtime.steps.predict.serving_counts import ServingCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounts:
    """Work of a group's inference workers in this attempt; lost and former ones are included.

    Attributes:
        workers: inference workers that take requests now; None once the group is ended.
        waiting_requests: requests that wait at these.
        ready_seconds: time of all inference workers since each had loaded its models.
    """

    group: str
    workers: int | None
    waiting_requests: int
    batches: int
    rows: int
    busy_seconds: float
    ready_seconds: float


class ReportedInference:
    """The latest counts of each inference worker; threads share it.

    It keeps the counts of lost workers, also when Ray restarts their pool, so that sums never fall.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: dict[str, tuple[str, ...] | None] = {}
        self._counts: dict[str, dict[str, ServingCounts]] = {}

    def record(self, group: str, reading: PoolReading) -> None:
        """Take a newer reading of a group."""
        with self._lock:
            self._workers[group] = reading.workers
            self._counts.setdefault(group, {}).update(reading.counts)

    def list_groups(self) -> list[GroupCounts]:
        """Return the counts of each group that was reported so far."""
        with self._lock:
            return [self._add_up(group) for group in sorted(self._workers)]

    def _add_up(self, group: str) -> GroupCounts:
        workers, counts = self._workers[group], self._counts[group]
        every = counts.values()
        return GroupCounts(
            group=group,
            workers=None if workers is None else len(workers),
            waiting_requests=sum(counts[n].num_waiting for n in workers or () if n in counts),
            batches=sum(each.num_batches for each in every),
            rows=sum(each.num_rows for each in every),
            busy_seconds=sum(each.busy_seconds for each in every),
            ready_seconds=sum(each.ready_seconds for each in every),
        )
