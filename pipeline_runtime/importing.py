"""How a process imports what is heavy: without Python's collector, which would find nothing.

Torch, Arrow and pandas leave some 400,000 objects that live as long as the process. While they come
the collector walks over them again and again, a sixth of the time of importing; every full
collection thereafter walks over them once more.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Hold the collector off for the block; what it leaves is never looked at again."""
    if not gc.isenabled():  # whoever switched it off, or an outer block, has it their way
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # else all of it would be young, and the next collection as long
        gc.enable()
