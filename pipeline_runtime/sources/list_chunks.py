"""One column chunk of lists of numbers, from its bytes in the file to an Arrow array.

`pages` runs before it, and says which columns are such. A page's levels say where lists start,
which of them are null and which items are: of most pages in two comparisons, since they have no
nulls and no empty lists. Values are plain numbers, or places in the chunk's dictionary. All of a
chunk's pages are written into the same two buffers, of which the footer says how large they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline_runtime.kernels import Kernels
from pipeline_runtime.sources.page_headers import (
    DATA_PAGE_V2,
    DICTIONARY_PAGE,
    Page,
    PageError,
    read_pages,
)

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]

# By pyarrow's name, of which LZ4 is Parquet's LZ4_RAW; None is as it is.
CODECS: Mapping[str, str | None] = {
    "UNCOMPRESSED": None,
    "SNAPPY": "snappy",
    "GZIP": "gzip",
    "BROTLI": "brotli",
    "ZSTD": "zstd",
    "LZ4": "lz4_raw",
}
_SMALL = (pa.int8(), pa.int16(), pa.uint8(), pa.uint16())
# By Parquet's type: what lies in a page, and Arrow's types whose bits these are, or their lowest.
STORED: Mapping[str, tuple[np.dtype[Any], tuple[pa.DataType, ...]]] = {
    "BOOLEAN": (np.dtype(np.uint8), (pa.bool_(),)),  # once its bits are unpacked
    "INT32": (np.dtype(np.uint32), (*_SMALL, pa.int32(), pa.uint32(), pa.date32())),
    "INT64": (np.dtype(np.uint64), (pa.int64(), pa.uint64())),
    "FLOAT": (np.dtype(np.uint32), (pa.float32(),)),
    "DOUBLE": (np.dtype(np.uint64), (pa.float64(),)),
}
# Encodings of parquet.thrift.
_PLAIN, _PLAIN_DICTIONARY, _RLE, _RLE_DICTIONARY = 0, 2, 3, 8
_MAX_INT32 = 2**31 - 1
_MAX_INDEX_BITS = 31
_EVERY = np.zeros(0, dtype=np.uint8)  # to the kernels: every place is valid


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A column of lists of numbers, one leaf of the file's schema."""

    index: int  # of the leaf
    type: pa.DataType  # of the column
    stored: np.dtype[Any]  # unsigned, whatever the bits mean
    codec: str  # pyarrow's name
    max_level: int  # of definition: an item that is there

    @property
    def empty_level(self) -> int:
        """An empty list's definition level; a null list's is below it, an item's above."""
        return self.max_level - 1 - int(self.type.value_field.nullable)

    @property
    def width(self) -> int:
        """Bytes of an item in Arrow's memory; of a boolean before its bits are packed."""
        items = self.type.value_type
        return 1 if pa.types.is_boolean(items) else int(items.bit_width // 8)


def decode_chunk(
    leaf: Leaf, data: memoryview, num_rows: int, num_values: int, kernels: Kernels
) -> pa.Array | None:
    """The chunk's lists, in fresh memory; None where that is to be left to pyarrow.

    Args:
        data: the chunk as it lies in the file, page after page.
        num_rows: lists of the row group.
        num_values: levels of the chunk, as the footer says: items, null and empty lists.
    """
    if num_values > _MAX_INT32:
        return None
    chunk = _Chunk(leaf, num_rows, num_values, kernels)
    try:
        for page in read_pages(data):
            chunk.add(page, data)
        return chunk.finish()
    except (PageError, pa.ArrowException, OSError):
        return None


class _Chunk:
    """What the pages of a chunk have come to so far."""

    def __init__(self, leaf: Leaf, num_rows: int, num_values: int, kernels: Kernels) -> None:
        self._leaf, self._kernels = leaf, kernels
        codec = CODECS[leaf.codec]
        self._codec = None if codec is None else pa.Codec(codec)  # not to be shared by threads
        self._dictionary: Array | None = None
        item = np.dtype(f"u{leaf.width}")
        self._values = _empty(num_values, item)
        self._starts = _empty(num_rows + 1, np.dtype(np.int64))
        self._valid_items: Bytes | None = None  # of items, a byte each; None: all
        self._valid_lists: Bytes | None = None
        self._num_items = self._num_lists = self._num_levels = 0

    def add(self, page: Page, data: memoryview) -> None:
        """Take in the next page. Raises PageError for one that has to be left to pyarrow."""
        if page.kind == DICTIONARY_PAGE:
            _check(page.encoding in (_PLAIN, _PLAIN_DICTIONARY), "the dictionary's encoding")
            body = self._decompress(data[page.start : page.stop], page.num_bytes)
            _check(page.num_values <= len(body), "the dictionary's size")
            self._dictionary = np.empty(page.num_values, dtype=self._values.dtype)
            self._copy_plain(body, 0, self._dictionary)
            return
        levels, values, at = self._split(page, data)
        self._num_levels += page.num_values
        _check(self._num_levels <= len(self._values), "more values than the footer says")
        num_items, valid = self._add_levels(page.num_values, levels)
        out = self._values[self._num_items : self._num_items + num_items]
        self._add_values(page.encoding, values, at, valid, out)
        self._num_items += num_items

    def finish(self) -> pa.Array:
        """All lists. Raises PageError if these are not as many as the row group has."""
        leaf, num_lists, num_items = self._leaf, self._num_lists, self._num_items
        self._starts[num_lists] = num_items
        _check(num_lists == len(self._starts) - 1, "as many lists as rows")
        _check(self._starts[0] == 0, "a list for the first item")
        is_large = pa.types.is_large_list(leaf.type)
        offsets = self._starts if is_large else self._starts.astype(np.int32)
        values: Any = self._values[:num_items]
        if pa.types.is_boolean(leaf.type.value_type):
            values = np.packbits(values, bitorder="little")
        items = pa.Array.from_buffers(
            leaf.type.value_type,
            num_items,
            [_bits(self._valid_items, num_items), pa.py_buffer(values)],
        )
        bits = _bits(self._valid_lists, num_lists)
        buffers = [bits, pa.py_buffer(offsets)]
        return pa.Array.from_buffers(leaf.type, num_lists, buffers, children=[items])

    def _decompress(self, data: memoryview, num_bytes: int) -> Bytes:
        _check(num_bytes >= 0, "a page's size")
        if self._codec is None or num_bytes == 0:
            return np.frombuffer(data, np.uint8)
        return np.frombuffer(self._codec.decompress(data, num_bytes), np.uint8)

    def _split(self, page: Page, data: memoryview) -> tuple[tuple[Bytes, Bytes], Bytes, int]:
        """A page's levels (repetition, definition), and where its values begin in which bytes."""
        if page.kind == DATA_PAGE_V2:
            repeats, levels = page.level_bytes
            _check(page.start + repeats + levels <= page.stop, "levels")
            cuts = np.cumsum([page.start, repeats, levels])
            parts = [data[cuts[0] : cuts[1]], data[cuts[1] : cuts[2]], data[cuts[2] : page.stop]]
            first, second, body = (np.frombuffer(part, np.uint8) for part in parts)
            if page.is_compressed:
                body = self._decompress(parts[2], page.num_bytes - repeats - levels)
            return (first, second), body, 0
        _check(page.level_encodings == (_RLE, _RLE), "the levels' encoding")
        body = self._decompress(data[page.start : page.stop], page.num_bytes)
        first, at = _with_length(body, 0)
        second, at = _with_length(body, at)
        return (first, second), body, at

    def _add_levels(self, count: int, parts: tuple[Bytes, Bytes]) -> tuple[int, Bytes]:
        """Note where the page's lists start; its items, and which of them are valid."""
        repeats, levels = parts
        leaf, kernels, base = self._leaf, self._kernels.parquet, self._num_items
        starts = self._starts[self._num_lists : -1]
        if _single_run(levels, count) == leaf.max_level:
            found = kernels.find_starts(repeats, 0, len(repeats), count, base, starts)
            _check(found >= 0, "repetition levels")
            self._note(found, count, None, None)
            return count, _EVERY
        first = self._unpack_levels(repeats, 1, count)
        second = self._unpack_levels(levels, leaf.max_level.bit_length(), count)
        lists = np.empty(min(count, len(starts)), dtype=np.uint8)
        items = np.empty(count, dtype=np.uint8)
        empty, present = leaf.empty_level, leaf.max_level
        found = kernels.assemble(first, second, empty, present, base, starts, lists, items)
        _check(found >= 0, "levels")
        num_lists, num_items = found >> 32, found & 0xFFFFFFFF
        self._note(num_lists, num_items, lists[:num_lists], items[:num_items])
        return num_items, items[:num_items]

    def _unpack_levels(self, levels: Bytes, width: int, count: int) -> Bytes:
        out = np.empty(count, dtype=np.uint8)
        unpack = self._kernels.parquet.unpack_levels
        _check(unpack(levels, 0, len(levels), width, count, out) == 0, "levels")
        return out

    def _note(self, num_lists: int, num_items: int, lists: Any, items: Any) -> None:
        """Count the page's lists, and which of them and of its items are valid; None: all are."""
        first, total = self._num_items, len(self._values)
        self._valid_items = _marked(self._valid_items, first, num_items, items, total)
        first, total = self._num_lists, len(self._starts)
        self._valid_lists = _marked(self._valid_lists, first, num_lists, lists, total)
        self._num_lists += num_lists

    def _add_values(self, encoding: int, body: Bytes, at: int, valid: Bytes, out: Array) -> None:
        count = len(out) if valid is _EVERY else int(valid.sum())
        if encoding == _PLAIN:
            if valid is _EVERY:
                self._copy_plain(body, at, out)
                return
            values = np.empty(count, dtype=out.dtype)
            self._copy_plain(body, at, values)
            _check(self._kernels.parquet.spread(values, valid, out) == 0, "values")
            return
        _check(encoding in (_RLE_DICTIONARY, _PLAIN_DICTIONARY), "the values' encoding")
        if self._dictionary is None:
            raise PageError("the chunk has no dictionary before its data")
        indices = self._read_indices(body, at, count)
        picked = self._kernels.parquet.pick(self._dictionary, indices, valid, out)
        _check(picked == 0, "a place in the dictionary")

    def _read_indices(self, body: Bytes, at: int, count: int) -> npt.NDArray[np.int32]:
        if count == 0:
            return np.zeros(0, dtype=np.int32)
        _check(at < len(body), "places in the dictionary")
        width = int(body[at])
        if width == 0:
            return np.zeros(count, dtype=np.int32)
        _check(width <= _MAX_INDEX_BITS, "the width of places in the dictionary")
        indices = np.empty(count, dtype=np.int32)
        unpack = self._kernels.parquet.unpack_indices
        _check(unpack(body, at + 1, len(body), width, count, indices) == 0, "places")
        return indices

    def _copy_plain(self, body: Bytes, at: int, out: Array) -> None:
        """Plain values as Arrow has them, as many as `out` takes."""
        count = len(out)
        if pa.types.is_boolean(self._leaf.type.value_type):
            bits = body[at : at + (count + 7) // 8]
            _check(len(bits) * 8 >= count, "values")
            out[:] = np.unpackbits(bits, count=count, bitorder="little")
            return
        size = self._leaf.stored.itemsize
        _check(at + count * size <= len(body), "values")
        if size == out.dtype.itemsize:
            out.view(np.uint8)[:] = body[at : at + count * size]
        elif out.dtype.itemsize == 1:
            self._kernels.parquet.lowest_bytes(body, at, size, out)
        else:
            out[:] = np.frombuffer(body, self._leaf.stored, count, at)


def _check(is_so: bool, what: str) -> None:
    if not is_so:
        raise PageError(f"{what} not known here, or broken")


def _with_length(body: Bytes, at: int) -> tuple[Bytes, int]:
    """Bytes after their number, four bytes, and where they end."""
    _check(at + 4 <= len(body), "levels")
    start = at + 4
    stop = start + int.from_bytes(body[at:start].tobytes(), "little")
    _check(stop <= len(body), "levels")
    return body[start:stop], stop


def _single_run(levels: Bytes, count: int) -> int | None:
    """The value of all `count` levels if they are one run; None if they may differ."""
    header = shift = 0
    for at, byte in enumerate(levels[:6].tolist()):
        header |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            is_run = not header & 1 and header >> 1 >= count and at + 1 < len(levels)
            return int(levels[at + 1]) if is_run else None
    return None


def _marked(
    valid: Bytes | None, first: int, count: int, marks: Bytes | None, total: int
) -> Bytes | None:
    """A byte a place, written from the first place on that is not valid."""
    if marks is not None and valid is None and not marks.all():
        valid = np.ones(total, dtype=np.uint8)
    if valid is not None and marks is not None:
        valid[first : first + count] = marks
    return valid


def _bits(valid: Bytes | None, count: int) -> pa.Buffer | None:
    if valid is None:
        return None
    return pa.py_buffer(np.packbits(valid[:count], bitorder="little"))


def _empty(count: int, dtype: np.dtype[Any]) -> Array:
    """Room in Arrow's memory, which is used again and not given back each time."""
    array: Array = np.frombuffer(pa.allocate_buffer(count * dtype.itemsize), dtype)
    return array
