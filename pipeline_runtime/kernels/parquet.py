"""Kernels that take a Parquet page apart; `compiled` compiles them, `sources.pages` calls them.

Levels and dictionary indices come as the format's hybrid of runs and packed bits (Apache Parquet,
"Data encodings", RLE = 3): a varint header, whose lowest bit tells runs (0) from packed bits (1).
Nothing that a page says is trusted: whoever reads past `stop`, or finds what cannot be, returns -1,
and the caller leaves the column to Arrow. Arrays are contiguous, `data` is the page's bytes.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_MAX_SHIFT = 28  # of a varint of 32 bits
_FULL_BYTE = np.uint8(255)


@intrinsic
def _load_word(context: Any, data: Any, at: Any) -> Any:
    """Eight bytes from any place on: put together one by one they cost six times as much."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        word = builder.bitcast(place, ir.IntType(64).as_pointer())
        return builder.load(word, align=1)

    return types.uint64(data, types.int64), build


@numba.njit(inline="always")
def _read_header(data: Any, at: int, stop: int) -> tuple[Any, int]:
    """A varint and where it ends; -1 for one that does not end."""
    header: Any = 0
    shift = 0
    while at < stop and shift <= _MAX_SHIFT:
        byte = np.int64(data[at])
        at += 1
        header |= (byte & 127) << shift
        if byte < 128:
            return header, at
        shift += 7
    return -1, at


@numba.njit(inline="always")
def _read_value(data: Any, at: int, num_bytes: int) -> Any:
    value: Any = 0
    for index in range(num_bytes):
        value |= np.int64(data[at + index]) << (8 * index)
    return value


@numba.njit(inline="always")
def _unpack_bits(data: Any, at: int, width: int, out: Any, first: int, count: int) -> None:
    """`count` values of `width` bits, the lowest bits first."""
    mask = np.int64((1 << width) - 1)
    num_fast = min(count, max(0, (len(data) - 8 - at) * 8 // width))  # eight bytes can be read
    for index in range(num_fast):
        bit = index * width
        word: Any = _load_word(data, at + (bit >> 3))  # type: ignore[call-arg]
        out[first + index] = np.int64(word >> np.uint64(bit & 7)) & mask
    for index in range(num_fast, count):
        bit = index * width
        num_bytes = ((bit & 7) + width + 7) >> 3
        out[first + index] = (_read_value(data, at + (bit >> 3), num_bytes) >> (bit & 7)) & mask


@numba.njit
def _unpack(data: Any, start: int, stop: int, width: int, count: int, out: Any) -> int:
    """`count` values of 1 to 32 bits from the hybrid at [start, stop); 0, or -1 if it has fewer."""
    done, at = 0, start
    while done < count:
        header, at = _read_header(data, at, stop)
        if header < 2:
            return -1
        if header & 1:
            num_bytes = (header >> 1) * width
            num = min((header >> 1) * 8, count - done)
            if at + ((num * width + 7) >> 3) > stop:
                return -1
            _unpack_bits(data, at, width, out, done, num)
        else:
            num_bytes = (width + 7) >> 3
            num = min(header >> 1, count - done)
            if at + num_bytes > stop:
                return -1
            value = _read_value(data, at, num_bytes)
            if value >> width:
                return -1
            out[done : done + num] = value
        at += num_bytes
        done += num
    return 0


@numba.njit
def _is_run_of(data: Any, start: int, stop: int, count: int, value: int) -> bool:
    """Whether all `count` levels, of up to eight bits, are one run of this value."""
    header, at = _read_header(data, start, stop)
    return (
        header > 0 and not header & 1 and header >> 1 >= count and at < stop and data[at] == value
    )


@numba.njit
def _find_starts(data: Any, start: int, stop: int, count: int, base: int, out: Any) -> int:
    """Where lists start: the places, plus `base`, of the zeros among `count` levels of one bit.

    Returns how many there are; -1 for a broken hybrid, or for more than `out` has room for.
    """
    done, at, found, room = 0, start, 0, len(out)
    while done < count:
        header, at = _read_header(data, at, stop)
        if header < 2:
            return -1
        if header & 1:
            num = min((header >> 1) * 8, count - done)
            num_bytes = (num + 7) >> 3
            if at + num_bytes > stop:
                return -1
            for index in range(num_bytes):
                byte = data[at + index]
                if byte == _FULL_BYTE:
                    continue
                for bit in range(min(8, num - index * 8)):
                    if not (byte >> np.uint8(bit)) & np.uint8(1):
                        if found == room:
                            return -1
                        out[found] = base + done + index * 8 + bit
                        found += 1
            at += header >> 1
        else:
            num = min(header >> 1, count - done)
            if at >= stop or data[at] > 1:
                return -1
            if not data[at]:
                if found + num > room:
                    return -1
                for index in range(num):
                    out[found + index] = base + done + index
                found += num
            at += 1
        done += num
    return found


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
    found: Any,
) -> int:
    num_lists, num_items, room = 0, 0, min(len(starts), len(lists))
    for index in range(len(levels)):
        level = levels[index]
        if level > present:
            return -1
        if repeats[index] == 0:
            if num_lists == room:
                return -1
            starts[num_lists] = base + num_items
            lists[num_lists] = level >= empty
            num_lists += 1
        if level > empty:
            items[num_items] = level >= present
            num_items += 1
    found[0], found[1] = num_lists, num_items
    return 1


def read_levels(
    data: Any,
    repetition: int,
    definition: int,
    stop: int,
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
        repetition: where the repetition levels are in `data`, 0 where a list starts.
        definition: where the definition levels are: below `empty` a null list, `empty` one without
            items, above it an item, which is null below `present`. They end at `stop`.
        count: levels of the page.
        base: items before this page.
        starts: written, for each list: where its items start.
        lists, items: written, if need be, for each list and item: whether it is valid.
        found: written: lists and items of the page.

    Returns:
        0 if all is valid, 1 if `lists` and `items` are written, 2 if they have no room for `count`
        and would be, -1 for what cannot be, such as more lists than `starts` has room for.
    """
    if _is_run_of(data, definition, stop, count, present):
        num_lists = _find_starts(data, repetition, definition, count, base, starts)
        found[0], found[1] = num_lists, count
        return min(num_lists, 0)
    if len(items) < count or len(lists) < min(count, len(starts)):
        return 2
    repeats = np.empty(count, dtype=np.uint8)
    levels = np.empty(count, dtype=np.uint8)
    width = 1
    while present >> width:
        width += 1
    if _unpack(data, repetition, definition, 1, count, repeats) < 0:
        return -1
    if _unpack(data, definition, stop, width, count, levels) < 0:
        return -1
    return _assemble(repeats, levels, empty, present, base, starts, lists, items, found)


def pick(
    data: Any, start: int, width: int, count: int, dictionary: Any, valid: Any, out: Any
) -> int:
    """A dictionary's values at `count` places of `width` bits, one for each item that is valid.

    Items that are not are set to zero; `valid` without items means that all are. Returns 0, or -1
    for broken bits, or for a place that the dictionary does not have.
    """
    size, num_items = np.int64(len(dictionary)), len(valid)
    indices = np.zeros(count, dtype=np.int32)
    if width and _unpack(data, start, len(data), width, count, indices) < 0:
        return -1
    highest = lowest = np.int32(0)
    for index in range(count):
        highest = max(highest, indices[index])
        lowest = min(lowest, indices[index])
    if lowest < 0 or (count and highest >= size):
        return -1
    if num_items == 0:
        for index in range(count):
            out[index] = dictionary[indices[index]]
        return 0
    taken = 0
    for index in range(num_items):
        out[index] = 0
        if valid[index]:
            if taken >= count:
                return -1
            out[index] = dictionary[indices[taken]]
            taken += 1
    return 0


def fold(
    data: Any,
    width: int,
    starts: Any,
    lists: Any,
    out: Any,
    out_starts: Any,
    out_lists: Any,
    codes: Any,
    state: Any,
) -> int:
    """Write a page's lists without those that are equal to the one before, byte by byte.

    The first and the last of a page are always written: they may be parts of longer ones.

    Args:
        data: the page's items, all of them valid, of `width` bytes.
        starts: where each list's items start, and where the last one's end.
        lists: which lists are valid; without any, all are.
        out, out_starts, out_lists: written: items, and of each list where it starts and whether it
            is valid.
        codes: written: for each row of the chunk the list that it is.
        state: rows, lists and items so far, which it goes on counting.

    Returns:
        0, or -1 if the first items are of a list that never started.
    """
    num_rows, num_lists, num_items = state
    num_starts = len(starts) - 1
    if starts[0] > 0 and num_lists == 0:
        return -1
    _copy_bytes(data, 0, out, num_items * width, starts[0] * width)
    num_items += starts[0]
    for index in range(num_starts):
        first, size = starts[index], starts[index + 1] - starts[index]
        is_valid = len(lists) == 0 or lists[index] != 0
        is_same = (
            0 < index < num_starts - 1
            and size == first - starts[index - 1]
            and (len(lists) == 0 or lists[index] == lists[index - 1])
            and _is_same(data, first * width, (first - size) * width, size * width)
        )
        if not is_same:
            out_starts[num_lists] = num_items
            out_lists[num_lists] = is_valid
            _copy_bytes(data, first * width, out, num_items * width, size * width)
            num_items += size
            num_lists += 1
        codes[num_rows] = num_lists - 1
        num_rows += 1
    state[0], state[1], state[2] = num_rows, num_lists, num_items
    return 0


@numba.njit(inline="always")
def _copy_bytes(data: Any, start: int, out: Any, at: int, count: int) -> None:
    for index in range(count):
        out[at + index] = data[start + index]


@numba.njit(inline="always")
def _is_same(data: Any, left: int, right: int, count: int) -> bool:
    """Whether `count` bytes are the same: 32 at a time, which the compiler makes one comparison."""
    done = 0
    while done + 32 <= count:
        bits: Any = np.uint64(0)
        for word in range(4):
            place = done + 8 * word
            one: Any = _load_word(data, left + place)  # type: ignore[call-arg]
            bits |= one ^ _load_word(data, right + place)
        if bits:
            return False
        done += 32
    while done < count and data[left + done] == data[right + done]:
        done += 1
    return done == count


def spread(values: Any, valid: Any, out: Any) -> int:
    """The values, one after another, at the places that are valid, zero at the others; 0 or -1."""
    taken = 0
    for index in range(len(valid)):
        out[index] = 0
        if valid[index]:
            if taken >= len(values):
                return -1
            out[index] = values[taken]
            taken += 1
    return 0


def lowest_bytes(data: Any, start: int, step: int, out: Any) -> None:
    """The first byte of each `step`: little-endian integers that fit in a byte."""
    for index in range(len(out)):
        out[index] = data[start + index * step]
