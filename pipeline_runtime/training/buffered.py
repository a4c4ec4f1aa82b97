"""Pieces that wait to be cut into batches, and a batch's rows before somebody joins them.

`stream` decides which rows make a batch and counts them; `collating` makes arrays of them, ahead of
need where it can.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline_runtime.arrays.conversion import Arrays, to_arrays
from pipeline_runtime.arrays.cuts import cut_arrays, join_arrays
from pipeline_runtime.arrays.packing import PackedBatch, unpack_arrays
from pipeline_runtime.arrays.requests import copy_rows
from pipeline_runtime.feed.pieces import Piece, ReadyPiece
from pipeline_runtime.steps.base import ROW_HASH_COLUMN


@dataclass(frozen=True, slots=True)
class Cut:
    """Some rows of a batch that a reader made."""

    batch: Arrays | PackedBatch
    first: int
    rows: int
    once: tuple[str, ...]  # columns that stand once a request


Part: TypeAlias = pa.Table | Arrays | PackedBatch | Cut


@dataclass(frozen=True, slots=True)
class Joined:
    """Rows of several pieces, one at least, or of several batches that readers made of one."""

    parts: tuple[Part, ...]
    once: tuple[str, ...]


# The rows of a batch.
BatchRows: TypeAlias = Part | Joined


def arrays_of(rows: BatchRows, weight_column: str | None, label_column: str | None) -> Arrays:
    """The arrays of a batch; columns and errors are those of `to_arrays`."""
    if isinstance(rows, Joined):
        tables = [part for part in rows.parts if isinstance(part, pa.Table)]
        if len(tables) == len(rows.parts):
            rows = pa.concat_tables(tables)
        else:
            parts = [arrays_of(part, weight_column, label_column) for part in rows.parts]
            return join_arrays(parts, rows.once)
    if isinstance(rows, pa.Table):
        return to_arrays(rows, weight_column=weight_column, label_column=label_column)
    if isinstance(rows, Cut):
        whole = arrays_of(rows.batch, weight_column, label_column)
        return cut_arrays(whole, rows.first, rows.rows, rows.once)
    return unpack_arrays(rows.slots, rows.buffer()) if isinstance(rows, PackedBatch) else rows


@dataclass(slots=True)
class Buffered:
    """The rest of a piece, from row `offset` on."""

    piece: Piece | ReadyPiece
    offset: int
    _base: int = 0  # rows of the piece that are no longer held

    @property
    def rows_left(self) -> int:
        return self.piece.header.num_rows - self.offset

    def has_whole(self, batch_size: int) -> bool:
        """Whether the next batch lies in this piece alone, as its reader cut it."""
        return self.offset % batch_size == 0 and self.rows_left >= batch_size

    def parts(self, rows: int) -> Iterator[Part]:
        """The next rows, as its reader cut them."""
        piece, start, end = self.piece, self.offset, self.offset + rows
        if isinstance(piece, Piece):
            yield piece.table.slice(start - self._base, rows)
            return
        while start < end:
            index, first = divmod(start, piece.batch_size)
            first_row = index * piece.batch_size
            last = min(piece.batch_size, end - first_row)
            batch = piece.batches[index - self._base // piece.batch_size]
            is_whole = last - first == min(piece.batch_size, piece.header.num_rows - first_row)
            yield batch if is_whole else Cut(batch, first, last - first, piece.once)
            start = first_row + last

    def hashes(self, rows: int, weight_column: str | None) -> npt.NDArray[np.uint64]:
        """Identities of the next rows that the checksum counts."""
        start = self.offset - self._base
        if isinstance(self.piece, Piece):
            return _counted_hashes(self.piece.table.slice(start, rows), weight_column)
        hashes, is_counted = self.piece.hashes[start : start + rows], self.piece.is_counted
        if weight_column is None or is_counted is None:
            return hashes
        return hashes[is_counted[start : start + rows]]

    def detach(self) -> None:
        """Copy the rows that are left, so that the memory of those before them can go."""
        piece = self.piece
        if isinstance(piece, Piece):
            self.piece = replace(
                piece, table=copy_rows(piece.table.slice(self.offset - self._base))
            )
            self._base = self.offset
            return
        held = self.offset // piece.batch_size - self._base // piece.batch_size
        first = held * piece.batch_size
        self.piece = replace(
            piece,
            batches=tuple(_copy(batch) for batch in piece.batches[held:]),
            hashes=piece.hashes[first:].copy(),
            is_counted=None if piece.is_counted is None else piece.is_counted[first:].copy(),
        )
        self._base += first


def _copy(batch: Arrays | PackedBatch) -> Arrays | PackedBatch:
    if isinstance(batch, PackedBatch):
        return replace(batch, data=batch.data.copy())
    copied = {name: array.copy() for name, array in batch.items()}
    for name, array in copied.items():
        array.flags.writeable = batch[name].flags.writeable
    return copied


def _counted_hashes(table: pa.Table, weight_column: str | None) -> npt.NDArray[np.uint64]:
    hashes: npt.NDArray[np.uint64] = table.column(ROW_HASH_COLUMN).to_numpy()
    if weight_column is None:
        return hashes
    is_counted: npt.NDArray[np.bool_] = np.nan_to_num(table.column(weight_column).to_numpy()) > 0
    return hashes[is_counted]
