"""Records the progress of one rank: rows, steps and points of the metrics history.

`context` fills it; the thread that reports to the monitor reads it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from pipeline_runtime.batches import Batch
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.monitor import HistoryPoint

# Least time between points of the history: an hour has fewer than 10,000 points per metric.
HISTORY_SECONDS = 0.5


@dataclass(slots=True, kw_only=True)
class Records:
    """Progress of one rank in this attempt.

    Attributes:
        waited: seconds of this rank's time, by how they were spent.
        first_batch_at: Unix time.
        samples: rows in this attempt; the position counts the whole run.
        finished: steps of this attempt, with their rows and seconds without waits for production.
        pending: points that the reporting thread has not taken yet.
    """

    waited: Waited
    started: float = field(default_factory=time.perf_counter)
    first_batch_at: float | None = None
    samples: int = 0
    batch_bytes: int = 0
    padded_rows: int = 0
    last_step_seconds: float = 0.0
    finished: tuple[int, int, float] = (0, 0, 0.0)
    metrics: dict[str, float] = field(default_factory=dict)
    pending: deque[HistoryPoint] = field(default_factory=deque)
    last_point: float = 0.0
    loop_started: float | None = None
    paused_since: float | None = None
    reported_seconds: float = 0.0
    is_finished: bool = False

    def seconds(self) -> float:
        """Return the seconds since the attempt began."""
        return time.perf_counter() - self.started

    def start_loop(self) -> None:
        """Record the time at which the first batch is requested."""
        if self.loop_started is None:
            self.loop_started = time.perf_counter()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Count the time of a block as paused."""
        started = self.paused_since = time.perf_counter()
        try:
            yield
        finally:
            self.waited.paused += time.perf_counter() - started
            self.paused_since = None

    def loop_seconds(self) -> float:
        """Return the seconds since `start_loop`, without pauses; called by the reporting thread."""
        since, now = self.paused_since, time.perf_counter()  # in this order: never negative
        pausing = 0.0 if since is None else now - since
        running = 0.0 if self.loop_started is None else now - self.loop_started
        # A pause that ends right now may be subtracted twice; never report less than before.
        self.reported_seconds = max(self.reported_seconds, running - self.waited.paused - pausing)
        return self.reported_seconds

    def finish_step(self, seconds: float, production_seconds: float) -> None:
        """Record the end of a step; its totals are replaced at once, since a thread reads them.

        Args:
            seconds: the entrypoint's time between two batches.
            production_seconds: the loop's waits for production so far.
        """
        self.last_step_seconds = seconds
        unstarved = self.loop_seconds() - production_seconds
        self.finished = (self.finished[0] + 1, self.samples, max(self.finished[2], unstarved))

    def add_batch(self, batch: Batch, rows: int) -> None:
        """Count a batch that the entrypoint gets."""
        if self.first_batch_at is None:
            self.first_batch_at = time.time()
        self.samples += rows
        self.batch_bytes += sum(t.numel() * t.element_size() for t in batch.values())

    def add_point(self, epoch: int, step: int, metrics: Mapping[str, float]) -> None:
        """Record metrics of a step for the history."""
        self.pending.append(
            HistoryPoint(seconds=self.seconds(), epoch=epoch, step=step, metrics=dict(metrics))
        )

    def is_point_due(self) -> bool:
        """Return whether to record throughput now: True at most every HISTORY_SECONDS."""
        now = self.seconds()
        if now - self.last_point < HISTORY_SECONDS:
            return False
        self.last_point = now
        return True
