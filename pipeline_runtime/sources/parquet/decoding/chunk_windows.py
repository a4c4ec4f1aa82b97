"""Decodes a column chunk window by window, so that memory holds about one window.

`row_group` decodes a part of the chunk's pages at a time. A part may begin or end within a list, so
the values are joined and then cut into windows of equal length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from pipeline_runtime.kernels import Kernels
from pipeline_runtime.sources.parquet.decoding.chunk_pages import (
    DICTIONARY_PAGE,
    Page,
    PageError,
    read_pages,
)
from pipeline_runtime.sources.parquet.decoding.leaves import Leaf, Stored
from pipeline_runtime.sources.parquet.decoding.row_group import decode_columns


def decode_windows(
    leaf: Leaf, stored: Stored, kernels: Kernels, max_rows: int
) -> Iterator[pa.Array]:
    """Yield the chunk's numbers or lists, `max_rows` at a time; memory holds about as many.

    Raises PageError if pyarrow must read the rest.
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
            num_rows=min(rows_left, total) + 1 if leaf.is_list else total,  # plus a continued list
            num_values=total,
        )
        values = decode_columns({"": leaf}, {"": cut}, kernels).get("")
        if values is None:
            raise PageError("the pages are broken, or of an unknown kind")
        rows_left -= len(values) - leaf.is_list
        yield from windows.add(values, may_go_on=leaf.is_list)
    if rows_left != 0 or levels_left != 0:
        raise PageError("the pages and the footer differ in the number of rows or values")
    yield from windows.finish()


def _parts(pages: Iterator[Page], num_values: int) -> Iterator[list[Page]]:
    """Group consecutive pages until a group has at least `num_values` levels.

    A dictionary page is a group of its own.
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
    """Joins parts, which may begin or end within a list, and cuts windows of equal length."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._held: list[pa.Array] = []
        self._last: pa.Array | None = None  # one list, which the next part may continue

    def add(self, values: pa.Array, *, may_go_on: bool) -> Iterator[pa.Array]:
        """Add values, and yield the windows that are full.

        If `may_go_on` is set, the first list of the values continues the last list of the part
        before.
        """
        if may_go_on:
            rest, values = values.slice(0, 1), values.slice(1)
            if len(rest.flatten()) > 0:
                if self._last is None:
                    raise PageError("the chunk's first items belong to no list")
                self._last = _join_lists(self._last, rest)
            if len(values) == 0:
                return
            self._held += [self._last] if self._last is not None else []
            self._last = values.slice(len(values) - 1)
            values = values.slice(0, len(values) - 1)
        self._held.append(values)
        yield from self._cut(self._max_rows)

    def finish(self) -> Iterator[pa.Array]:
        """Yield the remaining windows; the last may be shorter."""
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
    """Return one list with the items of two lists."""
    items = pa.concat_arrays([first.flatten(), second.flatten()])
    dtype = np.int64 if pa.types.is_large_list(first.type) else np.int32
    offsets = pa.py_buffer(np.array([0, len(items)], dtype=dtype))
    return pa.Array.from_buffers(first.type, 1, [None, offsets], children=[items])
