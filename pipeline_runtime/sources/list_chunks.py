"""Pages of one column chunk of lists, taken in one by one, for `list_windows`.

A page's levels say where lists start, which of them are null and which items are; values are plain
numbers, or places in the chunk's dictionary. Kernels read both, pyarrow decompresses: whole chunks
are read at once by `columns`, without a call for each page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline_runtime.kernels import Kernels
from pipeline_runtime.sources.leaves import Leaf
from pipeline_runtime.sources.page_headers import (
    DATA_PAGE,
    DATA_PAGE_V2,
    DICTIONARY_PAGE,
    Page,
    PageError,
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
# Encodings of parquet.thrift.
_PLAIN, _PLAIN_DICTIONARY, _RLE, _RLE_DICTIONARY = 0, 2, 3, 8
MAX_INT32 = 2**31 - 1
_MAX_VARINT_BYTES = 5  # of 32 bits
_LZ4_LITERALS = 5  # "the last 5 bytes are always literals" (LZ4's block format)
_NO_ROOM = 2  # say `read_levels` and `read_page`
_EVERY = np.zeros(0, dtype=np.uint8)  # to the kernels: every place is valid
_ONE = np.ones(1, dtype=np.uint8)


class Chunk:
    """What the pages of a chunk have come to so far."""

    def __init__(
        self, leaf: Leaf, codec: str, num_rows: int, num_values: int, kernels: Kernels
    ) -> None:
        self._leaf, self._kernels = leaf, kernels.parquet
        name = CODECS[codec]
        self._codec = None if name is None else pa.Codec(name)  # not to be shared by threads
        self.dictionary: Array | None = None
        self._values = _empty(num_values, leaf.dtype)
        self._starts = _empty(num_rows + 1, np.dtype(np.int64))
        self._valid_items = self._valid_lists = _EVERY  # a byte each
        self._num_levels = 0
        self._state = np.zeros(3, dtype=np.int64)  # lists and items so far

    def add(self, page: Page, data: Bytes) -> None:
        """Take in the next page. Raises PageError for one that has to be left to pyarrow."""
        if page.kind == DICTIONARY_PAGE:
            check(page.encoding in (_PLAIN, _PLAIN_DICTIONARY), "the dictionary's encoding")
            check(self.dictionary is None, "one dictionary")
            body = self._decompress(data[page.start : page.stop], page.num_bytes)
            check(page.num_values <= len(body), "the dictionary's size")
            self.dictionary = np.empty(page.num_values, dtype=self._leaf.dtype)
            self._read_values(_PLAIN, body, 0, self.dictionary)
            return
        self._num_levels += page.num_values
        check(self._num_levels <= len(self._values), "more values than the footer says")
        levels, body = self._split(page, data)
        told = self._read_page(page, levels, body)
        if told == _NO_ROOM:
            self._valid_items = np.ones(len(self._values), dtype=np.uint8)
            self._valid_lists = np.ones(len(self._starts), dtype=np.uint8)
            told = self._read_page(page, levels, body)
        check(told == 0, "levels and values")

    def _read_page(self, page: Page, levels: Bytes, body: Bytes) -> int:
        leaf = self._leaf
        return self._kernels.read_page(
            levels,
            *_level_bytes(page),
            page.num_values,
            leaf.empty_level,
            leaf.max_level,
            body,
            self._is_plain(page.encoding),
            leaf.size,
            leaf.dtype.itemsize,
            self._dictionary(),
            self._values.view(np.uint8),
            self._starts,
            self._valid_lists,
            self._valid_items,
            self._state,
        )

    def finish(self) -> tuple[bool, pa.Array]:
        """The lists of these pages; whether the first goes on with one of the pages before."""
        num_lists, num_items, _ = self._state.tolist()
        starts, valid = self._starts[: num_lists + 1], self._valid_lists[:num_lists]
        starts[-1] = num_items
        if starts[0] == 0:
            return False, self._lists(starts, valid)
        return True, self._lists(np.append(0, starts), np.append(_ONE, valid))

    def _lists(self, starts: npt.NDArray[np.int64], valid: Bytes) -> pa.Array:
        leaf, num_lists, num_items = self._leaf, len(starts) - 1, int(starts[-1])
        offsets = starts if leaf.is_large else starts.astype(np.int32)
        values: Any = self._values[:num_items]
        if leaf.is_boolean:
            values = np.packbits(values, bitorder="little")
        buffers = [_bits(self._valid_items[:num_items]), pa.py_buffer(values)]
        items = pa.Array.from_buffers(leaf.items, num_items, buffers)
        buffers = [_bits(valid[:num_lists]), pa.py_buffer(offsets)]
        return pa.Array.from_buffers(leaf.type, num_lists, buffers, children=[items])

    def _decompress(self, stored: Bytes, num_bytes: int) -> Bytes:
        if num_bytes == 0:
            return stored[:0]
        if self._codec is None:
            check(len(stored) == num_bytes, "a page's size")
            return stored
        body = np.frombuffer(self._codec.decompress(stored, num_bytes), np.uint8)
        check(_is_whole(self._codec.name, stored, body), "a page's size")
        return body

    def _split(self, page: Page, data: Bytes) -> tuple[Bytes, Bytes]:
        """A page's levels, with or without what is behind them, and its body."""
        if page.kind == DATA_PAGE:
            encodings = (page.definition_encoding, page.repetition_encoding)
            check(encodings == (_RLE, _RLE), "the levels' encoding")
            body = self._decompress(data[page.start : page.stop], page.num_bytes)
            return body, body
        level_bytes = page.repetition_bytes + page.definition_bytes
        start = page.start + level_bytes
        check(start <= page.stop and level_bytes <= page.num_bytes, "levels")
        body = data[start : page.stop]
        if page.is_compressed:
            body = self._decompress(body, page.num_bytes - level_bytes)
        return data[page.start : start], body

    def _read_values(self, encoding: int, body: Bytes, at: int, out: Array) -> None:
        leaf, dictionary = self._leaf, self._dictionary()
        width, sink = leaf.dtype.itemsize, out.view(np.uint8)
        is_plain = self._is_plain(encoding)
        told = self._kernels.read_values(body, at, is_plain, leaf.size, width, dictionary, sink)
        check(told == 0, "values")

    def _is_plain(self, encoding: int) -> bool:
        check(encoding in (_PLAIN, _RLE_DICTIONARY, _PLAIN_DICTIONARY), "the values' encoding")
        return encoding == _PLAIN

    def _dictionary(self) -> Bytes:
        return _EVERY if self.dictionary is None else self.dictionary.view(np.uint8)


def _level_bytes(page: Page) -> tuple[int, int]:
    """Bytes of repetition and definition levels; -1 where the page's body says it."""
    is_second = page.kind == DATA_PAGE_V2
    return (page.repetition_bytes, page.definition_bytes) if is_second else (-1, -1)


def check(is_so: bool, what: str) -> None:
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
        return last > 0 and body[-last:].tobytes() == stored[-last:].tobytes()
    return True


def _first_varint(data: Sequence[int]) -> int:
    value = 0
    for place, byte in enumerate(data):
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            break
    return value


def _bits(valid: Bytes) -> pa.Buffer | None:
    """Arrow's bitmap of which places are valid; None: all."""
    if valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _empty(count: int, dtype: np.dtype[Any]) -> Array:
    """Room in Arrow's memory, which is used again and not given back each time."""
    array: Array = np.frombuffer(pa.allocate_buffer(count * dtype.itemsize), dtype)
    return array
