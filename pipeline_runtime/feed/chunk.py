"""Chunks, which readers deliver to consumers.

A chunk has a header (its group and its place in the epoch, and the rows and bytes after every step)
and its rows: a table, or batches of arrays if its reader makes them (`making.batching`).
`transport.wire` sends it from one process to another.

Saved files and states keep the earlier name of chunks, pieces, in their keys: `numPieces` and
`pieceRows` of checkpoints, `piece_rows` of loaders, `piece` and the folder `pieces` of tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline_runtime.arrays.conversion import Arrays
from pipeline_runtime.arrays.packing import PackedBatch, arrays_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCount:
    """Rows and Arrow bytes that one step returned, and the seconds of one core that it took."""

    rows: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The identity of a chunk, and how it was made; `counts[0]` is the read, then one per step.

    Attributes:
        observed: what each step that measures rows returned for those of the chunk.
    """

    epoch: int
    group: int
    chunk: int
    is_last: bool  # of its group
    num_rows: int
    counts: tuple[StepCount, ...]
    idle_share: float = 0.0  # share of its rows in long runs that the first filters drop entirely
    gap_seconds: float = 0.0  # in which its reader made nothing, before this chunk
    waiting_seconds: float = 0.0  # its steps' waits for inference workers, not part of `counts`
    batching_seconds: float = 0.0  # its reader's time to make batches
    read_seconds: float = 0.0  # duration of the read, perhaps concurrent with other work
    observed: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """The rows of a chunk as batches, one after another.

    Attributes:
        starts: the first row of each batch.
        batches: each as its reader made it, or as it arrived from another process.
        num_bytes: bytes of the batches and the hashes, uncompressed.
        hashes: uint64 of all rows' identities.
        groups: uint64 hashes of all rows' request keys; None if the stream has none.
        is_counted: True for rows whose weight is not 0; None if all rows count.
        once: columns that batches hold once per request.
    """

    starts: tuple[int, ...]
    batches: tuple[Arrays | PackedBatch, ...]
    num_bytes: int
    hashes: npt.NDArray[np.uint64]
    is_counted: npt.NDArray[np.bool_] | None
    once: tuple[str, ...]
    groups: npt.NDArray[np.uint64] | None = None

    @property
    def codec(self) -> str | None:
        """The codec of the batches; None if they are not compressed."""
        first = next(iter(self.batches), None)
        return first.codec if isinstance(first, PackedBatch) else None

    def arrays(self, index: int) -> Arrays:
        """Return one of the batches, unpacked."""
        return arrays_of(self.batches[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Rows of one group, in their final order.

    Attributes:
        rows: a table, or batches if the reader makes them.
        is_shared: whether a request may have several rows, here or in other chunks.
        result: the result of `Stream.finish`, in the consumer's own format.
    """

    header: Header
    rows: pa.Table | Batches
    is_shared: bool = True
    result: str = ""

    @property
    def table(self) -> pa.Table:
        """The rows, which no reader made batches of."""
        assert isinstance(self.rows, pa.Table)
        return self.rows

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows, uncompressed."""
        return int(self.rows.nbytes if isinstance(self.rows, pa.Table) else self.rows.num_bytes)


def add_counts(left: Sequence[StepCount], right: Sequence[StepCount]) -> tuple[StepCount, ...]:
    """Add counts step by step; an empty side counts as zeros."""
    if not left or not right:
        return tuple(left or right)
    return tuple(
        StepCount(
            rows=a.rows + b.rows, num_bytes=a.num_bytes + b.num_bytes, seconds=a.seconds + b.seconds
        )
        for a, b in zip(left, right, strict=True)
    )
