"""One column chunk of lists of numbers, from its bytes in the file to an Arrow array.

`pages` runs before it, and says which columns are such. A page's levels say where lists start,
which of them are null and which items are: of most pages in two comparisons, since they have no
nulls and no empty lists. Values are plain numbers, or places in the chunk's dictionary. All of a
chunk's pages are written into the same two buffers, of which the footer says how large they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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

# By pyarrow's name, of which LZ4 is Parquet's LZ4_RAW; None is as it is. Of gzip and brotli pyarrow
# does not tell how many bytes came out, and decoding is little of what they cost.
CODECS: Mapping[str, str | None] = {
    "UNCOMPRESSED": None,
    "SNAPPY": "snappy",
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
# Bytes, where repetition and definition levels start in them, and where these end.
_Levels = tuple[Bytes, int, int, int]
_LENGTH_BYTES = 4
_MAX_VARINT_BYTES = 5  # of 32 bits
_LZ4_LITERALS = 5  # "the last 5 bytes are always literals" (LZ4's block format)
_NO_ROOM = 2  # says `read_levels`
_EVERY = np.zeros(0, dtype=np.uint8)  # to the kernels: every place is valid


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A column of lists of numbers, one leaf of the file's schema."""

    index: int  # of the leaf
    type: pa.DataType  # of the column
    stored: np.dtype[Any]  # unsigned, whatever the bits mean
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A leaf's chunk of a row group as it lies in the file, page after page."""

    data: memoryview
    codec: str  # one of `CODECS`
    num_rows: int  # of the row group, each a list
    num_values: int  # levels, as the footer says: items, null and empty lists


def decode_chunk(
    leaf: Leaf, stored: Stored, kernels: Kernels, *, folds: bool = False
) -> pa.Array | None:
    """The chunk's lists, in fresh memory; None where that is to be left to pyarrow.

    Args:
        folds: give a dictionary's places, where most lists that are equal to the one before are
            that one; where an item is null, the lists themselves.
    """
    num_rows, num_values = stored.num_rows, stored.num_values
    if num_values > _MAX_INT32:
        return None
    for kind in (_FoldedChunk, _Chunk) if folds else (_Chunk,):
        try:
            chunk = kind(leaf, stored.codec, num_rows, num_values, kernels)
            for page in read_pages(stored.data):
                chunk.add(page, stored.data)
            return chunk.finish()
        except (PageError, pa.ArrowException, OSError):
            continue
    return None


def decode_windows(
    leaf: Leaf, stored: Stored, kernels: Kernels, max_rows: int
) -> Iterator[pa.Array]:
    """The chunk's lists, `max_rows` at a time; about as many are held.

    Raises PageError, or ArrowException, where the rest is to be left to pyarrow.
    """
    windows = _Windows(max_rows)
    dictionary, rows_left = None, stored.num_rows
    levels = stored.num_values * max_rows // max(1, stored.num_rows)
    for pages in _parts(list(read_pages(stored.data)), levels):
        total = sum(page.num_values for page in pages if page.kind != DICTIONARY_PAGE)
        _check(total <= _MAX_INT32, "fewer items")
        part = _Chunk(leaf, stored.codec, rows_left, total, kernels)
        part.dictionary = dictionary
        for page in pages:
            part.add(page, stored.data)
        dictionary = part.dictionary
        is_going_on, lists = part.finish_part()
        rows_left -= len(lists) - is_going_on
        yield from windows.add(lists, is_going_on=is_going_on)
    _check(rows_left == 0, "as many lists as rows")
    yield from windows.finish()


def _parts(pages: Sequence[Page], num_values: int) -> Iterator[list[Page]]:
    """Pages one after another that have so many levels together, or one more page's."""
    part: list[Page] = []
    total = 0
    for page in pages:
        part.append(page)
        total += page.num_values if page.kind != DICTIONARY_PAGE else 0
        if total >= max(1, num_values):
            yield part
            part, total = [], 0
    if part:
        yield part


class _Windows:
    """Lists on their way from parts, whose ends may cut them, to windows of equal length."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._held: list[pa.Array] = []
        self._last: pa.Array | None = None  # one list, which may go on in the next part

    def add(self, lists: pa.Array, *, is_going_on: bool) -> Iterator[pa.Array]:
        """Take lists, of which the first may be the rest of the last one; windows that are full."""
        if is_going_on:
            if self._last is None:
                raise PageError("the chunk's first items are of no list")
            self._last = _join_lists(self._last, lists.slice(0, 1))
            lists = lists.slice(1)
        if len(lists) == 0:
            return
        self._held += [self._last] if self._last is not None else []
        self._held.append(lists.slice(0, len(lists) - 1))
        self._last = lists.slice(len(lists) - 1)
        yield from self._cut(self._max_rows)

    def finish(self) -> Iterator[pa.Array]:
        """The windows that are left, the last of which may be shorter."""
        self._held += [self._last] if self._last is not None else []
        yield from self._cut(1)

    def _cut(self, at_least: int) -> Iterator[pa.Array]:
        num_held = sum(map(len, self._held))
        if num_held < at_least:
            return
        held = pa.concat_arrays(self._held)
        for first in range(0, num_held, self._max_rows):
            window = held.slice(first, self._max_rows)
            if len(window) < min(at_least, self._max_rows):
                self._held = [window]
                return
            yield window
        self._held = []


def _join_lists(first: pa.Array, second: pa.Array) -> pa.Array:
    """One list of the items of two."""
    items = pa.concat_arrays([first.flatten(), second.flatten()])
    dtype = np.int64 if pa.types.is_large_list(first.type) else np.int32
    offsets = pa.py_buffer(np.array([0, len(items)], dtype=dtype))
    return pa.Array.from_buffers(first.type, 1, [None, offsets], children=[items])


class _Chunk:
    """What the pages of a chunk have come to so far."""

    def __init__(
        self, leaf: Leaf, codec: str, num_rows: int, num_values: int, kernels: Kernels
    ) -> None:
        self._leaf, self._kernels = leaf, kernels
        name = CODECS[codec]
        self._codec = None if name is None else pa.Codec(name)  # not to be shared by threads
        self.dictionary: Array | None = None
        item = np.dtype(f"u{leaf.width}")
        self._values = _empty(num_values, item)
        self._starts = _empty(num_rows + 1, np.dtype(np.int64))
        self._valid_items: Bytes | None = None  # of items, a byte each; None: all
        self._valid_lists: Bytes | None = None
        self._num_items = self._num_lists = self._num_levels = 0
        self._found = np.zeros(2, dtype=np.int64)  # lists and items of the page at hand

    def add(self, page: Page, data: memoryview) -> None:
        """Take in the next page. Raises PageError for one that has to be left to pyarrow."""
        if page.kind == DICTIONARY_PAGE:
            _check(page.encoding in (_PLAIN, _PLAIN_DICTIONARY), "the dictionary's encoding")
            _check(self.dictionary is None, "one dictionary")
            body = self._decompress(data[page.start : page.stop], page.num_bytes)
            _check(page.num_values <= len(body), "the dictionary's size")
            self.dictionary = np.empty(page.num_values, dtype=self._values.dtype)
            self._copy_plain(body, 0, self.dictionary)
            return
        self._num_levels += page.num_values
        _check(self._num_levels <= len(self._values), "more values than the footer says")
        self._place(page, *self._split(page, data))

    def _place(self, page: Page, levels: _Levels, body: Bytes, at: int) -> None:
        """Write a page's lists behind those before it."""
        first = self._num_lists
        starts = self._starts[first:-1]
        lists, items = self._read_levels(levels, page.num_values, self._num_items, starts)
        num_lists, num_items = self._found.tolist()
        if items is not _EVERY:
            num_values = len(self._values)
            self._valid_items = _marked(self._valid_items, self._num_items, items, num_values)
            self._valid_lists = _marked(self._valid_lists, first, lists, len(self._starts))
        out = self._values[self._num_items : self._num_items + num_items]
        self._add_values(page.encoding, body, at, items, out)
        self._num_items += num_items
        self._num_lists += num_lists

    def finish(self) -> pa.Array:
        """All lists. Raises PageError if these are not as many as the row group has."""
        _check(self._num_lists == len(self._starts) - 1, "as many lists as rows")
        is_going_on, lists = self.finish_part()
        _check(not is_going_on, "a list for the first item")
        return lists

    def finish_part(self) -> tuple[bool, pa.Array]:
        """The lists of these pages; whether the first goes on with one of the pages before."""
        starts = self._starts[: self._num_lists + 1]
        starts[-1] = self._num_items
        if starts[0] == 0:
            return False, self._lists(starts, self._valid_lists)
        valid = self._valid_lists
        return True, self._lists(
            np.append(0, starts), None if valid is None else np.append(1, valid)
        )

    def _lists(self, starts: npt.NDArray[np.int64], valid: Bytes | None) -> pa.Array:
        leaf, num_lists, num_items = self._leaf, len(starts) - 1, self._num_items
        offsets = starts if pa.types.is_large_list(leaf.type) else starts.astype(np.int32)
        values: Any = self._values[:num_items]
        if pa.types.is_boolean(leaf.type.value_type):
            values = np.packbits(values, bitorder="little")
        items = pa.Array.from_buffers(
            leaf.type.value_type,
            num_items,
            [_bits(self._valid_items, num_items), pa.py_buffer(values)],
        )
        buffers = [_bits(valid, num_lists), pa.py_buffer(offsets)]
        return pa.Array.from_buffers(leaf.type, num_lists, buffers, children=[items])

    def _decompress(self, data: memoryview, num_bytes: int) -> Bytes:
        stored = np.frombuffer(data, np.uint8)
        _check(num_bytes >= 0, "a page's size")
        if num_bytes == 0:
            return stored[:0]
        if self._codec is None:
            _check(len(stored) == num_bytes, "a page's size")
            return stored
        body = np.frombuffer(self._codec.decompress(data, num_bytes), np.uint8)
        _check(_is_whole(self._codec.name, stored, body), "a page's size")
        return body

    def _split(self, page: Page, data: memoryview) -> tuple[_Levels, Bytes, int]:
        """A page's levels; the bytes with its values, and where these begin."""
        if page.kind == DATA_PAGE_V2:
            first, second = page.level_bytes
            start = page.start + first + second
            _check(start <= page.stop, "levels")
            levels = np.frombuffer(data[page.start : start], np.uint8)
            body = np.frombuffer(data[start : page.stop], np.uint8)
            if page.is_compressed:
                body = self._decompress(data[start : page.stop], page.num_bytes - first - second)
            return (levels, 0, first, first + second), body, 0
        _check(page.level_encodings == (_RLE, _RLE), "the levels' encoding")
        body = self._decompress(data[page.start : page.stop], page.num_bytes)
        first = _end_of_levels(body, 0)
        second = _end_of_levels(body, first)
        # Between them is the number of bytes of the second kind, which nobody comes to.
        return (body, _LENGTH_BYTES, first + _LENGTH_BYTES, second), body, second

    def _read_levels(
        self, levels: _Levels, count: int, base: int, starts: npt.NDArray[np.int64]
    ) -> tuple[Bytes, Bytes]:
        """Write where a page's lists start; which of them are valid, and which items are."""
        leaf = self._leaf
        arguments = (*levels, count, leaf.empty_level, leaf.max_level, base, starts)
        read = self._kernels.parquet.read_levels
        lists = items = _EVERY
        told = read(*arguments, lists, items, self._found)
        if told == _NO_ROOM:
            lists, items = np.empty((2, count), dtype=np.uint8)
            told = read(*arguments, lists, items, self._found)
        _check(told >= 0, "levels")
        if told == 0:
            return _EVERY, _EVERY
        num_lists, num_items = self._found.tolist()
        return lists[:num_lists], items[:num_items]

    def _add_values(self, encoding: int, body: Bytes, at: int, valid: Bytes, out: Array) -> None:
        count = len(out) if valid is _EVERY else int(np.count_nonzero(valid))
        if encoding == _PLAIN:
            if count == len(out):
                self._copy_plain(body, at, out)
                return
            values = np.empty(count, dtype=out.dtype)
            self._copy_plain(body, at, values)
            _check(self._kernels.parquet.spread(values, valid, out) == 0, "values")
            return
        _check(encoding in (_RLE_DICTIONARY, _PLAIN_DICTIONARY), "the values' encoding")
        if count == 0:
            out[:] = 0
            return
        _check(self.dictionary is not None and at < len(body), "a dictionary and places in it")
        width = int(body[at])
        _check(width <= _MAX_INDEX_BITS, "the width of places in the dictionary")
        pick = self._kernels.parquet.pick
        told = pick(body, at + 1, width, count, self.dictionary, valid, out)  # type: ignore[arg-type]
        _check(told == 0, "places in the dictionary")

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


class _FoldedChunk(_Chunk):
    """The same with equal neighbours once: most of what stands in flat rows of a request."""

    def __init__(
        self, leaf: Leaf, codec: str, num_rows: int, num_values: int, kernels: Kernels
    ) -> None:
        super().__init__(leaf, codec, num_rows, num_values, kernels)
        _check(not pa.types.is_boolean(leaf.type.value_type), "folding of booleans")
        self._all_lists = np.empty(num_rows, dtype=np.uint8)
        self._codes = np.empty(num_rows, dtype=np.int32)
        self._state = np.zeros(3, dtype=np.int64)  # rows, lists and items so far

    def _place(self, page: Page, levels: _Levels, body: Bytes, at: int) -> None:
        room = len(self._codes) - int(self._state[0])
        starts = np.empty(min(page.num_values, room) + 1, dtype=np.int64)
        lists, items = self._read_levels(levels, page.num_values, 0, starts[:-1])
        num_lists, num_items = self._found.tolist()
        starts[num_lists] = num_items
        _check(bool(items.all()), "folding of lists with null items")
        told = self._kernels.parquet.fold(
            self._items(page.encoding, body, at, num_items),
            self._values.dtype.itemsize,
            starts[: num_lists + 1],
            lists,
            self._values.view(np.uint8),
            self._starts,
            self._all_lists,
            self._codes,
            self._state,
        )
        _check(told == 0, "a list for the first item")

    def _items(self, encoding: int, body: Bytes, at: int, count: int) -> Bytes:
        """The page's items as Arrow has them, where they lie if they lie so."""
        width = self._values.dtype.itemsize
        if encoding == _PLAIN and width == self._leaf.stored.itemsize:
            _check(at + count * width <= len(body), "values")
            return body[at : at + count * width]
        values = np.empty(count, dtype=self._values.dtype)
        self._add_values(encoding, body, at, _EVERY, values)
        return values.view(np.uint8)

    def finish(self) -> pa.DictionaryArray:
        num_rows, num_lists, self._num_items = self._state.tolist()
        _check(num_rows == len(self._codes), "as many lists as rows")
        starts, valid = self._starts[: num_lists + 1], self._all_lists[:num_lists]
        starts[-1] = self._num_items
        lists = self._lists(starts, None if valid.all() else valid)
        return pa.DictionaryArray.from_arrays(pa.array(self._codes), lists)


def _check(is_so: bool, what: str) -> None:
    if not is_so:
        raise PageError(f"{what} not known here, or broken")


def _is_whole(codec: str, stored: Bytes, body: Bytes) -> bool:
    """Whether all of the body was written: pyarrow does not tell how many bytes came out.

    zstd's fail by themselves. snappy's begin with their number. lz4's end with some as they are.
    """
    if codec == "snappy":
        return _first_varint(stored[:_MAX_VARINT_BYTES].tolist()) == len(body)
    if codec.startswith("lz4"):
        last = min(_LZ4_LITERALS, len(body), len(stored) - 1)
        return last > 0 and bool((body[-last:] == stored[-last:]).all())
    return True


def _first_varint(data: Sequence[int]) -> int:
    value = 0
    for place, byte in enumerate(data):
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            break
    return value


def _end_of_levels(body: Bytes, at: int) -> int:
    """Where levels end that stand after the number of their bytes, which is at `at`."""
    start = at + _LENGTH_BYTES
    _check(start <= len(body), "levels")
    stop = start + int.from_bytes(body[at:start].tobytes(), "little")
    _check(stop <= len(body), "levels")
    return stop


def _marked(valid: Bytes | None, first: int, marks: Bytes, total: int) -> Bytes | None:
    """A byte a place, from the first place on that is not valid."""
    if valid is None:
        if marks.all():
            return None
        valid = np.ones(total, dtype=np.uint8)
    valid[first : first + len(marks)] = marks
    return valid


def _bits(valid: Bytes | None, count: int) -> pa.Buffer | None:
    if valid is None:
        return None
    return pa.py_buffer(np.packbits(valid[:count], bitorder="little"))


def _empty(count: int, dtype: np.dtype[Any]) -> Array:
    """Room in Arrow's memory, which is used again and not given back each time."""
    array: Array = np.frombuffer(pa.allocate_buffer(count * dtype.itemsize), dtype)
    return array
