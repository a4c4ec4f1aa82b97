"""Kernels that take a Parquet page apart, compiled by `compiled`, called by `list_chunks`.

Nothing that a page says is trusted: what cannot be gives -1, and the caller leaves the column to
Arrow. Arrays are contiguous, `data` and `body` are a page's bytes.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from pipeline_runtime.kernels.hybrid import (
    copy_bytes,
    find_starts,
    is_run_of,
    read_value,
    unpack,
)

_LENGTH_BYTES = 4  # of the number of a level's bytes
_MAX_INDEX_BITS = 31


@numba.njit
def _assemble(
    repeats: Any,
    levels: Any,
    empty: int,
    present: int,
    base: int,
    starts: Any,
    lists: Any,
    items: Any,
) -> tuple[int, int]:
    """How many lists and items there are; -1 for what cannot be."""
    num_lists, num_items, room = 0, 0, min(len(starts), len(lists))
    for index in range(len(levels)):
        level = levels[index]
        if repeats[index] == 0:
            if num_lists == room:
                return -1, 0
            starts[num_lists] = base + num_items
            lists[num_lists] = level >= empty
            num_lists += 1
        if level > empty:
            items[num_items] = level >= present
            num_items += 1
    return num_lists, num_items


@numba.njit(inline="always")
def _end_of_levels(data: Any, at: int) -> int:
    """Where levels end that stand after the number of their bytes, which is at `at`; or -1."""
    if at + _LENGTH_BYTES > len(data):
        return -1
    stop = at + _LENGTH_BYTES + read_value(data, at, _LENGTH_BYTES)
    return stop if stop <= len(data) else -1


@numba.njit
def _read_levels(
    data: Any,
    repetition_bytes: int,
    definition_bytes: int,
    count: int,
    empty: int,
    present: int,
    base: int,
    starts: Any,
    lists: Any,
    items: Any,
) -> tuple[int, int, int, int]:
    """What `read_levels` returns and has found."""
    first, definition = 0, repetition_bytes
    end, stop = repetition_bytes, repetition_bytes + definition_bytes
    if repetition_bytes < 0:
        end = _end_of_levels(data, 0)
        stop = _end_of_levels(data, end) if end >= 0 else -1
        first, definition = _LENGTH_BYTES, end + _LENGTH_BYTES
    if stop < 0 or stop > len(data):
        return -1, 0, 0, 0
    if is_run_of(data, definition, stop, count, present):
        num_lists = find_starts(data, first, end, count, base, starts)
        return min(num_lists, 0), num_lists, count, stop
    if len(items) < count or len(lists) < min(count, len(starts)):
        return 2, 0, 0, stop
    levels = np.empty(count, dtype=np.uint8)
    width = 1
    while present >> width:
        width += 1
    if unpack(data, definition, stop, width, count, levels) < 0:
        return -1, 0, 0, 0
    lowest, highest = np.uint8(255), np.uint8(0)
    for index in range(count):
        lowest = min(lowest, levels[index])
        highest = max(highest, levels[index])
    if highest > present:
        return -1, 0, 0, 0
    if lowest > empty:  # every level is an item, and no list is null or empty
        num_lists = find_starts(data, first, end, count, base, starts)
        for index in range(num_lists):
            lists[index] = 1
        for index in range(count):
            items[index] = levels[index] >= present
        return (1 if num_lists >= 0 else -1), num_lists, count, stop
    repeats = np.empty(count, dtype=np.uint8)
    if unpack(data, first, end, 1, count, repeats) < 0:
        return -1, 0, 0, 0
    num_lists, num_items = _assemble(repeats, levels, empty, present, base, starts, lists, items)
    return (1 if num_lists >= 0 else -1), num_lists, num_items, stop


def read_levels(
    data: Any,
    repetition_bytes: int,
    definition_bytes: int,
    count: int,
    empty: int,
    present: int,
    base: int,
    starts: Any,
    lists: Any,
    items: Any,
    found: Any,
) -> Any:
    """Lists and items of a page, of its levels.

    Args:
        data: begins with the repetition levels, 0 where a list starts, then the definition levels:
            below `empty` a null list, `empty` one without items, above it an item, which is null
            below `present`.
        repetition_bytes, definition_bytes: of the levels; -1 of a page of version 1, in which each
            of the two stands after the number of its bytes.
        count: levels of the page.
        base: items before this page.
        starts: written, for each list: where its items start.
        lists, items: written, if need be, for each list and item: whether it is valid.
        found: written: lists and items of the page, and where its levels end.

    Returns:
        0 if all is valid, 1 if `lists` and `items` are written, 2 if they have no room for `count`
        and would be, -1 for what cannot be, such as more lists than `starts` has room for.
    """
    told, num_lists, num_items, stop = _read_levels(
        data, repetition_bytes, definition_bytes, count, empty, present, base, starts, lists, items
    )
    found[0], found[1], found[2] = num_lists, num_items, stop
    return told


@numba.njit
def _read_plain(data: Any, start: int, size: int, out: Any) -> int:
    count = len(out)
    if size == 0:
        if (len(data) - start) * 8 < count:
            return -1
        for index in range(count):
            out[index] = (data[start + (index >> 3)] >> np.uint8(index & 7)) & np.uint8(1)
        return 0
    if start + count * size > len(data):
        return -1
    places, width = out.view(np.uint8), out.itemsize
    if size == width:
        copy_bytes(data, start, places, 0, count * size)
        return 0
    if width == 1 and size == 4:  # known to the compiler, it moves many at once
        for index in range(count):
            places[index] = data[start + index * 4]
        return 0
    for index in range(count):
        for byte in range(width):
            places[index * width + byte] = data[start + index * size + byte]
    return 0


@numba.njit
def _read_values(
    data: Any, start: int, is_plain: bool, size: int, dictionary: Any, out: Any
) -> int:
    count, num_values = len(out), np.int64(len(dictionary))
    if count == 0:
        return 0
    if is_plain:
        return int(_read_plain(data, start, size, out))
    if start >= len(data) or data[start] > _MAX_INDEX_BITS:
        return -1
    width = np.int64(data[start])
    indices = np.empty(count, dtype=np.int32)
    if width == 0:
        indices[:] = 0
    elif unpack(data, start + 1, len(data), width, count, indices) < 0:
        return -1
    highest = lowest = np.int32(0)
    for index in range(count):
        highest = max(highest, indices[index])
        lowest = min(lowest, indices[index])
    if lowest < 0 or highest >= num_values:
        return -1
    for index in range(count):
        out[index] = dictionary[indices[index]]
    return 0


def read_values(data: Any, start: int, is_plain: bool, size: int, dictionary: Any, out: Any) -> Any:
    """As many values as `out` takes, one after another; 0, or -1 if there are not as many.

    Args:
        data: a page's bytes, of which the values begin at `start`.
        is_plain: whether these are the values, little-endian; else places in the dictionary, after
            a byte that says how many bits each has.
        size: bytes of a plain value, of which `out` takes the lowest; 0 for one bit.
        dictionary: without values if the chunk has none.
    """
    return _read_values(data, start, is_plain, size, dictionary, out)


@numba.njit
def _spread_values(
    data: Any, start: int, is_plain: bool, size: int, dictionary: Any, valid: Any, out: Any
) -> int:
    """Values at the places that are valid, zero at the others; `valid` without any: all are."""
    num_valid = len(out)
    if len(valid) > 0:
        num_valid = 0
        for index in range(len(valid)):
            num_valid += valid[index]
    if _read_values(data, start, is_plain, size, dictionary, out[:num_valid]) < 0:
        return -1
    if num_valid == len(out):
        return 0
    zero = out.dtype.type(0)
    for index in range(len(out) - 1, -1, -1):  # from behind: none is written over that has to move
        num_valid -= valid[index]
        value = out[num_valid]
        out[index] = value if valid[index] else zero
    return 0


def read_page(
    levels: Any,
    repetition_bytes: int,
    definition_bytes: int,
    count: int,
    empty: int,
    present: int,
    body: Any,
    is_plain: bool,
    size: int,
    dictionary: Any,
    values: Any,
    starts: Any,
    lists: Any,
    items: Any,
    state: Any,
) -> int:
    """Write a page's lists behind those of the pages before it.

    Args:
        levels, repetition_bytes, definition_bytes, count, empty, present: as `read_levels` has
            them.
        body: of a page of version 1 its levels and the values after them, of version 2 the values.
        is_plain, size, dictionary: as `read_values` has them.
        values: written: of the whole chunk, an item each; zero for one that is null.
        starts: written: of the whole chunk, where each list starts; there is one more place.
        lists, items: of the whole chunk, which lists and items are valid: ones, of which others are
            written; without any, all are.
        state: lists and items so far, which it goes on counting.

    Returns:
        0, 2 if `lists` and `items` are needed, -1 for what cannot be.
    """
    first_list, first_item = state[0], state[1]
    told, num_lists, num_items, stop = _read_levels(
        levels,
        repetition_bytes,
        definition_bytes,
        count,
        empty,
        present,
        first_item,
        starts[first_list : len(starts) - 1],
        lists[first_list:],
        items[first_item:],
    )
    if told != 0 and told != 1:
        return int(told)
    start = stop if repetition_bytes < 0 else 0
    valid = items[first_item : first_item + num_items] if told == 1 else items[:0]
    out = values[first_item : first_item + num_items]
    if _spread_values(body, start, is_plain, size, dictionary, valid, out) < 0:
        return -1
    state[0], state[1] = first_list + num_lists, first_item + num_items
    return 0
