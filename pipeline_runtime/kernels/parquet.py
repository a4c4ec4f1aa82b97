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

_MAX_SHIFT = 28  # of a varint of 32 bits
_FULL_BYTE = np.uint8(255)


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
        byte = at + (bit >> 3)
        word = np.uint64(data[byte])
        for place in range(1, 8):
            word |= np.uint64(data[byte + place]) << np.uint64(8 * place)
        out[first + index] = np.int64(word >> np.uint64(bit & 7)) & mask
    for index in range(num_fast, count):
        bit = index * width
        num_bytes = ((bit & 7) + width + 7) >> 3
        out[first + index] = (_read_value(data, at + (bit >> 3), num_bytes) >> (bit & 7)) & mask


def unpack(data: Any, start: int, stop: int, width: int, count: int, out: Any) -> int:
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
            out[done : done + num] = _read_value(data, at, num_bytes)
        at += num_bytes
        done += num
    return 0


def find_starts(data: Any, start: int, stop: int, count: int, base: int, out: Any) -> int:
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
            if at >= stop:
                return -1
            if not data[at] & np.uint8(1):
                if found + num > room:
                    return -1
                for index in range(num):
                    out[found + index] = base + done + index
                found += num
            at += 1
        done += num
    return found


def assemble(
    repeats: Any,
    levels: Any,
    empty: int,
    present: int,
    base: int,
    starts: Any,
    lists: Any,
    items: Any,
) -> int:
    """Lists and items of a page with nulls or empty lists, of levels that are unpacked.

    Args:
        repeats: repetition levels, 0 where a list starts.
        levels: definition levels: below `empty` a null list, `empty` one without items, above it an
            item, which is null below `present`.
        base: items before this page.
        starts, lists: written, for each list: where its items start, whether it is valid.
        items: written, for each item: whether it is valid.

    Returns:
        lists << 32 | items of the page; -1 for more lists than there is room for.
    """
    num_lists, num_items, room = 0, 0, len(starts)
    for index in range(len(levels)):
        level = levels[index]
        if repeats[index] == 0:
            if num_lists == room:
                return -1
            starts[num_lists] = base + num_items
            lists[num_lists] = level >= empty
            num_lists += 1
        if level > empty:
            items[num_items] = level >= present
            num_items += 1
    return (num_lists << 32) | num_items


def pick(values: Any, indices: Any, valid: Any, out: Any) -> int:
    """A dictionary's values at `indices`, one for each place that is valid; 0, or -1 past its end.

    `valid` without places means that all are; others are set to zero.
    """
    size = len(values)
    if len(valid) == 0:
        for index in range(len(indices)):
            if indices[index] < 0 or indices[index] >= size:
                return -1
            out[index] = values[indices[index]]
        return 0
    taken = 0
    for index in range(len(valid)):
        out[index] = 0
        if valid[index]:
            if taken >= len(indices) or indices[taken] < 0 or indices[taken] >= size:
                return -1
            out[index] = values[indices[taken]]
            taken += 1
    return 0


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
