"""Compile kernels or load them from numba's cache, in the background.

numba takes half a second to import and, with an empty cache, 15 s or more to compile. Nobody waits
for that: a thread loads them, and until it is done the plain path does the work. An import holds
Python's lock nearly all the time, so loading begins with the first large table after a pause: the
first batch would come after it otherwise. A process that only sees small tables, or ends its work
within the pause, never imports numba. Loading ends when its run or the process does.
"""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

UInt32s = npt.NDArray[np.uint32]
UInt64s = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[Any]

# Between the first large table and loading. A first batch of wide rows takes a tenth of a second.
_PAUSE_SECONDS = 0.3
# Items of one call that make loading worth it: a millisecond of the plain path.
MIN_ITEMS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetKernels:
    """The kernels that read Parquet pages."""

    # (chunk; written: a row a page)
    read_headers: Callable[[Bytes, Int64s], int]
    # (chunks, written: what came of each; memory to work in), see `whole_chunks`
    decode: Callable[[npt.NDArray[np.void], Bytes], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Functions on contiguous, aligned arrays; the last argument is written to."""

    # (items, starts, lengths, length, fill, out): rows of `length` items, cut or filled up; items,
    # fill and out are unsigned integers of one width, whatever they mean.
    pad: Callable[[Numbers, UInt64s, UInt64s, np.uint64, np.unsignedinteger[Any], Numbers], None]
    # (integers of any width, salt, out): see hashing._hash_integers.
    hash_integers: Callable[[Numbers, np.uint64, UInt64s], None]
    # (bytes, where values start and the last one ends, salt, out): see hashing._hash_byte_values.
    hash_bytes: Callable[[npt.NDArray[np.uint8], UInt64s, np.uint64, UInt64s], None]
    # (hashes on the right; written: on the left, their combination), see hashing.combine.
    combine: Callable[[UInt64s, UInt64s], None]
    # (seed, already mixed, number of buckets, hashes): hashes become buckets, see bucket_of.
    bucket: Callable[[np.uint64, np.uint64, UInt64s], None]
    # (hashes, shift, starts of buckets, hashes of groups, out): each hash's group, or −1; see
    # steps.side_tables.KeyIndex.
    find_groups: Callable[[UInt64s, np.uint64, Int64s, UInt64s, Int64s], None]
    # (values, out) and (bytes, where values start and the last one ends, out): see `murmur`.
    murmur_longs: Callable[[Int64s, UInt32s], None]
    murmur_bytes: Callable[[Bytes, UInt64s, UInt32s], None]
    parquet: ParquetKernels


class _Loader:
    """The kernels of this process, loaded at most once."""

    def __init__(self) -> None:
        self.kernels: Kernels | None = None
        self.compiling_since: float | None = None  # by the monotonic clock; from a cache too
        self._wanted_since: float | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def note_large_table(self) -> None:
        """Start to load, if the first large table was seen a while ago."""
        now = time.monotonic()
        if self._wanted_since is None:
            self._wanted_since = now
        elif now - self._wanted_since >= _PAUSE_SECONDS:
            self.start()

    def start(self) -> threading.Thread:
        with self._lock:
            if self._thread is None:
                self._stop = threading.Event()
                # Not a daemon: the interpreter must not be torn down around a running compiler.
                self._thread = threading.Thread(
                    target=self._load, args=(self._stop,), name="lastmile-kernels"
                )
                self._thread.start()
            return self._thread

    def stop(self) -> None:
        """End loading, if it has not finished; later large tables start it again."""
        with self._lock:
            self._stop.set()
            if self.kernels is None:
                self._thread = self._wanted_since = self.compiling_since = None

    def _load(self, stop: threading.Event) -> None:
        try:
            from pipeline_runtime.kernels.compiled import compile_kernels
        except ImportError:  # not installed, or not for this numpy: the plain path it is
            return

        def is_wanted() -> bool:
            return not stop.is_set() and threading.main_thread().is_alive()

        with self._lock:  # `stop` must not come between
            if not is_wanted():
                return
            self.compiling_since = time.monotonic()
        self.kernels = compile_kernels(is_wanted) or self.kernels


_LOADER = _Loader()


def select(wanted: bool, num_items: int) -> Kernels | None:
    """Return the kernels if they are wanted and ready; never wait.

    Args:
        wanted: `pipelineOptions.debug.kernels`.
        num_items: items of the work at hand; only work of `MIN_ITEMS` or more is worth loading.
    """
    if not wanted:
        return None
    if _LOADER.kernels is None and num_items >= MIN_ITEMS:
        _LOADER.note_large_table()
    return _LOADER.kernels


def warm() -> bool:
    """Load the kernels and wait for them. Returns False where numba is not installed."""
    _LOADER.start().join()
    return _LOADER.kernels is not None


def stop_loading() -> None:
    """End loading, for the work that wanted the kernels is over; a compiler ends at its next pass.

    Kernels that are ready stay, and later work starts to load them again.
    """
    _LOADER.stop()


def loading_seconds() -> float:
    """Return how long kernels have been loading, once numba is imported; 0 when they are there.

    Beyond a few seconds they are being compiled, since numba's cache did not have them.
    """
    since = _LOADER.compiling_since
    return 0.0 if since is None or _LOADER.kernels is not None else time.monotonic() - since


def describe(wanted: bool, plain: str = "numpy") -> str:
    """Describe the chosen path and the reason; `plain` names the path without kernels."""
    if not wanted:
        return f"by {plain}, since pipelineOptions.debug.kernels is false"
    if importlib.util.find_spec("numba") is None:
        return f"by {plain}, since numba is not installed"
    return "by compiled kernels, once a process has loaded them"
