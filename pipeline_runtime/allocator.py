"""Make Arrow's allocator keep freed memory for a while.

Chunks come and go by the second, and the next one's buffers are as large. mimalloc, Arrow's default
allocator, gives memory back to the system within a second, to take it again page by page: about a
tenth of the time of reading a table, most of it in the kernel, where threads of one process wait
for each other (docs/benchmarks.md). `MIMALLOC_PURGE_DELAY`, which mimalloc reads as Arrow is
loaded, is how long it waits; whoever sets it beforehand has it their way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

# Milliseconds: far longer than from one chunk to the next; what a phase needed is given back soon.
_ENVIRONMENT: Final[Mapping[str, str]] = {"MIMALLOC_PURGE_DELAY": "10000"}


def keep_freed_memory() -> dict[str, str]:
    """Set it for this process, if Arrow is not loaded yet, and for those that it starts.

    Returns the environment variables as they are now, for processes that others start.
    """
    return {name: os.environ.setdefault(name, value) for name, value in _ENVIRONMENT.items()}
