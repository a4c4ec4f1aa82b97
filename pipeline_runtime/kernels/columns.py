"""Whole column chunks from their bytes in a file to Arrow's buffers, in one call.

`sources.columns` fills a table with where the chunks of a row group lie and where their values are
to go, and calls `decode`. For each chunk it goes from page to page: the header, the body out of its
codec, levels, values. So Python and its lock are needed once a row group, not for every page.

    page_headers     the next page
    decompression    its body, in memory that the next page's body takes again
    parquet, folding its lists; a page of plain numbers is a page of lists without repetition

Where not all rows are wanted, a page without one that is stays as it lies: its rows are zero, or
lists without items. How many lists a page has is said by its levels alone, of which those in pages
of version 1 have to leave their codec first.

Nothing that a file says is trusted: what is not as it should be is told of its column, which is
left to others, and nothing is written outside of what the table says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from pipeline_runtime.kernels.chunks import UNCOMPRESSED
from pipeline_runtime.kernels.decompression import decompress
from pipeline_runtime.kernels.folding import fold
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
    read_levels,
    read_page,
    read_values,
    spread_values,
    unpack,
)

_PLAIN, _PLAIN_DICTIONARY, _RLE, _RLE_DICTIONARY = 0, 2, 3, 8  # encodings of parquet.thrift
_NO_ROOM = 2  # say `read_levels` and `read_page`
# Byte i of a word times the first has its lowest bit at 56 + i, and the second adds all up there.
_SIDE_BY_SIDE, _ADDED_UP = np.uint64(0x0102040810204080), np.uint64(0x0101010101010101)
_HIGHEST = np.uint64(56)
_LENGTH_BYTES = 4  # of the number of a level's bytes


@numba.njit
def _pack(marks: Any, address: int) -> int:
    """Write marks, zeros and ones, as bits; how many are not set."""
    count = len(marks)
    bits = bytes_at(address, (count + 7) >> 3)
    num_words = count >> 3
    num_null: Any = 0
    for place in range(num_words):  # of eight bytes the lowest bits, side by side and added up
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
    """Bytes of repetition and definition levels; -1 where the page's body says it."""
    if page[KIND] == DATA_PAGE:
        return -1, -1
    return page[REPETITION_BYTES], page[DEFINITION_BYTES]


@numba.njit
def _read_numbers(
    column: Any, page: Any, levels: Any, body: Any, dictionary: Any, out: Any, valid: Any
) -> int:
    """A page of numbers; 0, `_NO_ROOM` if some are null and `valid` has no room, or -1.

    Args:
        levels, body: as `read_page` has them, without levels of repetition.
        out: written: bytes of as many as the page has, zero where one is null.
        valid: written, if it has room: which are there.
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
def _fold_page(
    column: Any,
    page: Any,
    levels: Any,
    body: Any,
    dictionary: Any,
    values: Any,
    starts: Any,
    lists: Any,
    codes: Any,
    state: Any,
) -> int:
    """A page's lists without those that repeat, see `fold`; 0, or -1, also for null items."""
    count, empty, present = page[NUM_VALUES], column.empty_level, column.max_level
    repetition, definition = _level_bytes(page)
    valid_lists, valid_items = np.empty(count, dtype=np.uint8), np.empty(count, dtype=np.uint8)
    own = np.empty(min(count, len(codes) - state[0]) + 1, dtype=np.int64)
    told, num_lists, num_items, end = read_levels(
        levels, repetition, definition, count, empty, present, 0, own[:-1], valid_lists, valid_items
    )
    if told != 0 and told != 1:
        return -1
    for index in range(num_items * told):
        if not valid_items[index]:
            return -1
    own[num_lists] = num_items
    start, width, is_plain = end if repetition < 0 else 0, column.width, page[ENCODING] == _PLAIN
    if is_plain and column.size == width:
        if start + num_items * width > len(body):
            return -1
        items = body[start : start + num_items * width]
    else:
        items = np.empty(num_items * width, dtype=np.uint8)
        if read_values(body, start, is_plain, column.size, width, dictionary, items) < 0:
            return -1
    own, valid_lists = own[: num_lists + 1], valid_lists[: num_lists * told]  # without any: all
    return int(fold(items, width, own, valid_lists, values, starts, lists, codes, state))


@numba.njit
def _is_known(page: Any, is_list: int, max_level: int) -> bool:
    """Whether its encodings are among those that are read here."""
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
    """A page's levels and its body without its codec, or that there are none such.

    Levels of version 1 are part of the body. The last is `scratch`, or what is in its place if it
    was too small; the body may lie in it.
    """
    level_bytes = page[REPETITION_BYTES] + page[DEFINITION_BYTES]
    start, num_bytes = page[START] + level_bytes, page[NUM_BYTES] - level_bytes
    if start > page[STOP] or num_bytes < 0 or (not column.is_list and page[REPETITION_BYTES] != 0):
        return False, data, data, scratch
    levels, body = data[page[START] : start], data[start : page[STOP]]
    if num_bytes == 0 and len(body) == 0 and page[KIND] == DATA_PAGE_V2:
        return True, levels, body, scratch  # nulls alone: there is nothing to decompress
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
    """Leave a page as it lies if none of its rows is wanted, and that is told without its codec.

    A list may go on at its beginning, so the row before it must not be wanted either. The rows that
    a header of version 2 tells are not asked: some writers put something else there.
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
    """Say what there is, and write which of it is valid; 0, or -1 if there should be more."""
    num_rows = num_lists = num_items = num_levels
    if column.folds:
        num_rows, num_lists, num_items = state[0], state[1], state[2]
    elif column.is_list:
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
    codes: Any,
    wanted: Any,
    state: Any,
    num_levels: int,
) -> int:
    """A data page, behind those before it; 0, `_NO_ROOM` if marks are needed, or -1."""
    count, is_plain, width = page[NUM_VALUES], page[ENCODING] == _PLAIN, column.width
    if column.folds:
        return int(
            _fold_page(column, page, levels, body, dictionary, values, starts, lists, codes, state)
        )
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
    """One chunk; 0 or -1, and memory for pages' bodies, in place of what was too small."""
    num_rows, is_list, width = column.num_rows, column.is_list, column.width
    room = column.num_values if is_list else num_rows
    values = bytes_at(column.values, room * width)
    starts = bytes_at(column.starts, 8 * (num_rows + 1) * is_list).view(np.int64)
    codes = bytes_at(column.codes, 4 * num_rows * column.folds).view(np.int32)
    wanted = bytes_at(column.wanted, num_rows if column.wanted else 0)
    lists, items, dictionary = scratch[:0], scratch[:0], values[:0]
    if column.folds:
        lists = np.empty(num_rows, dtype=np.uint8)
    found = np.empty((4, NUM_FIELDS), dtype=np.int64)
    page = np.empty(NUM_PAGE_FIELDS, dtype=np.int64)
    state = np.zeros(3, dtype=np.int64)
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
            for _ in range(2):  # again with room for marks, if these are needed
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
                    codes,
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
    """The kernel, which returns `stamp`.

    Args:
        stamp: of the sources of all that it calls: numba's cache knows a kernel by its own file,
            and by what a closure holds.
    """

    def decode(table: Any, scratch: Any) -> int:
        """Decode the chunks of a table of `chunks.COLUMN`, of which the last fields are written.

        `scratch` is for the body of a page; where it is too small, more is taken for this call.
        """
        room = scratch
        for index in range(len(table)):
            column = table[index]
            column.told, room = _decode(column, room)
            column.scratch_bytes = len(room)
        return stamp

    return decode
