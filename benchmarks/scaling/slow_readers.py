"""Readers as slow as they are told; imported by their processes, so nothing heavy is imported here.

A slow reader makes its piece as any other does and sleeps until the piece has taken its time; only
then does the piece go into the object store.
"""

from __future__ import annotations

import time

import pyarrow as pa

from pipeline_runtime.errors import LastmileError
from pipeline_runtime.feed.actor_readers import Reader
from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.wire import Wire, unpack


def slowed(rows_per_second: float) -> type[Reader]:
    """Readers that take a piece's rows / `rows_per_second` seconds for it at least, work in it."""

    class SlowReader(Reader):
        def make(self, role: str, task: Task, wire: Wire) -> pa.Table:
            started = time.perf_counter()
            block = super().make(role, task, wire)
            num_rows = sum(piece.header.num_rows for piece in unpack(block))
            time.sleep(rest_seconds(num_rows, rows_per_second, time.perf_counter() - started))
            return block

    return SlowReader


def rest_seconds(num_rows: int, rows_per_second: float, spent_seconds: float) -> float:
    """What is left to sleep of a piece's time; nothing of one that took longer."""
    return max(0.0, num_rows / rows_per_second - spent_seconds)


def ignore_failure(error: LastmileError) -> None:
    """Ray raises the failure in the trainer too; there is no monitor to tell."""
    del error
