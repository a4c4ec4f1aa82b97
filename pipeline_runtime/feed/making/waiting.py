"""Measures the time in which a reader waits for inference workers, and does no work itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_OF_THREAD = threading.local()


@contextmanager
def waiting() -> Iterator[None]:
    """Count the time of the context as a wait of this thread."""
    started = time.perf_counter()
    try:
        yield
    finally:
        _OF_THREAD.seconds = read_waited() + time.perf_counter() - started


def read_waited() -> float:
    """Return the seconds that this thread has waited so far."""
    seconds: float = getattr(_OF_THREAD, "seconds", 0.0)
    return seconds
