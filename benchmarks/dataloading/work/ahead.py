"""Bounded, ordered work ahead of its consumer, by threads of one process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Unit = TypeVar("Unit")
Made = TypeVar("Made")


def in_threads(
    make: Callable[[Unit], Made], units: Iterable[Unit], num_threads: int
) -> Iterator[Made]:
    """Yield what `make` returns for each unit, in order; at most two per thread at a time."""
    coming = iter(units)
    waiting: deque[Future[Made]] = deque()
    pool = ThreadPoolExecutor(num_threads, "ahead")
    try:
        for unit in islice(coming, 2 * num_threads):
            waiting.append(pool.submit(make, unit))
        while waiting:
            made = waiting.popleft().result()
            for unit in islice(coming, 1):
                waiting.append(pool.submit(make, unit))
            yield made
    finally:
        pool.shutdown(cancel_futures=True)
