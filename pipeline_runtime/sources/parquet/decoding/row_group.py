"""Decodes all columns of numbers and of lists of numbers of a row group in one kernel call.

    chunks in the file --> a table of addresses --> `kernels.whole_chunks` --> Arrow arrays

The kernel gets the addresses of the chunks' bytes and of memory for their values, whose size is in
the footer, and releases Python's lock until all are decoded. It reports the columns whose encoding
is unknown or whose bytes are invalid; pyarrow reads those.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline_runtime.kernels import Kernels
from pipeline_runtime.kernels.chunks import COLUMN
from pipeline_runtime.sources.parquet.decoding.codecs import Codec, find_codec
from pipeline_runtime.sources.parquet.decoding.leaves import Leaf, Stored

_ALIGNMENT = 64  # of a column's parts in its memory, as Arrow recommends
_MAX_INT32 = 2**31 - 1
# Most writers end a page once it has a mebibyte, so pages are a little larger than that.
_MIN_SCRATCH_BYTES, _MAX_SCRATCH_BYTES = 5 << 18, 8 << 20

_OWN = threading.local()

Marks = npt.NDArray[np.bool_]


def decode_columns(
    leaves: Mapping[str, Leaf],
    chunks: Mapping[str, Stored],
    kernels: Kernels,
    wanted: Marks | None = None,
) -> dict[str, pa.Array]:
    """Return the chunks' numbers or lists, in new memory, without those that pyarrow must read.

    Args:
        leaves, chunks: by the column's name; the codecs are among `known_codecs`.
        wanted: marks the rows whose values are needed; None for all. The other rows of a page
            without wanted ones are zero, or empty lists.
    """
    fitting = {name: stored for name, stored in chunks.items() if _fits(leaves[name], stored)}
    try:
        return _decode(leaves, fitting, kernels, wanted)
    except MemoryError:  # for a size in a footer or page header; pyarrow may need less
        return {}


def _decode(
    leaves: Mapping[str, Leaf],
    chunks: Mapping[str, Stored],
    kernels: Kernels,
    wanted: Marks | None = None,
) -> dict[str, pa.Array]:
    if not chunks:
        return {}
    codecs = {codec: find_codec(codec) for codec in {stored.codec for stored in chunks.values()}}
    outs = {name: _Out(leaves[name], stored) for name, stored in chunks.items()}
    marks = 0 if wanted is None else wanted.ctypes.data
    rows = [out.row(chunks[name], codecs[chunks[name].codec], marks) for name, out in outs.items()]
    table = np.array(rows, dtype=COLUMN)
    kernels.parquet.decode(table, _scratch())
    _keep_scratch(int(table["scratch_bytes"].max()))
    told = (table[name].tolist() for name in _TOLD)
    results = zip(outs.items(), *told, strict=True)
    return {name: out.array(*sizes) for (name, out), told, *sizes in results if told == 0}


_TOLD = ("told", "num_lists", "num_items", "null_lists", "null_items")


def _fits(leaf: Leaf, stored: Stored) -> bool:
    """Return whether the footer's numbers are plausible; they are trusted from here on."""
    num_values, num_rows = stored.num_values, stored.num_rows
    if leaf.is_list:
        num_rows -= stored.is_part
    return 0 <= num_rows <= num_values <= _MAX_INT32 and (leaf.is_list or num_rows == num_values)


def _scratch() -> npt.NDArray[np.uint8]:
    """Return this thread's memory for the body of a page; allocating it each time is expensive."""
    scratch: npt.NDArray[np.uint8] | None = getattr(_OWN, "scratch", None)
    if scratch is None:
        scratch = _OWN.scratch = np.empty(_MIN_SCRATCH_BYTES, dtype=np.uint8)
    return scratch


def _keep_scratch(num_bytes: int) -> None:
    """Keep so much memory from now on, except for pages that are much larger than usual."""
    if len(_scratch()) < num_bytes <= _MAX_SCRATCH_BYTES:
        _OWN.scratch = np.empty(num_bytes, dtype=np.uint8)


class _Out:
    """The memory for a chunk's values, all in one buffer."""

    def __init__(self, leaf: Leaf, stored: Stored) -> None:
        self._leaf = leaf
        num_rows, num_values = stored.num_rows, stored.num_values
        parts = [num_values * leaf.dtype.itemsize]
        if leaf.is_list:
            parts += [_bit_bytes(num_values), 8 * (num_rows + 1), _bit_bytes(num_rows)]
        elif leaf.max_level:
            parts.append(_bit_bytes(num_values))
        self._starts = [0]
        for num_bytes in parts:
            self._starts.append(self._starts[-1] + -(-num_bytes // _ALIGNMENT) * _ALIGNMENT)
        self._memory = pa.allocate_buffer(self._starts[-1])

    def row(self, stored: Stored, codec: Codec, wanted: int) -> tuple[int, ...]:
        """Return the row of `COLUMN` for the kernel; `wanted` is an address, or 0."""
        leaf, first = self._leaf, self._memory.address
        addresses = [first + start for start in self._starts[:-1]]
        return (
            *_address(stored.data),
            *_address(stored.dictionary),
            *(stored.is_part, *codec),
            *(stored.uncompressed_bytes, stored.num_rows, stored.num_values),
            *(leaf.is_list, leaf.empty_level, leaf.max_level),
            *(leaf.size, leaf.dtype.itemsize, wanted),
            *(addresses + [0] * (4 - len(addresses))),
            *([0] * (len(_TOLD) + 1)),
        )

    def array(self, num_lists: int, num_items: int, null_lists: int, null_items: int) -> pa.Array:
        """Return the values that the kernel wrote."""
        leaf = self._leaf
        values: Any = self._part(0, num_items * leaf.dtype.itemsize)
        if leaf.is_boolean:
            marks = np.frombuffer(values, np.uint8)
            values = pa.py_buffer(np.packbits(marks, bitorder="little"))
        valid = self._part(1, _bit_bytes(num_items)) if null_items else None
        items = pa.Array.from_buffers(leaf.items, num_items, [valid, values], null_items)
        if not leaf.is_list:
            return items
        starts: Any = self._part(2, 8 * (num_lists + 1))
        if not leaf.is_large:
            starts = pa.py_buffer(np.frombuffer(starts, np.int64).astype(np.int32))
        valid = self._part(3, _bit_bytes(num_lists)) if null_lists else None
        buffers = [valid, starts]
        return pa.Array.from_buffers(leaf.type, num_lists, buffers, null_lists, children=[items])

    def _part(self, index: int, num_bytes: int) -> pa.Buffer:
        """Return a writable view, as tensors need it; a slice of the buffer is read-only."""
        return pa.py_buffer(np.frombuffer(self._memory, np.uint8, num_bytes, self._starts[index]))


def _address(buffer: pa.Buffer | None) -> tuple[int, int]:
    return (0, 0) if buffer is None else (buffer.address, buffer.size)


def _bit_bytes(count: int) -> int:
    return (count + 7) // 8
