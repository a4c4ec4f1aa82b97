"""A batch as one buffer: its arrays one after another, and slots that describe them.

One object is sent, whatever the number of columns, and copied to a GPU at once. If most rows of an
array end with the same value, as padded sequences do, it is packed without that filling: the items
of all rows, and the number of items of each row (the values and row lengths of a compressed sparse
row matrix whose columns are the first places of a row). Unpacking fills it up again. All bits are
preserved. One of Arrow's codecs may compress the whole buffer.

Shapes: B rows, L items of a row with its filling, K items of all rows without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline_runtime.arrays.conversion import Array, Arrays

Bytes = npt.NDArray[np.uint8]

# A cache line, as Arrow aligns; also enough for any dtype.
_ALIGNMENT = 64
# Smaller arrays are packed as they are: leaving out their filling saves too little.
_MIN_ITEMS = 4096
# Rows of a sample. If they have little filling, the other rows are not examined.
_LOOKED_AT_ROWS = 64
# An array is packed as it is if more than this share of its items is no filling.
MAX_SHARE_OF_ITEMS = 0.5


class Slot(NamedTuple):
    """One array in a buffer. (A frozen dataclass took four times as long to make.)

    Attributes:
        start: the place of its first byte.
        fill: the filling's bits as an unsigned integer; None if the array is packed as it is. With
            a filling, the number of items of each row, int32 [B], begins at `start`, and the items
            of all rows, [K], begin at `items_start`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    fill: int | None = None
    num_items: int = 0  # K
    items_start: int = 0

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Slot:
        """Build a slot from its form in JSON."""
        name, dtype, shape, *places = value
        return cls(name, dtype, tuple(shape), *places)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatch:
    """A batch's buffer, as it was sent; `data` is a view of the memory in which it arrived.

    If that memory is writeable, it belongs to the batch, whose arrays are views of it.
    """

    slots: tuple[Slot, ...]
    num_bytes: int  # of the buffer that the slots describe, uncompressed
    data: Bytes
    codec: str | None = None  # with which `data` is compressed

    @property
    def is_plain(self) -> bool:
        """Return whether its arrays are views of `data`, which cost nothing to make."""
        is_own = self.codec is None and bool(self.data.flags.writeable)
        return is_own and all(slot.fill is None for slot in self.slots)

    def buffer(self) -> Bytes:
        """Return the uncompressed buffer in writeable memory."""
        plain = self.plain()
        return plain if plain.flags.writeable else plain.copy()

    def write(self, place: Bytes) -> None:
        """Write the buffer into memory of `num_bytes`."""
        np.copyto(place, self.plain())

    def plain(self) -> Bytes:
        """Return the uncompressed buffer; without a codec, that is a view of `data`."""
        if self.codec is None:
            return self.data
        plain = pa.Codec(self.codec).decompress(pa.py_buffer(self.data), self.num_bytes)
        return np.frombuffer(plain, dtype=np.uint8)


class Parts:
    """Parts of one buffer: first the place of each part is set, then all bytes are written."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._writers: list[tuple[int, int, Callable[[Bytes], None]]] = []

    def add(self, num_bytes: int, write: Callable[[Bytes], None]) -> int:
        """Add a part that `write` fills, and return where it begins."""
        start = -(-self.num_bytes // _ALIGNMENT) * _ALIGNMENT
        self._writers.append((start, num_bytes, write))
        self.num_bytes = start + num_bytes
        return start

    def add_array(self, array: Array) -> int:
        """Add a contiguous array of any shape, and return where it begins."""

        def write(place: Bytes) -> None:
            place.view(array.dtype).reshape(array.shape)[...] = array

        return self.add(array.nbytes, write)

    def write(self, buffer: Bytes) -> None:
        """Write all parts into a buffer of `num_bytes`."""
        for start, num_bytes, write in self._writers:
            write(buffer[start : start + num_bytes])


class Packer:
    """The layout of a batch: `slots` and `num_bytes` are known, and `write` copies the arrays.

    Args:
        sparse: leave out filling (`pipelineOptions.debug.sparse`).
    """

    def __init__(self, arrays: Arrays, *, sparse: bool = False) -> None:
        self._parts = Parts()
        self.slots = tuple(self._add(name, array, sparse) for name, array in arrays.items())
        self.num_bytes = self._parts.num_bytes
        self.write = self._parts.write

    def _add(self, name: str, array: Array, sparse: bool) -> Slot:
        items = leave_out_filling(array) if sparse else None
        dtype, shape = array.dtype.str, tuple(array.shape)
        if items is None:
            return Slot(name, dtype, shape, self._parts.add_array(array))
        lengths_B, values_K, fill = items
        return Slot(
            name,
            dtype,
            shape,
            start=self._parts.add_array(lengths_B),
            fill=fill,
            num_items=len(values_K),
            items_start=self._parts.add_array(values_K),
        )


def pack_arrays(arrays: Arrays, *, sparse: bool = False) -> tuple[tuple[Slot, ...], Bytes]:
    """Return a batch's slots, and a new buffer with its arrays."""
    packer = Packer(arrays, sparse=sparse)
    buffer = np.empty(packer.num_bytes, dtype=np.uint8)
    packer.write(buffer)
    return packer.slots, buffer


def arrays_of(batch: Arrays | PackedBatch) -> Arrays:
    """Return a batch's arrays, unpacked."""
    return unpack_arrays(batch.slots, batch.buffer()) if isinstance(batch, PackedBatch) else batch


def unpack_arrays(slots: Sequence[Slot], buffer: Bytes) -> Arrays:
    """Return the arrays of a buffer: views, or copies where filling is added."""
    return {slot.name: _unpack(slot, buffer) for slot in slots}


def _unpack(slot: Slot, buffer: Bytes) -> Array:
    if slot.fill is None:
        return _at(buffer, slot.start, slot.dtype, slot.shape)
    dtype = np.dtype(slot.dtype)
    rows, length = slot.shape
    word = _word_of(dtype)
    lengths_B = _at(buffer, slot.start, np.dtype(np.int32), (rows,))
    values_K = _at(buffer, slot.items_start, word, (slot.num_items,))
    filled_BL = np.full((rows, length), slot.fill, dtype=word)
    filled_BL[np.arange(length, dtype=np.int32) < lengths_B[:, None]] = values_K
    return filled_BL.view(dtype)


def _at(buffer: Bytes, start: int, dtype: np.dtype[Any] | str, shape: tuple[int, ...]) -> Array:
    """Return a view, by one call: slicing, viewing and reshaping took ten times as long."""
    return np.ndarray(shape, dtype, buffer, start)


def leave_out_filling(array: Array) -> tuple[npt.NDArray[np.int32], Array, int] | None:
    """Drop the trailing filling of an array [B, L]; None unless it is mostly filling.

    Returns:
        Items per row, int32 [B]; the bits of all items as unsigned integers, [K]; the filling.
    """
    is_matrix = array.ndim == 2 and array.flags.c_contiguous
    if not is_matrix or array.size < _MIN_ITEMS:
        return None
    words_BL = array.view(_word_of(array.dtype))
    some = words_BL[:: max(1, len(words_BL) // _LOOKED_AT_ROWS)]
    lasts, counts = np.unique(some[:, -1], return_counts=True)
    fill = lasts[np.argmax(counts)]
    if _lengths(some, fill).mean() > MAX_SHARE_OF_ITEMS * array.shape[1]:
        return None
    lengths_B = _lengths(words_BL, fill)
    places = np.arange(array.shape[1], dtype=np.int32)
    values_K = words_BL[places < lengths_B[:, None]]
    return lengths_B, values_K, int(fill)


def _lengths(words_BL: Array, fill: Any) -> npt.NDArray[np.int32]:
    """Return the number of items of each row up to the last one that is no filling."""
    is_item = words_BL != fill
    length = is_item.shape[1]
    from_end = np.argmax(is_item[:, ::-1], axis=1)
    lengths = np.where(is_item.any(axis=1), length - from_end, 0)
    return cast("npt.NDArray[np.int32]", lengths.astype(np.int32))


def _word_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"u{dtype.itemsize}")
