"""The kernels of heavy work, compiled by numba; `arrow_work` calls them.

They return the same bits as `pipeline_runtime.hashing`, in one pass over the values and without the
interpreter's lock, so that threads run in parallel. The constants are those of the hash, which
never change. Compiled code is cached on disk, so that processes do not compile again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from pipeline_runtime.hashing import mix64

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_INTEGER = np.uint64(int.from_bytes(b"integer.", "big"))
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_STAFFORD_1 = np.uint64(0xBF58476D1CE4E5B9)
_STAFFORD_2 = np.uint64(0x94D049BB133111EB)
_HALF_BITS = np.uint64(32)
# Arrow's memory is read-only; writable arrays are accepted as read-only ones.
_NUMBERS = numba.types.Array(numba.int64, 1, "C", readonly=True)
_BYTES = numba.types.Array(numba.int8, 1, "C", readonly=True)
_WORD = numba.uint64


def _compiled(*signatures: Any) -> Callable[[Any], Any]:
    """Compile for these types at import, or load it from the cache: no first batch waits for it."""
    return numba.njit(list(signatures), cache=True, nogil=True)  # type: ignore[no-any-return]


def is_drawn(keys: Int64s, seed: int, keep_percent: int) -> Bools:
    """Return whether a sample below 100 percent keeps each row; see `hashing.keep_mask`."""
    threshold = np.uint64((keep_percent << 64) // 100)
    drawn: Bools = _is_drawn(keys, _mixed(0) * _GOLDEN, _mixed(seed), threshold)
    return drawn


def hash_ids(values: npt.NDArray[np.signedinteger[Any]], seed: int, num_buckets: int) -> Int64s:
    """Return the buckets of integers; see `hashing.bucket_of`."""
    longs = values.astype(np.int64, copy=False)
    buckets: Int64s = _hash_ids(longs, _mixed(seed), np.uint64(num_buckets))
    return buckets


def take_lists(
    values: npt.NDArray[Any], offsets: Int64s, rows: Int64s
) -> tuple[npt.NDArray[Any], Int64s]:
    """Return the rows' lists as values [items] and offsets [rows + 1]."""
    ends = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(offsets[rows + 1] - offsets[rows], out=ends[1:])
    taken = np.empty(ends[-1], dtype=values.dtype)
    _take_lists(values, offsets, rows, ends, taken)
    return taken, ends


def _mixed(seed: int) -> np.uint64:
    with np.errstate(over="ignore"):
        mixed: np.uint64 = mix64(np.array([seed], dtype=np.uint64))[0]
    return mixed


@_compiled((_WORD,))
def _mix(value: Any) -> Any:
    value = (value ^ (value >> np.uint64(30))) * _STAFFORD_1
    value = (value ^ (value >> np.uint64(27))) * _STAFFORD_2
    return value ^ (value >> np.uint64(31))


@_compiled((_NUMBERS, _WORD, _WORD, _WORD))
def _is_drawn(keys: Any, start: Any, seed: Any, threshold: Any) -> Any:
    drawn = np.empty(len(keys), dtype=np.bool_)
    for row in range(len(keys)):
        identity = _mix(start + _mix(np.uint64(keys[row]) + _INTEGER))
        drawn[row] = _mix(identity ^ seed) < threshold
    return drawn


@_compiled((_NUMBERS, _WORD, _WORD))
def _hash_ids(values: Any, seed: Any, num_buckets: Any) -> Any:
    buckets = np.empty(len(values), dtype=np.int64)
    for row in range(len(values)):
        hashed = _mix(_mix(np.uint64(values[row]) + _INTEGER) ^ seed)
        buckets[row] = np.int64(((hashed >> _HALF_BITS) * num_buckets) >> _HALF_BITS)
    return buckets


@_compiled((_NUMBERS, _NUMBERS, _NUMBERS, numba.int64))
def pad_rows(values: Any, offsets: Any, rows: Any, length: Any) -> Any:
    """Return the rows' lists, cut or padded with zeros, as [rows, length]."""
    padded = np.zeros((len(rows), length), dtype=np.int64)
    for place in range(len(rows)):
        start, stop = offsets[rows[place]], offsets[rows[place] + 1]
        taken = min(length, stop - start)
        padded[place, :taken] = values[start : start + taken]
    return padded


@_compiled(
    (_NUMBERS, _NUMBERS, _NUMBERS, _NUMBERS, numba.int64[::1]),
    (_BYTES, _NUMBERS, _NUMBERS, _NUMBERS, numba.int8[::1]),
)
def _take_lists(values: Any, offsets: Any, rows: Any, ends: Any, taken: Any) -> None:
    for place in range(len(rows)):
        start, stop = offsets[rows[place]], offsets[rows[place] + 1]
        taken[ends[place] : ends[place + 1]] = values[start:stop]
