"""The bytes of a state: a version, a JSON document, and arrays, compressed together.

Bytes come from a store. So nothing is believed before it is checked: sizes are bounded before
memory is allocated, types are from a list, and each value checks its own fields.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline_runtime.measuring.values import (
    AnyArray,
    DamagedState,
    State,
    state_from_parts,
    state_to_parts,
)

_MAGIC = b"LMME"
_VERSION = 1
# Magic, version, bytes of all that follows before compression, bytes of the document.
_HEAD = struct.Struct("<4sIQQ")
_CODEC = "zstd"
# A chunk has at most some 131,072 rows, of which a state may keep 24 bytes each for a few metrics.
MAX_BYTES = 1 << 30
_TYPES = ("u1", "u2", "u4", "u8", "i8", "f8")


def to_bytes(states: Sequence[State]) -> bytes:
    """Return the states of several metrics as bytes."""
    documents, arrays = [], []
    for state in states:
        document, own = state_to_parts(state)
        documents.append(document)
        arrays += [_shrink(array) for array in own]
    kinds = [[array.dtype.str[1:], array.size] for array in arrays]
    head = json.dumps([documents, kinds], separators=(",", ":")).encode()
    body = b"".join([head, *(array.tobytes() for array in arrays)])
    packed: bytes = pa.compress(body, codec=_CODEC, asbytes=True)
    return _HEAD.pack(_MAGIC, _VERSION, len(body), len(head)) + packed


def from_bytes(content: bytes, likes: Sequence[State]) -> list[State]:
    """Return the states in bytes.

    Args:
        likes: a state of no row of each metric.

    Raises DamagedState if the bytes are not what `to_bytes` returned for these metrics.
    """
    body, size = _unpack(content)
    try:
        head = json.loads(body[:size])
    except (ValueError, RecursionError) as error:
        raise DamagedState("its document is no JSON") from error
    match head:
        case [list(documents), list(kinds)] if len(documents) == len(likes):
            arrays = iter(_cut(memoryview(body)[size:], kinds))
        case _:
            raise DamagedState(f"it must have {len(likes)} metrics")
    pairs = zip(documents, likes, strict=True)
    states: list[State] = [state_from_parts(each, arrays, like) for each, like in pairs]
    if next(arrays, None) is not None:
        raise DamagedState("it has more arrays than its values need")
    return states


def _unpack(content: bytes) -> tuple[bytes, int]:
    """Return the body, and the bytes of its document."""
    if len(content) < _HEAD.size:
        raise DamagedState("it is cut off")
    magic, version, num_bytes, size = _HEAD.unpack_from(content)
    if magic != _MAGIC:
        raise DamagedState("it begins with other bytes")
    if version != _VERSION:
        raise DamagedState(f"its version is {version}, and this Lastmile reads {_VERSION}")
    if num_bytes > MAX_BYTES or size > num_bytes:
        raise DamagedState(f"it has {num_bytes:,} bytes, and may have {MAX_BYTES:,}")
    try:
        packed = pa.py_buffer(content[_HEAD.size :])
        body: bytes = pa.decompress(packed, num_bytes, codec=_CODEC, asbytes=True)
    except (OSError, ValueError) as error:
        raise DamagedState("it cannot be decompressed") from error
    return body, size


def _shrink(array: AnyArray) -> AnyArray:
    """Return an array in little-endian order; integers from 0 on in the smallest type for them."""
    if array.dtype.kind in "iu" and array.size and array.min() >= 0:
        largest = int(array.max())
        width = next(size for size in (1, 2, 4, 8) if largest < 1 << 8 * size)
        return np.ascontiguousarray(array, dtype=f"<u{width}")
    return np.ascontiguousarray(array, dtype=f"<{array.dtype.kind}{array.dtype.itemsize}")


def _cut(content: memoryview, kinds: Sequence[Any]) -> list[AnyArray]:
    """Cut bytes into arrays, each of a type and a length. Raises DamagedState."""
    arrays, start = [], 0
    for kind in kinds:
        match kind:
            case [str(name), int(size)] if name in _TYPES and 0 <= size <= MAX_BYTES:
                stop = start + size * int(name[1:])
            case _:
                raise DamagedState("an array has no known type and length")
        if stop > len(content):
            raise DamagedState("an array is cut off")
        arrays.append(np.frombuffer(content[start:stop], dtype=f"<{name}"))
        start = stop
    if start != len(content):
        raise DamagedState("it has more bytes than its arrays")
    return arrays
