"""Reads headers of Parquet pages: Thrift's compact protocol, as far as Parquet uses it.

A column chunk is a sequence of pages, each behind its header (parquet.thrift, `PageHeader`).
pyarrow reads the headers but does not expose them. `whole_chunks` reads them one after another;
`sources.parquet.decoding.chunk_pages` reads all headers of a chunk, to split it. The bytes are
untrusted: an unknown page header is rejected, and one that extends past the end of the chunk.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

# PageType of parquet.thrift, and the fields of PageHeader that describe such a page.
DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3
_DATA_FIELD, _DICTIONARY_FIELD, _DATA_V2_FIELD = 5, 7, 8
_IS_COMPRESSED = 7  # the field of DataPageHeaderV2 that is true or false
# Types of Thrift's compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 12

_MAX_VARINT_BYTES = 10  # of 64 bits
_MAX_DEPTH = 8  # a header's statistics are nested three deep
_MAX_INT16, _MAX_INT32 = 2**15 - 1, 2**31 - 1
# Fields of a page that `read_page_header` writes, by their place in the row.
KIND, START, STOP, NUM_BYTES, NUM_VALUES, ENCODING = range(6)
DEFINITION_ENCODING, REPETITION_ENCODING = 6, 7  # of version 1
REPETITION_BYTES, DEFINITION_BYTES, IS_COMPRESSED = 8, 9, 10  # of version 2
NUM_PAGE_FIELDS = 11
NUM_FIELDS = 9  # fields of a struct that are kept, at their numbers


@numba.njit
def _read_varint(data: Any, at: int) -> tuple[Any, int]:
    """Return a number of up to 64 bits and the position behind it; -1 if it does not end."""
    value: Any = np.uint64(0)
    for place in range(min(_MAX_VARINT_BYTES, len(data) - at)):
        byte = np.uint64(data[at + place])
        value |= (byte & np.uint64(127)) << np.uint64(7 * place)
        if byte < np.uint64(128):
            return value, at + place + 1
    return value, -1


@numba.njit
def _read_integer(data: Any, at: int) -> tuple[Any, int]:
    """Read an integer in zigzag form, where the lowest bit is the sign."""
    value, end = _read_varint(data, at)
    return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), end


@numba.njit
def _skip(data: Any, at: int, kind: int) -> int:
    """Return the position behind a value that is no integer or struct; -1 for an unknown type."""
    if kind in (_TRUE, _FALSE):
        return at
    if kind == _BYTE:
        return at + 1
    if kind == _DOUBLE:
        return at + 8
    if kind == _BINARY:
        size, end = _read_varint(data, at)
        if end >= 0 and size <= np.uint64(len(data) - end):
            return int(end + np.int64(size))
    return -1


@numba.njit
def _read_fields(data: Any, at: int, found: Any) -> int:
    """Read the numbers of a header. Return the position behind it, or -1.

    Args:
        found: written: row 0 gets the header's own fields, at their numbers. Rows 1, 2 and 3 get
            those of the description of a data page, of a dictionary, and of a data page of version
            2. Absent fields are -1.
    """
    found[:] = -1
    last = np.zeros(_MAX_DEPTH, dtype=np.int64)  # the number of the previous field, by depth
    depth, body = 0, -1
    while 0 <= at < len(data):
        head = np.int64(data[at])
        at += 1
        if head == 0:  # the end of a struct
            if depth == 0:
                return at
            depth -= 1
            continue
        kind, before = head & 15, last[depth]
        if head >> 4:
            last[depth] += head >> 4
        else:
            last[depth], at = _read_integer(data, at)
        number = last[depth]
        if at < 0 or not before < number <= _MAX_INT16:  # a field is repeated or out of order
            return -1
        if kind == _STRUCT:
            depth += 1
            if depth == _MAX_DEPTH:
                return -1
            last[depth] = 0
            if depth == 1:
                body = -1
                if number == _DATA_FIELD:
                    body = 1
                elif number == _DICTIONARY_FIELD:
                    body = 2
                elif number == _DATA_V2_FIELD:
                    body = 3
            continue
        row = -1
        if depth == 0:
            row = 0
        elif depth == 1:
            row = body
        value: Any = np.int64(-1)
        if _I16 <= kind <= _I64:
            value, at = _read_integer(data, at)
            if kind != _I32:  # all fields that are kept have 32 bits
                value = np.int64(-1)
        else:
            at = _skip(data, at, kind)
            if row == 3 and number == _IS_COMPRESSED and kind in (_TRUE, _FALSE):
                value = np.int64(kind == _TRUE)
        if row >= 0 and 0 <= number < NUM_FIELDS:
            found[row, number] = value
    return -1


@numba.njit
def read_page_header(data: Any, at: int, found: Any, page: Any) -> int:
    """Read a page's header. Return the position behind the page's body; -1 if there is no header.

    Args:
        data: the chunk's bytes, of which the header begins at `at`.
        found: room for four times `NUM_FIELDS` numbers.
        page: written: as `read_headers` writes a row.
    """
    start = _read_fields(data, at, found)
    kind = found[0, 1]
    row = 0
    if kind == DATA_PAGE:
        row = 1
    elif kind == DICTIONARY_PAGE:
        row = 2
    elif kind == DATA_PAGE_V2:
        row = 3
    if start < 0 or row == 0 or not 0 <= found[0, 3] <= _MAX_INT32:
        return -1
    stop = start + found[0, 3]
    if stop > len(data):
        return -1
    page[:] = 0
    page[KIND], page[START], page[STOP] = kind, start, stop
    page[NUM_BYTES], page[NUM_VALUES], page[IS_COMPRESSED] = found[0, 2], found[row, 1], 1
    if row == 3:
        if not (0 <= found[3, 2] <= _MAX_INT32 and 0 <= found[3, 3] <= _MAX_INT32):
            return -1  # the number of nulls or of rows is missing
        page[ENCODING] = found[3, 4]
        page[REPETITION_BYTES], page[DEFINITION_BYTES] = found[3, 6], found[3, 5]
        page[IS_COMPRESSED] = np.int64(found[3, _IS_COMPRESSED] != 0)
    else:
        page[ENCODING] = found[row, 2]
    if row == 1:
        page[DEFINITION_ENCODING], page[REPETITION_ENCODING] = found[1, 3], found[1, 4]
    for index in range(NUM_BYTES, IS_COMPRESSED):
        if not 0 <= page[index] <= _MAX_INT32:
            return -1
    return int(stop)


def read_headers(data: Any, out: Any) -> int:
    """Read all page headers of a column chunk.

    Args:
        data: the chunk's bytes.
        out: written, one row per page: its type, the start and stop of its body in `data`, its
            uncompressed bytes, its number of values (levels, in a data page), its encoding, the
            encodings of definition and repetition levels (version 1), the bytes of repetition and
            definition levels (version 2), and whether the values are compressed.

    Returns:
        the number of pages; -1 if bytes are not a header; -2 if `out` has too few rows.
    """
    found = np.empty((4, NUM_FIELDS), dtype=np.int64)
    at, num_pages = np.int64(0), 0
    while at < len(data):
        if num_pages == len(out):
            return -2
        at = read_page_header(data, at, found, out[num_pages])
        if at < 0:
            return -1
        num_pages += 1
    return num_pages
