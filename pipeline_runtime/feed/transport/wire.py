"""The wire format of chunks: a `Block`, which has the headers and the bytes of several chunks.

A block is a table with one row per chunk, whose bytes are one large_binary value: an Arrow IPC
stream of a table, or the parts of `Batches`, which are the hashes, the marks of the rows that count
and the buffer of every batch (`arrays.packing`). So Ray never slices, concatenates or copies
columns, a group without remaining rows still arrives, and unpacked chunks are views of the block's
memory. For a rank on the reader's machine the same bytes are in shared memory (`segments`). Its
block is a `SharedBlock`: the headers, and the place of the bytes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from pipeline_runtime.arrays.conversion import Array
from pipeline_runtime.arrays.packing import Bytes, PackedBatch, Packer, Parts, Slot
from pipeline_runtime.feed.chunk import Batches, Chunk, Header, StepCount
from pipeline_runtime.feed.transport.segments import Segment, Segments
from pipeline_runtime.plan.model import Plan

_SCHEMA = pa.schema([("header", pa.string()), ("payload", pa.large_binary())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """The format of packed batches; the rows do not depend on it."""

    sparse: bool = False  # pipelineOptions.debug.sparse
    codec: str | None = None  # by Arrow's name


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """Options of the calls for chunks, and of sending their batches."""

    sparse: bool = False  # pipelineOptions.debug.sparse
    compression: str = "None"  # pipelineOptions.compression
    batched_calls: bool = True  # pipelineOptions.debug.batchedCalls
    shared_memory: bool = True  # pipelineOptions.debug.sharedMemory
    to_gpus: bool = False  # trainers copy batches to a GPU as they are packed
    reads_ahead: bool = False  # pipelineOptions.debug.readAhead, from a store

    @classmethod
    def of(cls, plan: Plan, *, to_gpus: bool = False) -> Sending:
        """Return what a plan chose.

        Args:
            to_gpus: trainers copy batches to a GPU as they are packed.
        """
        delivery = plan.delivery
        return cls(
            sparse=delivery.sparse,
            compression=delivery.compression,
            batched_calls=delivery.batched_calls,
            shared_memory=delivery.shared_memory,
            to_gpus=to_gpus,
            reads_ahead=plan.main.reads_ahead,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBlock:
    """Chunks whose bytes are in shared memory."""

    headers: Sequence[str]
    starts: Sequence[int]  # of each chunk in the segment
    segment: Segment


# Chunks as they are sent: all their bytes, or where these are in shared memory.
Block: TypeAlias = pa.Table | SharedBlock


def pack(chunk: Chunk, wire: Wire | None = None) -> pa.Table:
    """Pack a chunk as a block of one row."""
    return pack_all([chunk], wire)


def pack_all(chunks: Sequence[Chunk], wire: Wire | None = None) -> pa.Table:
    """Pack at least one chunk as a block of a row each; all their bytes are one buffer."""
    headers, starts, parts = _lay_out(chunks, wire or Wire())
    payload = pa.allocate_buffer(parts.num_bytes)
    parts.write(np.frombuffer(payload, dtype=np.uint8))
    return as_block(headers, starts, payload)


def share(
    chunks: Sequence[Chunk], segments: Segments, rank: int, *, sparse: bool = False
) -> SharedBlock:
    """Write chunks to memory that the process of a rank shares.

    Args:
        sparse: leave out the padding, which a GPU adds itself; a rank without one would copy once
            more for it.

    Raises OSError if no memory can be shared.
    """
    headers, starts, parts = _lay_out(chunks, Wire(sparse=sparse))
    segment, memory = segments.take(parts.num_bytes, rank)
    parts.write(memory)
    return SharedBlock(headers=headers, starts=starts, segment=segment)


def _lay_out(chunks: Sequence[Chunk], wire: Wire) -> tuple[list[str], list[int], Parts]:
    """Return the headers of chunks, the start of each in one buffer, and the buffer's parts."""
    parts = Parts()
    headers, starts = [], []
    for chunk in chunks:
        fields = asdict(chunk.header)
        observed = fields.pop("observed")
        if observed:
            fields["observed"] = [base64.b64encode(each).decode() for each in observed]
        if isinstance(chunk.rows, Batches):
            fields["batches"], own = _lay_out_batches(chunk.rows, wire)
            starts.append(parts.add(own.num_bytes, own.write))
        else:
            fields["result"] = chunk.result
            starts.append(_add_table(parts, chunk.rows))
        headers.append(json.dumps(fields))
    return headers, starts, parts


def as_block(headers: Sequence[str], starts: Sequence[int], payload: pa.Buffer) -> pa.Table:
    """Return a block with a row per chunk, whose bytes begin at these places of the payload."""
    offsets = pa.py_buffer(np.array([*starts, payload.size], dtype=np.int64))
    buffers = [None, offsets, payload]
    values = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(headers), buffers)
    return pa.Table.from_arrays([pa.array(headers, type=pa.string()), values], schema=_SCHEMA)


def _add_table(parts: Parts, table: pa.Table) -> int:
    size = pa.MockOutputStream()  # counts bytes; a growing buffer would be copied repeatedly
    _write(table, size)

    def write(place: Bytes) -> None:
        _write(table, pa.FixedSizeBufferWriter(pa.py_buffer(place)))

    return parts.add(size.size(), write)


def _write(table: pa.Table, sink: pa.NativeFile) -> None:
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def _lay_out_batches(rows: Batches, wire: Wire) -> tuple[dict[str, Any], Parts]:
    """Lay out batches; return the fields that describe them, with places as [start, bytes]."""
    parts = Parts()
    layouts: dict[tuple[Slot, ...], int] = {}  # batches of equal size are laid out alike
    batches = []
    hashes = _add(parts, rows.hashes)
    is_counted = None if rows.is_counted is None else _add(parts, rows.is_counted)
    groups = None if rows.groups is None else _add(parts, rows.groups)
    for index in range(len(rows.batches)):
        packer = Packer(rows.arrays(index), sparse=wire.sparse)
        place = _add_batch(parts, packer, wire.codec)
        layout = layouts.setdefault(packer.slots, len(layouts))
        batches.append([rows.starts[index], packer.num_bytes, place, layout])
    return {
        "once": list(rows.once),
        "codec": wire.codec,
        "hashes": hashes,
        "is_counted": is_counted,
        "groups": groups,
        "layouts": [list(slots) for slots in layouts],
        "batches": batches,
    }, parts


def _add(parts: Parts, array: Array) -> list[int]:
    return [parts.add_array(array), array.nbytes]


def _add_batch(parts: Parts, packer: Packer, codec: str | None) -> list[int]:
    if codec is None:
        return [parts.add(packer.num_bytes, packer.write), packer.num_bytes]
    buffer = np.empty(packer.num_bytes, dtype=np.uint8)
    packer.write(buffer)
    compressed = pa.Codec(codec).compress(pa.py_buffer(buffer))
    return _add(parts, np.frombuffer(compressed, dtype=np.uint8))


def unpack(block: pa.Table) -> list[Chunk]:
    """Unpack the chunks of a block."""
    headers = block.column("header").to_pylist()
    payloads = [p for chunk in block.column("payload").chunks for p in _payloads(chunk)]
    pairs = zip(headers, payloads, strict=True)
    return [_unpack(header, np.frombuffer(payload, dtype=np.uint8)) for header, payload in pairs]


def unpack_shared(block: SharedBlock, memory: Bytes) -> list[Chunk]:
    """Unpack the chunks of a block as views of the bytes of its segment."""
    cuts = pairwise([*block.starts, len(memory)])
    pairs = zip(block.headers, cuts, strict=True)
    return [_unpack(header, memory[start:end]) for header, (start, end) in pairs]


def _payloads(chunk: pa.LargeBinaryArray) -> list[pa.Buffer]:
    """Return the values as views; a scalar of the array would be a copy."""
    _, offsets, data = chunk.buffers()
    cuts = np.frombuffer(offsets, dtype=np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
    return [data.slice(start, end - start) for start, end in pairwise(cuts.tolist())]


def _unpack(header_json: str, memory: Bytes) -> Chunk:
    fields = json.loads(header_json)
    batches, result = fields.pop("batches", None), fields.pop("result", "")
    counts = tuple(StepCount(**count) for count in fields.pop("counts"))
    observed = tuple(map(base64.b64decode, fields.pop("observed", ())))
    header = Header(**fields, counts=counts, observed=observed)
    rows: pa.Table | Batches
    if batches is None:
        rows = pa.ipc.open_stream(pa.py_buffer(memory)).read_all()
    else:
        rows = _unpack_batches(batches, memory)
    return Chunk(header=header, rows=rows, result=result)


def _unpack_batches(fields: dict[str, Any], memory: Bytes) -> Batches:
    layouts = [tuple(Slot.from_json(slot) for slot in slots) for slots in fields["layouts"]]
    counted, groups = fields["is_counted"], fields["groups"]
    hashes = _part(memory, fields["hashes"]).view(np.uint64)
    return Batches(
        starts=tuple(start for start, *_ in fields["batches"]),
        batches=tuple(
            PackedBatch(
                slots=layouts[layout],
                num_bytes=num_bytes,
                data=_part(memory, place),
                codec=fields["codec"],
            )
            for _, num_bytes, place, layout in fields["batches"]
        ),
        num_bytes=hashes.nbytes + sum(num_bytes for _, num_bytes, *_ in fields["batches"]),
        hashes=hashes,
        is_counted=None if counted is None else _part(memory, counted).view(np.bool_),
        once=tuple(fields["once"]),
        groups=None if groups is None else _part(memory, groups).view(np.uint64),
    )


def _part(memory: Bytes, place: list[int]) -> Bytes:
    return memory[place[0] : sum(place)]
