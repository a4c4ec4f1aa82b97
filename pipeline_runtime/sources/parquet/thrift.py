"""Thrift's compact protocol in plain Python, as far as a Parquet footer uses it.

pyarrow parses footers, but does not expose every field, and aborts the process on some that it
exposes. `footers` uses this module to check a footer first. The bytes are untrusted: an invalid
struct, or one that extends past the end, is a ThriftError.
"""

from __future__ import annotations

from typing import Final

# Types of the compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I64, _DOUBLE, _BINARY = 1, 2, 3, 4, 6, 7, 8
_LIST, _SET, _STRUCT = 9, 10, 12
_MAX_DEPTH: Final = 16  # a valid footer nests structs and lists seven deep
_MAX_VARINT_BYTES = 10  # for 64 bits

# Values by the numbers of their fields.
Struct = dict[int, object]


class ThriftError(ValueError):
    """The bytes are not a valid struct."""


def read_struct(data: bytes, at: int, *, last: int = 0, depth: int = 0) -> tuple[Struct, int]:
    """Return the fields of a struct, and the position after it.

    Args:
        data: the footer's bytes.
        at: position of the first field to read.
        last: number of the field before it; 0 at the beginning of the struct.
        depth: number of structs and lists that enclose the struct.
    """
    try:
        return _read_struct(data, at, last, depth)
    except IndexError as error:
        raise ThriftError("the bytes end within a struct") from error


def _read_struct(data: bytes, at: int, last: int, depth: int) -> tuple[Struct, int]:
    fields: Struct = {}
    while True:
        head = data[at]
        at += 1
        if head == 0:
            return fields, at
        if head >> 4:
            last += head >> 4
        else:
            last, at = read_integer(data, at)
        kind = head & 15
        if kind in (_TRUE, _FALSE):
            fields[last] = kind == _TRUE
        else:
            fields[last], at = _read_value(data, at, kind, depth + 1)


def read_integer(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag-encoded number, whose lowest bit is the sign, and the position after it.

    Raises IndexError if the bytes end before it does.
    """
    value, at = _read_varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def write_integer(value: int) -> bytes:
    """Return the bytes of a zigzag-encoded number."""
    rest = (value << 1) ^ (value >> 63)
    written = bytearray()
    while rest > 127:
        written.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*written, rest])


def _read_value(data: bytes, at: int, kind: int, depth: int) -> tuple[object, int]:
    if depth > _MAX_DEPTH:
        raise ThriftError(f"more than {_MAX_DEPTH} nested structs and lists")
    if _I16 <= kind <= _I64:
        return read_integer(data, at)
    if kind == _BINARY:
        size, at = _read_varint(data, at)
        return _take(data, at, size), at + size
    if kind == _STRUCT:
        return _read_struct(data, at, 0, depth)
    if kind in (_LIST, _SET):
        return _read_list(data, at, depth)
    if kind in (_TRUE, _FALSE, _BYTE):  # in a list, a boolean takes a byte
        return data[at], at + 1
    if kind == _DOUBLE:
        return _take(data, at, 8), at + 8
    raise ThriftError(f"a field of the unknown type {kind}")


def _read_list(data: bytes, at: int, depth: int) -> tuple[list[object], int]:
    head = data[at]
    count, at = head >> 4, at + 1
    if count == 15:
        count, at = _read_varint(data, at)
    items = []
    for _ in range(count):  # an item takes at least a byte, so the data bounds it
        item, at = _read_value(data, at, head & 15, depth + 1)
        items.append(item)
    return items, at


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = data[at]
    if value < 128:  # most are
        return value, at + 1
    value = 0
    for place in range(_MAX_VARINT_BYTES):
        byte = data[at + place]
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value, at + place + 1
    raise ThriftError("a number without an end")


def _take(data: bytes, at: int, size: int) -> bytes:
    if size > len(data) - at:
        raise ThriftError("the bytes end within a value")
    return data[at : at + size]
