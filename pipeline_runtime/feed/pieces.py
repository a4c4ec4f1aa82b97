"""Pieces: what readers hand to trainers, and how a piece travels as one row of a Ray block.

A piece is a table of ready rows with a header: which group and place of the epoch it is, and what
every step took in and gave out. On the wire it is one Arrow IPC stream in one large_binary value,
so that Ray never slices, concatenates or copies columns, and a group without surviving rows still
arrives.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

_WIRE_SCHEMA = pa.schema([("header", pa.string()), ("payload", pa.large_binary())])


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCount:
    """Rows and Arrow bytes that one step gave out, and the seconds of one core that it took."""

    rows: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Which piece this is, and how it was made; `counts[0]` is the read, then one a step."""

    epoch: int
    group: int
    piece: int
    is_last: bool  # of its group
    num_rows: int
    counts: tuple[StepCount, ...]
    gap_seconds: float = 0.0  # that its reader had nothing to make before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows of one group, in their final order."""

    header: Header
    table: pa.Table


def pack(piece: Piece) -> pa.Table:
    """A piece as a block of one row."""
    size = pa.MockOutputStream()  # counts: a buffer that grows is copied each time it does
    _write(piece.table, size)
    payload = pa.allocate_buffer(size.size())
    _write(piece.table, pa.FixedSizeBufferWriter(payload))
    offsets = pa.py_buffer(np.array([0, payload.size], dtype=np.int64))
    values = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 1, [None, offsets, payload])
    header = pa.array([json.dumps(asdict(piece.header))], type=pa.string())
    return pa.Table.from_arrays([header, values], schema=_WIRE_SCHEMA)


def _write(table: pa.Table, sink: pa.NativeFile) -> None:
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def unpack(block: pa.Table) -> list[Piece]:
    """The pieces of a block; their tables are views into the block's memory."""
    headers = block.column("header").to_pylist()
    payloads = [p for chunk in block.column("payload").chunks for p in _payloads(chunk)]
    return [
        Piece(header=_parse_header(header), table=pa.ipc.open_stream(payload).read_all())
        for header, payload in zip(headers, payloads, strict=True)
    ]


def _payloads(chunk: pa.LargeBinaryArray) -> list[pa.Buffer]:
    """The values as views; a scalar of the array would hold a copy of its own."""
    _, offsets, data = chunk.buffers()
    cuts = np.frombuffer(offsets, dtype=np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
    return [data.slice(start, end - start) for start, end in pairwise(cuts.tolist())]


def _parse_header(text: str) -> Header:
    fields = json.loads(text)
    counts = tuple(StepCount(**count) for count in fields.pop("counts"))
    return Header(**fields, counts=counts)


def add_counts(left: Sequence[StepCount], right: Sequence[StepCount]) -> tuple[StepCount, ...]:
    """Counts added step by step; an empty side counts as zeros."""
    if not left or not right:
        return tuple(left or right)
    return tuple(
        StepCount(
            rows=a.rows + b.rows, num_bytes=a.num_bytes + b.num_bytes, seconds=a.seconds + b.seconds
        )
        for a, b in zip(left, right, strict=True)
    )
