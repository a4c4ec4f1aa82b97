"""A column chunk's lists a window at a time, of which about as many are held in memory.

A part of the chunk's pages is decoded as `list_chunks` does it; its ends may cut a list, and lists
go on their way in windows of equal length.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pipeline_runtime.kernels import Kernels
from pipeline_runtime.sources.leaves import Leaf, Stored
from pipeline_runtime.sources.list_chunks import MAX_INT32, Chunk, check
from pipeline_runtime.sources.page_headers import DICTIONARY_PAGE, Page, PageError, read_pages


def decode_windows(
    leaf: Leaf, stored: Stored, kernels: Kernels, max_rows: int
) -> Iterator[pa.Array]:
    """The chunk's lists, `max_rows` at a time; about as many are held.

    Raises PageError, or ArrowException, where the rest is to be left to pyarrow.
    """
    windows, data = _Windows(max_rows), np.frombuffer(stored.data, np.uint8)
    dictionary, rows_left, levels_left = None, stored.num_rows, stored.num_values
    levels = stored.num_values * max_rows // max(1, stored.num_rows)
    for pages in _parts(read_pages(data, kernels), levels):
        total = sum(page.num_values for page in pages if page.kind != DICTIONARY_PAGE)
        check(total <= min(levels_left, MAX_INT32), "fewer items")
        levels_left -= total
        part = Chunk(leaf, stored.codec, min(rows_left, total), total, kernels)
        part.dictionary = dictionary
        for page in pages:
            part.add(page, data)
        dictionary = part.dictionary
        is_going_on, lists = part.finish()
        rows_left -= len(lists) - is_going_on
        yield from windows.add(lists, is_going_on=is_going_on)
    check(rows_left == 0, "as many lists as rows")
    yield from windows.finish()


def _parts(pages: Iterator[Page], num_values: int) -> Iterator[list[Page]]:
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
