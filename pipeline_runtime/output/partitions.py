"""The rows of a table by partition; `output.spool` calls `split_rows` for each chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline_runtime.sources.partition_names import name_folder


class Split(Protocol):
    """Divides the rows of a chunk into partitions; picklable."""

    def __call__(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """Yield a text for each partition that no other one has, and its rows in their order."""
        ...


@dataclass(frozen=True, slots=True)
class SplitByFolder:
    """Yields the folder and the rows of each partition, without the partition columns."""

    columns: tuple[str, ...]

    def __call__(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """See `Split`."""
        columns = self.columns
        stored = table.drop_columns(list(columns)) if columns else table

        def name(row: int) -> str:
            values = (table.column(column)[row].as_py() for column in columns)
            return name_folder(columns, list(values))

        yield from split_rows(stored, [table.column(column) for column in columns], name)


def split_rows(
    stored: pa.Table, keys: Sequence[pa.ChunkedArray | pa.Array], name: Callable[[int], str]
) -> Iterator[tuple[str, pa.Table]]:
    """Yield the name and the rows of each partition; its rows keep their order.

    Args:
        stored: the rows, with the columns to store.
        keys: the values that a partition's rows share.
        name: returns the name of a row's partition.
    """
    if not stored.num_rows:
        return
    if not keys:
        yield name(0), stored
        return
    first, inverse = _group([_encode(key) for key in keys])
    names = [name(row) for row in first]
    if len(names) == 1:
        yield names[0], stored
        return
    order = np.argsort(inverse, kind="stable")
    ends = np.cumsum(np.bincount(inverse))
    stored = stored.take(pa.array(order))
    start = 0
    for found, end in zip(names, ends.tolist(), strict=True):
        yield found, stored.slice(start, end - start)
        start = end


def _encode(column: pa.ChunkedArray | pa.Array) -> npt.NDArray[np.int64]:
    """Return a code for each row; the last code means null."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    encoded = column.dictionary_encode()
    codes = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)
    return np.asarray(codes, dtype=np.int64)


def _group(
    keys: Sequence[npt.NDArray[np.int64]],
) -> tuple[list[int], npt.NDArray[np.int64]]:
    """Return the first row of each combination of codes, and each row's combination."""
    first, inverse = _unique(keys[0])
    for codes in keys[1:]:
        first, inverse = _unique(inverse * (int(codes.max()) + 1) + codes)
    return first.tolist(), inverse


def _unique(
    codes: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    return first, inverse
