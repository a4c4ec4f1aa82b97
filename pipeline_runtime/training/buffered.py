"""Chunks that are not yet cut into batches, and the rows of a batch before they are joined.

`stream` decides which rows form a batch and counts them; `collating` makes arrays of them, before
they are needed if possible.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline_runtime.arrays.conversion import Arrays, to_arrays
from pipeline_runtime.arrays.cuts import cut_arrays, join_arrays
from pipeline_runtime.arrays.packing import PackedBatch, arrays_of
from pipeline_runtime.arrays.requests import copy_rows
from pipeline_runtime.feed.chunk import Batches, Chunk
from pipeline_runtime.steps.base import GROUP_HASH_COLUMN, ROW_HASH_COLUMN

Hashes: TypeAlias = npt.NDArray[np.uint64]
# Rows of a chunk as its reader made them, and the range of them that is meant; None: all.
Part: TypeAlias = tuple[pa.Table | Arrays | PackedBatch, range | None]


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The rows of a batch: at least one part of a chunk. The parts are not joined yet.

    Attributes:
        request_columns: columns that the parts hold once per request.
    """

    parts: tuple[Part, ...]
    request_columns: tuple[str, ...]

    @property
    def made(self) -> Arrays | PackedBatch | None:
        """The batch, if a reader made exactly this one."""
        rows, some = self.parts[0]
        is_made = len(self.parts) == 1 and some is None and not isinstance(rows, pa.Table)
        return rows if is_made else None

    @property
    def is_view(self) -> bool:
        """Return whether its arrays are views of arrays that a reader made."""
        rows, some = self.parts[0]
        if len(self.parts) > 1 or isinstance(rows, pa.Table):
            return False
        return some is None and rows.is_plain if isinstance(rows, PackedBatch) else True

    def to_arrays(self, weight_column: str | None, label_column: str | None) -> Arrays:
        """Return the arrays of the batch; columns and errors are those of `to_arrays`."""

        def convert(table: pa.Table) -> Arrays:
            return to_arrays(table, weight_column=weight_column, label_column=label_column)

        tables = [rows for rows, _ in self.parts if isinstance(rows, pa.Table)]
        if len(tables) == len(self.parts):
            return convert(pa.concat_tables(tables) if len(tables) > 1 else tables[0])
        parts = []
        for rows, some in self.parts:
            whole = convert(rows) if isinstance(rows, pa.Table) else arrays_of(rows)
            parts.append(
                whole
                if some is None
                else cut_arrays(whole, some.start, len(some), self.request_columns)
            )
        return join_arrays(parts, self.request_columns)


@dataclass(slots=True)
class Buffered:
    """The remaining rows of a chunk, from row `offset` on."""

    chunk: Chunk
    offset: int
    _base: int = 0  # rows of the chunk that are no longer held

    @property
    def rows_left(self) -> int:
        return self.chunk.header.num_rows - self.offset

    def has_whole(self, batch_size: int) -> bool:
        """Return whether the next batch lies in this chunk alone, as its reader cut it."""
        return self.offset % batch_size == 0 and self.rows_left >= batch_size

    def parts(self, rows: int) -> Iterator[Part]:
        """Yield the next rows, as their reader cut them."""
        held, start, end = self.chunk.rows, self.offset, self.offset + rows
        if not isinstance(held, Batches):
            yield held.slice(start - self._base, rows), None
            return
        index = bisect_right(held.starts, start) - 1
        ends = (*held.starts[1:], self.chunk.header.num_rows)
        while start < end:
            batch, first = held.batches[index], start - held.starts[index]
            stop = min(end, ends[index])
            is_whole = first == 0 and stop == ends[index]
            yield batch, None if is_whole else range(first, first + stop - start)
            start, index = stop, index + 1

    def hashes(self, rows: int, weight_column: str | None) -> npt.NDArray[np.uint64]:
        """Return the identities of those next rows that the checksum counts."""
        held, start = self.chunk.rows, self.offset - self._base
        if not isinstance(held, Batches):
            return _counted_hashes(held.slice(start, rows), weight_column)
        hashes, is_counted = held.hashes[start : start + rows], held.is_counted
        if weight_column is None or is_counted is None:
            return hashes
        return hashes[is_counted[start : start + rows]]

    def identities(self, rows: int) -> tuple[Hashes, Hashes]:
        """Return the hashes of identity and group of the next rows.

        The group is the request key or, without one, the row itself.
        """
        held, start = self.chunk.rows, self.offset - self._base
        if not isinstance(held, Batches):
            mine = held.slice(start, rows)
            hashes = mine.column(ROW_HASH_COLUMN).to_numpy()
            has_groups = GROUP_HASH_COLUMN in held.schema.names
            return hashes, mine.column(GROUP_HASH_COLUMN).to_numpy() if has_groups else hashes
        groups = held.hashes if held.groups is None else held.groups
        return held.hashes[start : start + rows], groups[start : start + rows]

    def detach(self) -> None:
        """Copy the remaining rows, so that the memory of the rows before them can be freed."""
        held = self.chunk.rows
        if isinstance(held, Batches):
            index = bisect_right(held.starts, self.offset) - 1
            first = held.starts[index] - self._base
            rows = replace(
                held,
                starts=held.starts[index:],
                batches=tuple(_copy(batch) for batch in held.batches[index:]),
                hashes=held.hashes[first:].copy(),
                is_counted=None if held.is_counted is None else held.is_counted[first:].copy(),
                groups=None if held.groups is None else held.groups[first:].copy(),
            )
        else:
            first = self.offset - self._base
            rows = copy_rows(held.slice(first))
        self.chunk = replace(self.chunk, rows=rows)
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
