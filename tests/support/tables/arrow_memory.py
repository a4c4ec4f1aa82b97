"""The peak of Arrow's memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa


@contextmanager
def measure_arrow_memory() -> Iterator[pa.MemoryPool]:
    """Yield a pool whose `max_memory()` is the peak of Arrow's allocations in the block."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)
