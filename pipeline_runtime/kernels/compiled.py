"""The kernels themselves, compiled by numba for fixed types; only `loading` imports this module.

All arithmetic is on uint64: it wraps as the hash needs, and an unsigned index is never checked for
being negative, which lets the compiler turn loops over items into moves of whole vectors. Read-only
arrays (Arrow's memory) are as welcome as others.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core import event

from pipeline_runtime.kernels import murmur, page_headers, whole_chunks
from pipeline_runtime.kernels.chunks import COLUMN
from pipeline_runtime.kernels.loading import Int64s, Kernels, Numbers, ParquetKernels, UInt64s
from pipeline_runtime.kernels.splitmix import GOLDEN, STAFFORD_1, STAFFORD_2

_GOLDEN, _STAFFORD_1, _STAFFORD_2 = np.uint64(GOLDEN), np.uint64(STAFFORD_1), np.uint64(STAFFORD_2)
_0, _1, _8 = np.uint64(0), np.uint64(1), np.uint64(8)
_27, _30, _31 = np.uint64(27), np.uint64(30), np.uint64(31)
_32, _64 = np.uint64(32), np.uint64(64)

_UNSIGNED = (types.uint8, types.uint16, types.uint32, types.uint64)
_INTEGERS = (*_UNSIGNED, types.int8, types.int16, types.int32, types.int64)


# Its name among `Kernels`, the function, and the arguments that it takes.
_Kernel = tuple[str, Callable[..., Any], list[tuple[Any, ...]]]


def compile_kernels(is_wanted: Callable[[], bool]) -> Kernels | None:
    """All kernels, from numba's cache where it has them; None once they are no longer wanted."""
    pads = [(_reads(t), *_ROWS, t, _writes(t)) for t in _UNSIGNED]
    integers = [(_reads(t), types.uint64, _writes(types.uint64)) for t in _INTEGERS]
    ours: list[_Kernel] = [
        ("pad", _pad, pads),
        ("hash_integers", _hash_integers, integers),
        ("hash_bytes", _hash_bytes, [(_BYTES, _OFFSETS, types.uint64, _writes(types.uint64))]),
        ("combine", _combine, [(_OFFSETS, _writes(types.uint64))]),
        ("bucket", _bucket, [(types.uint64, types.uint64, _writes(types.uint64))]),
        ("find_groups", _find_groups, [(_OFFSETS, types.uint64, _LONGS, _OFFSETS, _WRITTEN_LONGS)]),
        ("murmur_longs", murmur.murmur_longs, [(_reads(types.int64), _writes(types.uint32))]),
        ("murmur_bytes", murmur.murmur_bytes, [(_BYTES, _OFFSETS, _writes(types.uint32))]),
    ]
    of_parquet = _parquet_kernels()
    compiled: dict[str, Any] = {}
    try:
        with event.install_listener("numba:run_pass", _Canceller(is_wanted)):
            for name, function, signatures in [*ours, *of_parquet]:
                if not is_wanted():
                    return None
                compiled[name] = _compile(function, signatures)
    except _Cancelled:
        return None
    parquet_kernels = ParquetKernels(**{name: compiled.pop(name) for name, _, _ in of_parquet})
    return Kernels(**compiled, parquet=parquet_kernels)


class _Cancelled(BaseException):
    """Raised in the compiler's thread to end it; no `except Exception` of numba's catches it."""


class _Canceller(event.Listener):
    """Cancels a compilation between two passes, since the largest kernel takes 15 s.

    numba calls it in every thread that compiles, such as one of the user's, which it leaves alone.
    """

    def __init__(self, is_wanted: Callable[[], bool]) -> None:
        self._is_wanted = is_wanted
        self._thread = threading.get_ident()

    def on_start(self, event: Any) -> None:
        """Raise _Cancelled if the kernels are no longer wanted."""
        if threading.get_ident() == self._thread and not self._is_wanted():
            raise _Cancelled

    def on_end(self, event: Any) -> None:
        """Do nothing: a pass is over anyway."""


def _parquet_kernels() -> list[_Kernel]:
    """Return the kernels that read Parquet, with the types of their arguments."""
    table, scratch = numba.from_dtype(COLUMN)[::1], _writes(types.uint8)
    return [
        ("read_headers", page_headers.read_headers, [(_BYTES, types.Array(types.int64, 2, "C"))]),
        ("decode", whole_chunks.make_decode(_stamp()), [(table, scratch)]),
    ]


def _stamp() -> int:
    """Hash the sources of all kernels; numba's cache checks only the compiled one's."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return zlib.crc32(b"".join(path.read_bytes() for path in sources))


def _compile(function: Callable[..., Any], signatures: Sequence[tuple[Any, ...]]) -> Any:
    """The function compiled for these arguments and no others."""
    typed = [tuple(arguments) for arguments in signatures]
    try:
        return numba.njit(typed, nogil=True, cache=True)(function)
    except RuntimeError:  # "no locator available": no folder that the cache could be written to
        return numba.njit(typed, nogil=True)(function)


def _reads(item: Any) -> Any:
    return types.Array(item, 1, "C", readonly=True)


def _writes(item: Any) -> Any:
    return types.Array(item, 1, "C")


_BYTES = _reads(types.uint8)
_OFFSETS = _reads(types.uint64)
_LONGS, _WRITTEN_LONGS = _reads(types.int64), _writes(types.int64)
_ROWS = (_OFFSETS, _OFFSETS, types.uint64)  # starts, lengths, and the length that they get


@numba.njit(inline="always")
def _mix(value: Any) -> Any:
    """As `hashing.mix64`."""
    value = (value ^ (value >> _30)) * _STAFFORD_1
    value = (value ^ (value >> _27)) * _STAFFORD_2
    return value ^ (value >> _31)


def _pad(
    items: Numbers, starts: UInt64s, lengths: UInt64s, length: Any, fill: Any, out: Numbers
) -> None:
    place = _0
    for row in range(len(starts)):
        start = starts[row]
        num_filled = min(lengths[row], length)
        for index in range(num_filled):
            out[place + index] = items[start + index]
        for index in range(num_filled, length):
            out[place + index] = fill
        place += length


def _hash_integers(values: Numbers, salt: Any, out: UInt64s) -> None:
    for row in range(len(values)):
        out[row] = _mix(np.uint64(values[row]) + salt)


def _hash_bytes(values: Any, offsets: UInt64s, salt: Any, out: UInt64s) -> None:
    for row in range(len(out)):
        start, end = offsets[row], offsets[row + 1]
        total, word, shift, step = _0, _0, _0, _GOLDEN
        for place in range(start, end):  # little-endian words of eight bytes, the last one short
            word |= np.uint64(values[place]) << shift
            shift += _8
            if shift == _64:
                total += _mix(word ^ step)
                word, shift, step = _0, _0, step + _GOLDEN
        if shift:
            total += _mix(word ^ step)
        out[row] = _mix(total + (end - start) * _GOLDEN + salt)


def _combine(right: UInt64s, left: UInt64s) -> None:
    """As `hashing.combine`, into `left`."""
    for row in range(len(left)):
        left[row] = _mix(left[row] * _GOLDEN + right[row])


def _find_groups(
    hashes: UInt64s, shift: Any, bucket_starts: Int64s, group_hashes: UInt64s, out: Int64s
) -> None:
    for row in range(len(hashes)):
        out[row] = -1
        bucket = hashes[row] >> shift
        for group in range(bucket_starts[bucket], bucket_starts[bucket + _1]):
            if group_hashes[group] == hashes[row]:
                out[row] = group
                break


def _bucket(mixed_seed: Any, num_buckets: Any, hashes: UInt64s) -> None:
    for row in range(len(hashes)):
        hashes[row] = ((_mix(hashes[row] ^ mixed_seed) >> _32) * num_buckets) >> _32
