"""Stores the records of chunks: at once on a local disk, several at a time on an object store.

There each is a request of some 50 ms, and one after another would be the limit of a large cluster.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from pipeline_runtime.output import names
from pipeline_runtime.output.records import ChunkRecord, write_record
from pipeline_runtime.output.storage import Storage

# Requests at a time.
_REQUESTS = 16
# An attempt that has lost its run to another one notices it so soon.
_CHECK_SECONDS = 1.0


class Recorder:
    """Stores records; use it by `recording`."""

    def __init__(self, staged: Storage, check_claim: Callable[[], None]) -> None:
        self._staged = staged
        self._check_claim = check_claim
        self._checked = float("-inf")
        self._pool = None if staged.is_local else ThreadPoolExecutor(_REQUESTS, "lastmile-records")
        self._storing: deque[tuple[Future[None], ChunkRecord]] = deque()

    def put(self, record: ChunkRecord) -> list[ChunkRecord]:
        """Store a record, perhaps later; return the records that were stored since."""
        if self._pool is None or time.monotonic() - self._checked >= _CHECK_SECONDS:
            self._check_claim()
            self._checked = time.monotonic()
        path = f"{names.CHUNKS_FOLDER}/{names.name_chunk(record.group, record.chunk)}"
        if self._pool is None:
            write_record(self._staged, path, record)
            return [record]
        future = self._pool.submit(write_record, self._staged, path, record)
        self._storing.append((future, record))
        return list(self._take(_REQUESTS))

    def drain(self) -> list[ChunkRecord]:
        """Wait for the other records, and return them."""
        return list(self._take(0))

    def _take(self, most_left: int) -> Iterator[ChunkRecord]:
        while self._storing and (len(self._storing) > most_left or self._storing[0][0].done()):
            future, record = self._storing.popleft()
            future.result()
            yield record

    def close(self) -> None:
        """Give up what has not begun."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


@contextmanager
def recording(staged: Storage, check_claim: Callable[[], None]) -> Iterator[Recorder]:
    """Yield a recorder for a run's chunks.

    Args:
        check_claim: raises if the run belongs to another attempt.
    """
    recorder = Recorder(staged, check_claim)
    try:
        yield recorder
    finally:
        recorder.close()
