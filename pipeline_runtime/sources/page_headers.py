"""Headers of Parquet pages: Thrift's compact protocol, as far as Parquet uses it.

A column chunk is a run of pages, each after its header (parquet.thrift, `PageHeader`). pyarrow
reads them but does not show them; `list_chunks` takes pages apart and asks here where they lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3  # PageType of parquet.thrift
# Types of Thrift's compact protocol.
_TRUE, _FALSE, _BYTE, _INTEGERS, _DOUBLE, _BINARY = 1, 2, 3, (4, 5, 6), 7, 8
_LISTS, _STRUCT = (9, 10), 12

_MAX_VARINT_BYTES = 10  # of 64 bits
_MAX_DEPTH = 8  # a header's statistics are nested three deep
_MAX_INT32 = 2**31 - 1

_Fields = dict[int, Any]


class PageError(ValueError):
    """Bytes that are no page header, or of a kind that is not known here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Where a page's body lies in its chunk, and what its header says of it."""

    kind: int
    start: int
    stop: int
    num_bytes: int  # uncompressed; of version 2 with its levels
    num_values: int  # levels of a data page, values of a dictionary
    encoding: int
    level_encodings: tuple[int, int]  # definition, repetition; of version 1
    level_bytes: tuple[int, int]  # repetition, definition; of version 2
    is_compressed: bool


def read_pages(chunk: bytes | memoryview) -> Iterator[Page]:
    """The pages of a column chunk. Raises PageError."""
    at = 0
    while at < len(chunk):
        try:
            fields, start = _read_struct(chunk, at)
            page = _page(fields, start)
        except (IndexError, KeyError, TypeError, AttributeError) as error:
            raise PageError(f"no page header at byte {at} of the chunk: {error!r}") from error
        if page.stop > len(chunk):
            raise PageError(f"a page up to byte {page.stop} of {len(chunk)}")
        yield page
        at = page.stop


def _page(fields: _Fields, start: int) -> Page:
    kind = _number(fields, 1)
    if kind not in _BODIES:
        raise PageError(f"a page of type {kind}")
    of = fields[_BODIES[kind]]
    is_second = kind == DATA_PAGE_V2
    is_first = kind == DATA_PAGE
    return Page(
        kind=kind,
        start=start,
        stop=start + _number(fields, 3),
        num_bytes=_number(fields, 2),
        num_values=_number(of, 1),
        encoding=_number(of, 4 if is_second else 2),
        level_encodings=(_number(of, 3), _number(of, 4)) if is_first else (0, 0),
        level_bytes=(_number(of, 6), _number(of, 5)) if is_second else (0, 0),
        is_compressed=of.get(7, True) is True if is_second else True,
    )


def _number(fields: _Fields, number: int) -> int:
    value = fields[number]
    if type(value) is not int or not 0 <= value <= _MAX_INT32:
        raise PageError(f"a page header with {value!r} as field {number}")
    return value


# The field of PageHeader that describes a page of this type.
_BODIES = {DATA_PAGE: 5, DICTIONARY_PAGE: 7, DATA_PAGE_V2: 8}


def _read_struct(data: Any, at: int, depth: int = 0) -> tuple[_Fields, int]:
    """The fields of a struct by their number, and where it ends; only numbers are kept."""
    if depth > _MAX_DEPTH:
        raise PageError(f"a page header nested deeper than {_MAX_DEPTH}")
    fields: _Fields = {}
    number = 0
    while True:
        head = data[at]
        at += 1
        if head == 0:
            return fields, at
        kind = head & 15
        if head >> 4:
            number += head >> 4
        else:
            number, at = _read_integer(data, at)
        if kind in _INTEGERS:
            fields[number], at = _read_integer(data, at)
        elif kind == _STRUCT:
            fields[number], at = _read_struct(data, at, depth + 1)
        elif kind in (_TRUE, _FALSE):
            fields[number] = kind == _TRUE
        else:
            at = _skip(data, at, kind, depth)


def _skip(data: Any, at: int, kind: int, depth: int) -> int:
    """Where a value ends that nobody asks for."""
    if kind == _BYTE:
        return at + 1
    if kind == _DOUBLE:
        return at + 8
    if kind == _BINARY:
        size, at = _read_varint(data, at)
        return at + size
    if kind in _INTEGERS:
        return _read_varint(data, at)[1]
    if kind == _STRUCT:
        return _read_struct(data, at, depth + 1)[1]
    if kind in _LISTS:
        return _skip_list(data, at, depth + 1)
    raise PageError(f"a Thrift value of type {kind}")


def _skip_list(data: Any, at: int, depth: int) -> int:
    if depth > _MAX_DEPTH:
        raise PageError(f"a page header nested deeper than {_MAX_DEPTH}")
    head = data[at]
    at += 1
    size, kind = head >> 4, head & 15
    if size == 15:
        size, at = _read_varint(data, at)
    if size > len(data) - at:  # each item takes a byte at least
        raise PageError(f"a page header with a list of {size} items")
    for _ in range(size):
        at = at + 1 if kind in (_TRUE, _FALSE) else _skip(data, at, kind, depth)
    return at


def _read_varint(data: Any, at: int) -> tuple[int, int]:
    value = 0
    for place in range(_MAX_VARINT_BYTES):
        byte = data[at + place]
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value, at + place + 1
    raise PageError(f"no number at byte {at} of the chunk")


def _read_integer(data: Any, at: int) -> tuple[int, int]:
    """Zigzag: the lowest bit is the sign."""
    value, at = _read_varint(data, at)
    return (value >> 1) ^ -(value & 1), at
