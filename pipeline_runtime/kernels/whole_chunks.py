"""Decodes whole column chunks from their bytes in a file to Arrow's buffers, in one call.

`sources.parquet.decoding.row_group` fills a table with the places of a row group's chunks and of
the buffers for their values, and calls `decode`. It goes from page to page of each chunk: header,
decompressed body, levels, values. So Python and its lock are needed once per row group, not once
per page.

    page_headers     reads the next page's header
    decompression    decompresses its body, into memory that the next page's body reuses
    parquet          decodes its lists; plain numbers are lists without repetition

If not all rows are wanted, a page without a wanted row is not decoded: its rows are zero, or lists
without items. Only the levels tell the number of lists in a page, and in pages of version 1 they
must be decompressed first.

The bytes of a file are untrusted. If a column chunk is not as expected, its row in the table gets
an error code, and the caller reads it in another way. Nothing is written outside the buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from pipeline_runtime.kernels.chunks import UNCOMPRESSED
from pipeline_runtime.kernels.decompression import decompress
from pipeline_runtime.kernels.intrinsics import bytes_at, load_word
from pipeline_runtime.kernels.page_headers import (
    DATA_PAGE,
    DATA_PAGE_V2,
    DEFINITION_BYTES,
    DEFINITION_ENCODING,
    DICTIONARY_PAGE,
    ENCODING,
    IS_COMPRESSED,
    KIND,
    NUM_BYTES,
    NUM_FIELDS,
    NUM_PAGE_FIELDS,
    NUM_VALUES,
    REPETITION_BYTES,
    REPETITION_ENCODING,
    START,
    STOP,
    read_page_header,
)
from pipeline_runtime.kernels.parquet import (
    end_of_levels,
    find_starts,
    is_any_wanted,
    is_run_of,
    read_page,
    read_values,
    spread_values,
    unpack,
)

_PLAIN, _PLAIN_DICTIONARY, _RLE, _RLE_DICTIONARY = 0, 2, 3, 8  # encodings of parquet.thrift
_NO_ROOM = 2  # returned by `read_levels` and `read_page`
# A word times the first number has the lowest bit of byte i at 56 + i; times the second, it has the
# sum of its bytes from bit 56.
_SIDE_BY_SIDE, _ADDED_UP = np.uint64(0x0102040810204080), np.uint64(0x0101010101010101)
_HIGHEST = np.uint64(56)
_LENGTH_BYTES = 4  # of the number of a level's bytes


@numba.njit
def _pack(marks: Any, address: int) -> int:
    """Write marks, which are zeros and ones, as bits. Return the number of zeros."""
    count = len(marks)
    bits = bytes_at(address, (count + 7) >> 3)
    num_words = count >> 3
    num_null: Any = 0
    for place in range(num_words):  # packs and adds up the lowest bits of eight bytes
        word: Any = load_word(marks, 8 * place)
        bits[place] = np.uint8((word * _SIDE_BY_SIDE) >> _HIGHEST)
        num_null += 8 - np.int64((word * _ADDED_UP) >> _HIGHEST)
    for place in range(num_words, len(bits)):
        byte: Any = np.uint8(0)
        for index in range(8 * place, min(8 * place + 8, count)):
            is_set: Any = np.uint8(marks[index] != 0)
            byte |= is_set << np.uint8(index & 7)
            num_null += 0 if is_set else 1
        bits[place] = byte
    return int(num_null)


@numba.njit
def _level_bytes(page: Any) -> tuple[int, int]:
    """Return the bytes of repetition and definition levels; -1 if the page's body holds them."""
    if page[KIND] == DATA_PAGE:
        return -1, -1
    return page[REPETITION_BYTES], page[DEFINITION_BYTES]


@numba.njit
def _read_numbers(
    column: Any, page: Any, levels: Any, body: Any, dictionary: Any, out: Any, valid: Any
) -> int:
    """Read a page of numbers. Return 0, `_NO_ROOM` if nulls need room in `valid`, or -1.

    Args:
        levels, body: as in `read_page`, without repetition levels.
        out: written: the bytes of the page's values, zero for a null.
        valid: written, if it has room: whether each value is valid.
    """
    count, is_plain, max_level = page[NUM_VALUES], page[ENCODING] == _PLAIN, column.max_level
    size, width = column.size, column.width
    first, stop, start = 0, page[DEFINITION_BYTES], 0
    if page[KIND] == DATA_PAGE and max_level > 0:
        first, stop = _LENGTH_BYTES, end_of_levels(levels, 0)
        start = stop
        if stop < 0:
            return -1
    if max_level == 0 or is_run_of(levels, first, stop, count, max_level):
        return int(read_values(body, start, is_plain, size, width, dictionary, out))
    if len(valid) < count:
        return _NO_ROOM
    if unpack(levels, first, stop, 1, count, valid) < 0:
        return -1
    return int(spread_values(body, start, is_plain, size, width, dictionary, valid, out))


@numba.njit
def _is_known(page: Any, is_list: int, max_level: int) -> bool:
    """Return whether a page's encodings are among those that this module reads."""
    encoding = int(page[ENCODING])
    if page[KIND] == DICTIONARY_PAGE:
        return encoding in (_PLAIN, _PLAIN_DICTIONARY)
    has_others = max_level > 0 and page[DEFINITION_ENCODING] != _RLE
    has_others = has_others or (is_list and page[REPETITION_ENCODING] != _RLE)
    if page[KIND] == DATA_PAGE and has_others:
        return False
    return encoding in (_PLAIN, _PLAIN_DICTIONARY, _RLE_DICTIONARY)


@numba.njit
def _find_body(column: Any, data: Any, page: Any, scratch: Any) -> tuple[bool, Any, Any, Any]:
    """Return whether a page is whole, its levels, its decompressed body, and the scratch memory.

    Levels of version 1 are part of the body. If `scratch` is too small, larger memory replaces it.
    The body may lie in it.
    """
    level_bytes = page[REPETITION_BYTES] + page[DEFINITION_BYTES]
    start, num_bytes = page[START] + level_bytes, page[NUM_BYTES] - level_bytes
    if start > page[STOP] or num_bytes < 0 or (not column.is_list and page[REPETITION_BYTES] != 0):
        return False, data, data, scratch
    levels, body = data[page[START] : start], data[start : page[STOP]]
    if num_bytes == 0 and len(body) == 0 and page[KIND] == DATA_PAGE_V2:
        return True, levels, body, scratch  # all nulls, so there is nothing to decompress
    if column.codec != UNCOMPRESSED and page[IS_COMPRESSED]:
        if len(scratch) < num_bytes:
            scratch = np.empty(num_bytes, dtype=np.uint8)
        stored, body = body, scratch[:num_bytes]
        if not decompress(column.codec, column.function, column.state, stored, body):
            return False, levels, body, scratch
    elif len(body) != num_bytes:
        return False, levels, body, scratch
    return True, body if page[KIND] == DATA_PAGE else levels, body, scratch


@numba.njit
def _pass_over(
    column: Any,
    data: Any,
    page: Any,
    wanted: Any,
    values: Any,
    starts: Any,
    state: Any,
    num_levels: int,
) -> bool:
    """Skip a page if none of its rows is wanted, which must be clear without decompressing it.

    A list may continue at its beginning, so the row before it must not be wanted either. The number
    of rows in a header of version 2 is not used: some writers put another number there.
    """
    count, width = page[NUM_VALUES], column.width
    if len(wanted) == 0:
        return False
    if not column.is_list:
        if is_any_wanted(wanted, num_levels, num_levels + count):
            return False
        values[num_levels * width : (num_levels + count) * width] = 0
        return True
    stop = page[START] + page[REPETITION_BYTES]
    if page[KIND] != DATA_PAGE_V2 or stop > page[STOP]:
        return False
    first = state[0]
    num_lists = find_starts(data, page[START], stop, count, 0, starts[first:-1])
    if num_lists < 0 or is_any_wanted(wanted, first - 1, first + num_lists):
        return False
    starts[first : first + num_lists] = state[1]
    state[0] = first + num_lists
    return True


@numba.njit
def _finish(column: Any, num_levels: int, starts: Any, lists: Any, items: Any, state: Any) -> int:
    """Set a column's counts and write its validity bits. Return 0, or -1 if values are missing."""
    num_rows = num_lists = num_items = num_levels
    if column.is_list:
        num_rows = num_lists = state[0]
        num_items = state[1]
    if not column.is_part and (num_rows != column.num_rows or num_levels != column.num_values):
        return -1
    if column.is_list:
        starts[num_lists] = num_items
        if starts[0] != 0:  # items of a list that never started
            return -1
    column.num_lists, column.num_items = num_lists, num_items
    if len(lists):
        column.null_lists = _pack(lists[:num_lists], column.valid_lists)
    if len(items):
        column.null_items = _pack(items[:num_items], column.valid_items)
    return 0


@numba.njit
def _read_data(
    column: Any,
    page: Any,
    levels: Any,
    body: Any,
    dictionary: Any,
    values: Any,
    starts: Any,
    lists: Any,
    items: Any,
    wanted: Any,
    state: Any,
    num_levels: int,
) -> int:
    """Append a data page to the previous ones. Return 0, `_NO_ROOM` if marks are needed, or -1."""
    count, is_plain, width = page[NUM_VALUES], page[ENCODING] == _PLAIN, column.width
    if not column.is_list:
        out = values[num_levels * width : (num_levels + count) * width]
        valid = items[num_levels : num_levels + count]
        return int(_read_numbers(column, page, levels, body, dictionary, out, valid))
    repetition, definition = _level_bytes(page)
    told = read_page(
        levels,
        repetition,
        definition,
        count,
        column.empty_level,
        column.max_level,
        body,
        is_plain,
        column.size,
        width,
        dictionary,
        values,
        starts,
        lists,
        items,
        wanted,
        state,
    )
    return int(told)


@numba.njit
def _decode(column: Any, scratch: Any) -> tuple[int, Any]:
    """Decode one chunk. Return 0 or -1, and the scratch memory, replaced if it was too small."""
    num_rows, is_list, width = column.num_rows, column.is_list, column.width
    room = column.num_values if is_list else num_rows
    values = bytes_at(column.values, room * width)
    starts = bytes_at(column.starts, 8 * (num_rows + 1) * is_list).view(np.int64)
    wanted = bytes_at(column.wanted, num_rows if column.wanted else 0)
    lists, items, dictionary = scratch[:0], scratch[:0], values[:0]
    found = np.empty((4, NUM_FIELDS), dtype=np.int64)
    page = np.empty(NUM_PAGE_FIELDS, dtype=np.int64)
    state = np.zeros(2, dtype=np.int64)
    if is_list and column.is_part:
        state[0], starts[0] = 1, 0
    num_levels, has_dictionary = 0, False
    for part in range(2):
        at, data = 0, bytes_at(column.data, column.num_bytes)
        if part == 0:
            data = bytes_at(column.dictionary, column.dictionary_bytes)
        while at < len(data):
            at = read_page_header(data, at, found, page)
            is_known = at >= 0 and _is_known(page, is_list, column.max_level)
            if not is_known or page[NUM_BYTES] > column.uncompressed_bytes:
                return -1, scratch
            count, is_data = page[NUM_VALUES], page[KIND] != DICTIONARY_PAGE
            if is_data and num_levels + count > column.num_values:
                return -1, scratch
            if is_data and page[ENCODING] != _PLAIN and not has_dictionary:
                return -1, scratch
            if is_data and _pass_over(
                column, data, page, wanted, values, starts, state, num_levels
            ):
                num_levels += count
                continue
            is_whole, levels, body, scratch = _find_body(column, data, page, scratch)
            if not is_whole:
                return -1, scratch
            if not is_data:
                if has_dictionary or column.size == 0 or count * column.size > len(body):
                    return -1, scratch
                dictionary, has_dictionary = np.empty(count * width, dtype=np.uint8), True
                if read_values(body, 0, True, column.size, width, values[:0], dictionary) < 0:
                    return -1, scratch
                continue
            for _ in range(2):  # the second time with room for marks, if they are needed
                told = _read_data(
                    column,
                    page,
                    levels,
                    body,
                    dictionary,
                    values,
                    starts,
                    lists,
                    items,
                    wanted,
                    state,
                    num_levels,
                )
                if told != _NO_ROOM:
                    break
                lists = np.ones((num_rows + 1) * is_list, dtype=np.uint8)
                items = np.ones(room, dtype=np.uint8)
            if told != 0:
                return -1, scratch
            num_levels += count
    return int(_finish(column, num_levels, starts, lists, items, state)), scratch


def make_decode(stamp: int) -> Callable[[Any, Any], int]:
    """Return the kernel, which returns `stamp`.

    Args:
        stamp: identifies the sources of all that the kernel calls. Numba's cache knows a kernel by
            its own file and by the values in its closure.
    """

    def decode(table: Any, scratch: Any) -> int:
        """Decode the chunks of a table of `chunks.COLUMN`, and write its last fields.

        `scratch` is for the body of a page; if it is too small, this call allocates more.
        """
        room = scratch
        for index in range(len(table)):
            column = table[index]
            column.told, room = _decode(column, room)
            column.scratch_bytes = len(room)
        return stamp

    return decode
