"""A column chunk's values a window at a time, of which about as many are held in memory.

A part of the chunk's pages is decoded as `columns` does it; its ends may cut a list, and values go
on their way in windows of equal length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from pipeline_runtime.kernels import Kernels
from pipeline_runtime.sources.columns import decode_columns
from pipeline_runtime.sources.leaves import Leaf, Stored
from pipeline_runtime.sources.page_headers import DICTIONARY_PAGE, Page, PageError, read_pages


def decode_windows(
    leaf: Leaf, stored: Stored, kernels: Kernels, max_rows: int
) -> Iterator[pa.Array]:
    """The chunk's numbers or lists, `max_rows` at a time; about as many are held.

    Raises PageError where the rest is to be left to pyarrow.
    """
    windows = _Windows(max_rows)
    rows_left, levels_left, dictionary = stored.num_rows, stored.num_values, None
    levels = stored.num_values * max_rows // max(1, stored.num_rows)
    pages, start = read_pages(np.frombuffer(stored.data, np.uint8), kernels), 0
    for part in _parts(pages, levels):
        stop, total = part[-1].stop, sum(page.num_values for page in part)
        data, start = stored.data[start:stop], stop
        if part[0].kind == DICTIONARY_PAGE:
            dictionary = data
            continue
        levels_left -= total
        if levels_left < 0:
            raise PageError("more values than the footer says")
        cut = replace(
            stored,
            data=data,
            dictionary=dictionary,
            is_part=True,
            num_rows=min(rows_left, total) + 1 if leaf.is_list else total,  # with what goes on
            num_values=total,
        )
        values = decode_columns({"": leaf}, {"": cut}, kernels).get("")
        if values is None:
            raise PageError("pages that are not known here, or broken")
        rows_left -= len(values) - leaf.is_list
        yield from windows.add(values, may_go_on=leaf.is_list)
    if rows_left != 0 or levels_left != 0:
        raise PageError("not as many rows or values as the footer says")
    yield from windows.finish()


def _parts(pages: Iterator[Page], num_values: int) -> Iterator[list[Page]]:
    """Pages one after another that have so many levels together, or one more page's.

    A dictionary's page is a part of its own.
    """
    part: list[Page] = []
    total = 0
    for page in pages:
        if page.kind == DICTIONARY_PAGE:
            yield from [part] if part else []
            yield [page]
            part, total = [], 0
            continue
        part.append(page)
        total += page.num_values
        if total >= max(1, num_values):
            yield part
            part, total = [], 0
    if part:
        yield part


class _Windows:
    """Values on their way from parts, whose ends may cut a list, to windows of equal length."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._held: list[pa.Array] = []
        self._last: pa.Array | None = None  # one list, which may go on in the next part

    def add(self, values: pa.Array, *, may_go_on: bool) -> Iterator[pa.Array]:
        """Take values, of which list 0 is the rest of the last one; windows that are full."""
        if may_go_on:
            rest, values = values.slice(0, 1), values.slice(1)
            if len(rest.flatten()) > 0:
                if self._last is None:
                    raise PageError("the chunk's first items are of no list")
                self._last = _join_lists(self._last, rest)
            if len(values) == 0:
                return
            self._held += [self._last] if self._last is not None else []
            self._last = values.slice(len(values) - 1)
            values = values.slice(0, len(values) - 1)
        self._held.append(values)
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
