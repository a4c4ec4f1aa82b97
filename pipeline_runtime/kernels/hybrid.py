"""Parquet's hybrid of runs and packed bits, in which levels and a dictionary's places are stored.

Apache Parquet, "Data encodings", RLE = 3: a varint header, whose lowest bit tells runs (0) from
packed bits (1). `parquet` calls these and says what numbers mean. Nothing that a page says is
trusted: whoever would read past `stop`, or finds what cannot be, returns -1. Arrays are contiguous.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_MAX_SHIFT = 28  # of a varint of 32 bits
_FULL_BYTE, _MAX_WORD = 255, 2**64 - 1


def _build_load_word(context: Any, data: Any, at: Any) -> Any:
    """Eight bytes from any place on: put together one by one they cost six times as much."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        word = builder.bitcast(place, ir.IntType(64).as_pointer())
        return builder.load(word, align=1)

    return types.uint64(data, types.int64), build


def _build_lowest_bit(context: Any, word: Any) -> Any:
    """The place of the lowest bit that is set, of a word that is not zero."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), build


def _build_copy_bytes(context: Any, data: Any, start: Any, out: Any, at: Any, count: Any) -> Any:
    """memcpy: of a loop over bytes the compiler makes one over bytes."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, start, sink, at, count = arguments
        source = context.make_array(signature.args[0])(context, builder, source).data
        sink = context.make_array(signature.args[2])(context, builder, sink).data
        places = builder.gep(sink, [at]), builder.gep(source, [start])
        cgutils.raw_memcpy(builder, *places, count, 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.none(data, types.int64, out, types.int64, types.int64), build


# Any: what numba gives its context with is no argument of theirs.
load_word: Any = intrinsic(_build_load_word)
copy_bytes: Any = intrinsic(_build_copy_bytes)
_lowest_bit: Any = intrinsic(_build_lowest_bit)


@numba.njit(inline="always")
def read_header(data: Any, at: int, stop: int) -> tuple[Any, int]:
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
def read_value(data: Any, at: int, num_bytes: int) -> Any:
    value: Any = 0
    for index in range(num_bytes):
        value |= np.int64(data[at + index]) << (8 * index)
    return value


@numba.njit(inline="always")
def _unpack_eights(data: Any, at: int, width: int, out: Any, first: int, count: int) -> int:
    """Values of up to eight bits, eight of one word at a time; how many of `count` these are."""
    mask = np.uint64((1 << width) - 1)
    num_words = min(count >> 3, max(0, (len(data) - 8 - at) // width + 1))
    for index in range(num_words):
        word: Any = load_word(data, at + index * width)
        for place in range(8):
            value = (word >> np.uint64(place * width)) & mask
            out[first + 8 * index + place] = np.int64(value)
    return num_words * 8


@numba.njit(inline="always")
def _unpack_bits(data: Any, at: int, width: int, out: Any, first: int, count: int) -> None:
    """`count` values of `width` bits, the lowest bits first."""
    mask = np.int64((1 << width) - 1)
    num_done = _unpack_eights(data, at, width, out, first, count) if width <= 8 else 0
    num_fast = min(count, max(0, (len(data) - 8 - at) * 8 // width))  # eight bytes can be read
    for index in range(num_done, num_fast):
        bit = index * width
        word: Any = load_word(data, at + (bit >> 3))
        out[first + index] = np.int64(word >> np.uint64(bit & 7)) & mask
    for index in range(max(num_done, num_fast), count):
        bit = index * width
        num_bytes = ((bit & 7) + width + 7) >> 3
        out[first + index] = (read_value(data, at + (bit >> 3), num_bytes) >> (bit & 7)) & mask


@numba.njit
def unpack(data: Any, start: int, stop: int, width: int, count: int, out: Any) -> int:
    """`count` values of 1 to 32 bits from the hybrid at [start, stop); 0, or -1 if it has fewer."""
    done, at = 0, start
    while done < count:
        header, at = read_header(data, at, stop)
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
            value = read_value(data, at, num_bytes)
            if value >> width:
                return -1
            out[done : done + num] = value
        at += num_bytes
        done += num
    return 0


@numba.njit
def is_run_of(data: Any, start: int, stop: int, count: int, value: int) -> bool:
    """Whether all `count` levels, of up to eight bits, are one run of this value."""
    header, at = read_header(data, start, stop)
    return (
        header > 0 and not header & 1 and header >> 1 >= count and at < stop and data[at] == value
    )


@numba.njit(inline="always")
def _load_bits(data: Any, at: int, count: int) -> Any:
    """`count` bits, 64 at most, which `data` has; ones above them."""
    if count == 64:
        return load_word(data, at)
    word: Any = np.uint64(_MAX_WORD)
    for index in range((count + 7) >> 3):
        word &= ~(np.uint64(_FULL_BYTE) << np.uint64(8 * index))
        word |= np.uint64(data[at + index]) << np.uint64(8 * index)
    return word | (np.uint64(_MAX_WORD) << np.uint64(count))


@numba.njit
def find_starts(data: Any, start: int, stop: int, count: int, base: int, out: Any) -> int:
    """Where lists start: the places, plus `base`, of the zeros among `count` levels of one bit.

    Returns how many there are; -1 for a broken hybrid, or for more than `out` has room for.
    """
    done, at, found, room = 0, start, 0, len(out)
    while done < count:
        header, at = read_header(data, at, stop)
        if header < 2:
            return -1
        if header & 1:
            num = min((header >> 1) * 8, count - done)
            if at + ((num + 7) >> 3) > stop:
                return -1
            for bit in range(0, num, 64):
                zeros: Any = ~_load_bits(data, at + (bit >> 3), min(64, num - bit))
                while zeros:
                    if found == room:
                        return -1
                    out[found] = base + done + bit + _lowest_bit(zeros)
                    found += 1
                    zeros &= zeros - np.uint64(1)
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
