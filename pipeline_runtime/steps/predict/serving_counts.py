"""Counts of an inference worker's work, of which the metrics of its group are made."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingCounts:
    """Work of an inference worker so far.

    Attributes:
        num_batches: batches that a model has scored.
        num_rows: rows of these batches; a row counts once for each model, and again if it is
            scored again.
        busy_seconds: time in calls of the models, with the elapsed part of the open one.
        ready_seconds: time since the models were loaded.
        num_waiting: requests that no batch has begun to score.
    """

    num_batches: int = 0
    num_rows: int = 0
    busy_seconds: float = 0.0
    ready_seconds: float = 0.0
    num_waiting: int = 0


class CallMeter:
    """Measures the calls of the models of a process, one of which is open at a time.

    Args:
        clock: seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ready_at = clock()
        self._called_at: float | None = None  # start of the open call
        self._busy_seconds = 0.0
        self._num_batches = 0
        self._num_rows = 0

    @contextmanager
    def measure(self, num_rows: int) -> Iterator[None]:
        """Measure a call of a model; its rows count unless it raises."""
        began = self._clock()
        with self._lock:
            self._called_at = began
        scored = 0
        try:
            yield
            scored = 1
        finally:
            with self._lock:
                self._busy_seconds += self._clock() - began
                self._called_at = None
                self._num_batches += scored
                self._num_rows += scored * num_rows

    def read(self, num_waiting: int) -> ServingCounts:
        """Return the counts at this moment, with the number of waiting requests."""
        with self._lock:
            now = self._clock()
            open_seconds = 0.0 if self._called_at is None else now - self._called_at
            return ServingCounts(
                num_batches=self._num_batches,
                num_rows=self._num_rows,
                busy_seconds=self._busy_seconds + open_seconds,
                ready_seconds=now - self._ready_at,
                num_waiting=num_waiting,
            )
