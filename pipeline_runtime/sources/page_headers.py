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

    @property
    def sizes(self) -> tuple[int, ...]:
        """All that is counted; none is below zero in a page that is whole."""
        return self.stop - self.start, self.num_bytes, self.num_values, *self.level_bytes


def read_pages(chunk: bytes | memoryview) -> Iterator[Page]:
    """The pages of a column chunk. Raises PageError."""
    at = 0
    while at < len(chunk):
        try:
            fields, start = _read_struct(chunk, at)
            page = _page(fields, start)
            is_whole = page.stop <= len(chunk) and min(page.sizes) >= 0
        except (IndexError, KeyError, TypeError) as error:
            raise PageError(f"no page header at byte {at} of the chunk: {error!r}") from error
        if not is_whole:
            raise PageError(f"a page of sizes {page.sizes} at byte {start} of {len(chunk)}")
        yield page
        at = page.stop


def _page(fields: _Fields, start: int) -> Page:
    kind = fields[1]
    if kind not in _BODIES:
        raise PageError(f"a page of type {kind}")
    of = fields[_BODIES[kind]]
    is_second = kind == DATA_PAGE_V2
    return Page(
        kind=kind,
        start=start,
        stop=start + fields[3],
        num_bytes=fields[2],
        num_values=of[1],
        encoding=of[4] if is_second else of[2],
        level_encodings=(of[3], of[4]) if kind == DATA_PAGE else (0, 0),
        level_bytes=(of[6], of[5]) if is_second else (0, 0),
        is_compressed=of.get(7, True) if is_second else True,
    )


# The field of PageHeader that describes a page of this type.
_BODIES = {DATA_PAGE: 5, DICTIONARY_PAGE: 7, DATA_PAGE_V2: 8}


def _read_struct(data: Any, at: int) -> tuple[_Fields, int]:
    """The fields of a struct by their number, and where it ends; only numbers are kept."""
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
            fields[number], at = _read_struct(data, at)
        elif kind in (_TRUE, _FALSE):
            fields[number] = kind == _TRUE
        else:
            at = _skip(data, at, kind)


def _skip(data: Any, at: int, kind: int) -> int:
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
        return _read_struct(data, at)[1]
    if kind in _LISTS:
        return _skip_list(data, at)
    raise PageError(f"a Thrift value of type {kind}")


def _skip_list(data: Any, at: int) -> int:
    head = data[at]
    at += 1
    size, kind = head >> 4, head & 15
    if size == 15:
        size, at = _read_varint(data, at)
    for _ in range(size):
        at = at + 1 if kind in (_TRUE, _FALSE) else _skip(data, at, kind)
    return at


def _read_varint(data: Any, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _read_integer(data: Any, at: int) -> tuple[int, int]:
    """Zigzag: the lowest bit is the sign."""
    value, at = _read_varint(data, at)
    return (value >> 1) ^ -(value & 1), at
