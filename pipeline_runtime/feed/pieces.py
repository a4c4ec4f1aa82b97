"""Pieces: what readers hand to trainers.

A piece has a header (which group and place of the epoch it is, and what every step took in and gave
out) and its rows: a table, or, made ready by its reader (`making.batching`), batches as arrays. How
it travels from one process to another is `transport.wire`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline_runtime.arrays.conversion import Arrays
from pipeline_runtime.arrays.packing import PackedBatch, unpack_arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCount:
    """Rows and Arrow bytes that one step gave out, and the seconds of one core that it took."""

    rows: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Identity of a chunk and how it was made; `counts[0]` is the read, then one per step."""

    epoch: int
    group: int
    piece: int
    is_last: bool  # of its group
    num_rows: int
    counts: tuple[StepCount, ...]
    idle_share: float = 0.0  # of its rows, those in long runs of which the first filters left none
    gap_seconds: float = 0.0  # that its reader had nothing to make before it
    batching_seconds: float = 0.0  # that its reader took to make it ready
    read_seconds: float = 0.0  # that its rows took to be read, beside other work perhaps
    apart_seconds: float = 0.0  # of a processor, that another thread took for that


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows of one group, in their final order."""

    header: Header
    table: pa.Table
    is_shared: bool = True  # whether a request may have several rows, here or in other pieces

    @property
    def num_bytes(self) -> int:
        return int(self.table.nbytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyPiece:
    """The same as batches, one after another.

    Attributes:
        starts: the first row of each batch.
        num_bytes: as its reader made it, with its hashes.
        hashes: uint64 of all rows' identities.
        is_counted: which rows weigh something; None: all.
        once: columns that batches carry once a request.
    """

    header: Header
    starts: tuple[int, ...]
    batches: tuple[Arrays | PackedBatch, ...]
    num_bytes: int
    hashes: npt.NDArray[np.uint64]
    is_counted: npt.NDArray[np.bool_] | None
    once: tuple[str, ...]

    @property
    def codec(self) -> str | None:
        """By which its batches are compressed."""
        first = next(iter(self.batches), None)
        return first.codec if isinstance(first, PackedBatch) else None

    def arrays(self, index: int) -> Arrays:
        """One of the batches, unpacked."""
        batch = self.batches[index]
        if isinstance(batch, PackedBatch):
            return unpack_arrays(batch.slots, batch.buffer())
        return batch


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
