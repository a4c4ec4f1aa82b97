"""Decodes Parquet pages, for `whole_chunks`.

Levels and dictionary indices are encoded as the format's hybrid of runs and packed bits (Apache
Parquet, "Data encodings", RLE = 3): the lowest bit of a varint header is 0 for a run and 1 for
packed bits. The bytes of a page are untrusted: a function returns -1 before it would read past
`stop`, or if it finds an invalid value, and the caller leaves the column to Arrow. Arrays are
contiguous; `data` and `body` are a page's bytes.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from pipeline_runtime.kernels.intrinsics import NARROWED, copy_bytes, load_word, lowest_bit, narrow

_MAX_SHIFT = 28  # of a varint of 32 bits
_MAX_UINT32 = 2**32 - 1
_MAX_EIGHTS = 2**28  # groups of eight packed values in a run, as in pyarrow
_FULL_BYTE, _MAX_WORD = 255, 2**64 - 1
_LENGTH_BYTES = 4  # of the number of a level's bytes
_MAX_INDEX_BITS = 31
_EIGHT_VALID = np.uint64(0x0101010101010101)  # bytes of ones


@numba.njit(inline="always")
def _read_header(data: Any, at: int, stop: int) -> tuple[Any, int]:
    """Return a varint of 32 bits and the position behind it; -1 if it does not end or is larger."""
    header: Any = 0
    shift = 0
    while at < stop and shift <= _MAX_SHIFT:
        byte = np.int64(data[at])
        at += 1
        header |= (byte & 127) << shift
        if byte < 128:
            return header if header <= _MAX_UINT32 else -1, at
        shift += 7
    return -1, at


@numba.njit(inline="always")
def _run_bytes(header: Any, width: int) -> Any:
    """Return the bytes of a run of values of `width` bits; -1 if the header is invalid."""
    if header < 2 or (header & 1 and header >> 1 > _MAX_EIGHTS):
        return -1
    return (header >> 1) * width if header & 1 else (width + 7) >> 3


@numba.njit(inline="always")
def _read_value(data: Any, at: int, num_bytes: int) -> Any:
    value: Any = 0
    for index in range(num_bytes):
        value |= np.int64(data[at + index]) << (8 * index)
    return value


@numba.njit(inline="always")
def _unpack_eights(data: Any, at: int, width: int, out: Any, first: int, count: int) -> int:
    """Unpack values of up to eight bits, eight of a word at a time. Return how many are done."""
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
    """Unpack `count` values of `width` bits, the lowest bits first."""
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
        out[first + index] = (_read_value(data, at + (bit >> 3), num_bytes) >> (bit & 7)) & mask


@numba.njit
def unpack(data: Any, start: int, stop: int, width: int, count: int, out: Any) -> int:
    """Unpack `count` values of 0 to 32 bits from the hybrid at [start, stop). Return 0, or -1.

    All bytes of a run must exist, even those of values beyond `count`; else the result is -1.
    """
    done, at = 0, start
    while done < count:
        header, at = _read_header(data, at, stop)
        num_bytes = _run_bytes(header, width)
        if num_bytes < 0 or num_bytes > stop - at:
            return -1
        if width == 0:
            num = min((header >> 1) * (8 if header & 1 else 1), count - done)
            out[done : done + num] = 0
        elif header & 1:
            num = min((header >> 1) * 8, count - done)
            _unpack_bits(data, at, width, out, done, num)
        else:
            num = min(header >> 1, count - done)
            value = _read_value(data, at, num_bytes)
            if value >> width:
                return -1
            out[done : done + num] = value
        at += num_bytes
        done += num
    return 0


@numba.njit
def is_run_of(data: Any, start: int, stop: int, count: int, value: int) -> bool:
    """Return whether all `count` levels, of up to eight bits, are one run of this value."""
    header, at = _read_header(data, start, stop)
    return (
        header > 0 and not header & 1 and header >> 1 >= count and at < stop and data[at] == value
    )


@numba.njit(inline="always")
def _load_bits(data: Any, at: int, count: int) -> Any:
    """Return a word with `count` bits of `data`, at most 64, and ones above them."""
    if count == 64:
        return load_word(data, at)
    word: Any = np.uint64(_MAX_WORD)
    for index in range((count + 7) >> 3):
        word &= ~(np.uint64(_FULL_BYTE) << np.uint64(8 * index))
        word |= np.uint64(data[at + index]) << np.uint64(8 * index)
    return word | (np.uint64(_MAX_WORD) << np.uint64(count))


@numba.njit
def find_starts(data: Any, start: int, stop: int, count: int, base: int, out: Any) -> int:
    """Write the starts of lists: positions, plus `base`, of zeros among `count` levels of one bit.

    Returns the number of lists; -1 for a broken hybrid, or if `out` has no room for them.
    """
    done, at, found, room = 0, start, 0, len(out)
    while done < count:
        header, at = _read_header(data, at, stop)
        num_bytes = _run_bytes(header, 1)
        if num_bytes < 0 or num_bytes > stop - at:
            return -1
        if header & 1:
            num = min((header >> 1) * 8, count - done)
            for bit in range(0, num, 64):
                zeros: Any = ~_load_bits(data, at + (bit >> 3), min(64, num - bit))
                while zeros:
                    if found == room:
                        return -1
                    out[found] = base + done + bit + lowest_bit(zeros)
                    found += 1
                    zeros &= zeros - np.uint64(1)
        else:
            num = min(header >> 1, count - done)
            if data[at] > 1:
                return -1
            if not data[at]:
                if found + num > room:
                    return -1
                for index in range(num):
                    out[found + index] = base + done + index
                found += num
        at += num_bytes
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
) -> tuple[int, int]:
    """Write lists and items from unpacked levels. Return their numbers; -1 for invalid levels."""
    num_lists, num_items, room = 0, 0, min(len(starts), len(lists))
    for index in range(len(levels)):
        level = levels[index]
        if repeats[index] == 0:
            if num_lists == room:
                return -1, 0
            starts[num_lists] = base + num_items
            lists[num_lists] = level >= empty
            num_lists += 1
        elif level <= empty:
            return -1, 0
        if level > empty:
            items[num_items] = level >= present
            num_items += 1
    return num_lists, num_items


@numba.njit(inline="always")
def end_of_levels(data: Any, at: int) -> int:
    """Return the end of levels whose size in bytes is at `at`, before them; -1 if it is invalid."""
    if at + _LENGTH_BYTES > len(data):
        return -1
    stop = at + _LENGTH_BYTES + _read_value(data, at, _LENGTH_BYTES)
    return stop if stop <= len(data) else -1


@numba.njit
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
) -> tuple[int, int, int, int]:
    """Read the lists and items of a page from its levels.

    Args:
        data: begins with the repetition levels, 0 where a list starts, then the definition levels:
            below `empty` a null list, `empty` one without items, above it an item, which is null
            below `present`.
        repetition_bytes, definition_bytes: sizes of the levels; -1 for a page of version 1, in
            which the size of each is before it.
        count: levels of the page.
        base: items before this page.
        starts: written: for each list, the position of its first item.
        lists, items: written, unless all are valid: for each list and item, whether it is valid.

    Returns:
        0 if all are valid, 1 if `lists` and `items` are written, 2 if they need room for `count`,
        -1 for invalid levels, such as more lists than `starts` has room for; then the number of
        lists, the number of items, and the end of the levels.
    """
    first, definition = 0, repetition_bytes
    end, stop = repetition_bytes, repetition_bytes + definition_bytes
    if repetition_bytes < 0:
        end = end_of_levels(data, 0)
        stop = end_of_levels(data, end) if end >= 0 else -1
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


@numba.njit
def _read_plain(data: Any, start: int, size: int, width: int, out: Any) -> int:
    count = len(out) // width
    if size == 0:
        if (len(data) - start) * 8 < count:
            return -1
        for index in range(count):
            out[index] = (data[start + (index >> 3)] >> np.uint8(index & 7)) & np.uint8(1)
        return 0
    if start + count * size > len(data):
        return -1
    if size == width:
        copy_bytes(data, start, out, 0, count * size)
        return 0
    if width == 1 and size == 4:
        num_fast = count - count % NARROWED
        for index in range(0, num_fast, NARROWED):
            narrow(data, start + index * 4, out, index)
        for index in range(num_fast, count):
            out[index] = data[start + index * 4]
        return 0
    for index in range(count):
        for byte in range(width):
            out[index * width + byte] = data[start + index * size + byte]
    return 0


@numba.njit
def _take(dictionary: Any, indices: Any, out: Any) -> None:
    for index in range(len(indices)):
        out[index] = dictionary[indices[index]]


@numba.njit
def _spread(valid: Any, num_valid: int, out: Any) -> None:
    """Move values to the places that are valid, and set the others to zero."""
    zero = out.dtype.type(0)
    index = len(out)
    while index > num_valid:  # from the end, so that no value is overwritten before it moves
        if index >= 8 and load_word(valid, index - 8) == _EIGHT_VALID:
            for _ in range(8):
                index, num_valid = index - 1, num_valid - 1
                out[index] = out[num_valid]
        else:
            index -= 1
            num_valid -= valid[index]
            value = out[num_valid]
            out[index] = value if valid[index] else zero


@numba.njit
def read_values(
    data: Any, start: int, is_plain: bool, size: int, width: int, dictionary: Any, out: Any
) -> int:
    """Read as many consecutive values as fit into `out`. Return 0, or -1 if there are fewer.

    Args:
        data: a page's bytes, of which the values begin at `start`.
        is_plain: whether the bytes are the values, little-endian. Else they are indices into the
            dictionary, behind a byte with the number of bits of each.
        size: bytes of a plain value; 0 for one bit.
        width: bytes of a value of `out`, which are the lowest of a plain value: 1, 2, 4 or 8.
        dictionary: bytes of values of this width; empty if the chunk has no dictionary.
        out: written: bytes of values.
    """
    count, num_values = len(out) // width, np.int64(len(dictionary) // width)
    if is_plain:
        return 0 if count == 0 else int(_read_plain(data, start, size, width, out))
    if start < len(data) and data[start] > _MAX_INDEX_BITS:
        return -1
    if count == 0:
        return 0
    if start >= len(data):
        return -1
    bits = np.int64(data[start])
    indices = np.empty(count, dtype=np.int32)
    if unpack(data, start + 1, len(data), bits, count, indices) < 0:
        return -1
    highest = lowest = np.int32(0)
    for index in range(count):
        highest = max(highest, indices[index])
        lowest = min(lowest, indices[index])
    if lowest < 0 or highest >= num_values:
        return -1
    if width == 8:
        _take(dictionary.view(np.uint64), indices, out.view(np.uint64))
    elif width == 4:
        _take(dictionary.view(np.uint32), indices, out.view(np.uint32))
    elif width == 2:
        _take(dictionary.view(np.uint16), indices, out.view(np.uint16))
    else:
        _take(dictionary, indices, out)
    return 0


@numba.njit
def spread_values(
    data: Any,
    start: int,
    is_plain: bool,
    size: int,
    width: int,
    dictionary: Any,
    valid: Any,
    out: Any,
) -> int:
    """Read values to the places that are valid, zero to others; an empty `valid` means all are."""
    num_valid = count = len(out) // width
    if len(valid) > 0:
        num_valid = 0
        for index in range(len(valid)):
            num_valid += valid[index]
    if read_values(data, start, is_plain, size, width, dictionary, out[: num_valid * width]) < 0:
        return -1
    if num_valid == count:
        return 0
    if width == 8:
        _spread(valid, num_valid, out.view(np.uint64))
    elif width == 4:
        _spread(valid, num_valid, out.view(np.uint32))
    elif width == 2:
        _spread(valid, num_valid, out.view(np.uint16))
    else:
        _spread(valid, num_valid, out)
    return 0


@numba.njit
def is_any_wanted(wanted: Any, first: int, stop: int) -> bool:
    """Return whether a row in [first, stop) is wanted; an empty array means that all are."""
    return len(wanted) == 0 or bool(np.any(wanted[max(first, 0) : stop]))


@numba.njit
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
    width: int,
    dictionary: Any,
    values: Any,
    starts: Any,
    lists: Any,
    items: Any,
    wanted: Any,
    state: Any,
) -> int:
    """Append a page's lists to those of the previous pages.

    Args:
        levels, repetition_bytes, definition_bytes, count, empty, present: as in `read_levels`.
        body: for a page of version 1, its levels and the values behind them; for version 2, the
            values.
        is_plain, size, width, dictionary: as in `read_values`.
        values: written: bytes of the whole chunk's items; zero for a null.
        starts: written: the start of each list of the whole chunk; it has room for one more.
        lists, items: whether each list and item of the whole chunk is valid. They begin as ones,
            and zeros are written for nulls; empty arrays mean that all are valid.
        wanted: of the whole chunk, see `is_any_wanted`. A page without a wanted row gets lists
            without items, even if the last list before it continues.
        state: the numbers of lists and items so far, which are updated.

    Returns:
        0; 2 if `lists` and `items` are needed; -1 for an invalid page.
    """
    first_list, first_item = state[0], state[1]
    told, num_lists, num_items, stop = read_levels(
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
    if not is_any_wanted(wanted, first_list - 1, first_list + num_lists):
        starts[first_list : first_list + num_lists] = first_item
        items[first_item : first_item + num_items] = 1
        state[0] = first_list + num_lists
        return 0
    start = stop if repetition_bytes < 0 else 0
    valid = items[first_item : first_item + num_items] if told == 1 else items[:0]
    out = values[first_item * width : (first_item + num_items) * width]
    if spread_values(body, start, is_plain, size, width, dictionary, valid, out) < 0:
        return -1
    state[0], state[1] = first_list + num_lists, first_item + num_items
    return 0
