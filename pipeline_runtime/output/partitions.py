"""The rows of a table by partition; `output.spool` calls `split_rows` for each chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline_runtime.sources.partition_names import name_folder


def split_rows(table: pa.Table, columns: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the folder and the rows of each partition, without the partition columns.

    The rows of a partition keep their order.
    """
    stored = table.drop_columns(list(columns)) if columns else table
    if not table.num_rows:
        return
    if not columns:
        yield "", stored
        return
    keys = [_encode(table.column(name)) for name in columns]
    first, inverse = _group([codes for codes, _ in keys])
    names = [name_folder(columns, [values[codes[row]] for codes, values in keys]) for row in first]
    if len(names) == 1:
        yield names[0], stored
        return
    order = np.argsort(inverse, kind="stable")
    ends = np.cumsum(np.bincount(inverse))
    stored = stored.take(pa.array(order))
    start = 0
    for name, end in zip(names, ends.tolist(), strict=True):
        yield name, stored.slice(start, end - start)
        start = end


def _encode(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], list[Any]]:
    """Return a code for each row and the value of each code; the last code means null."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    encoded = column.combine_chunks().dictionary_encode()
    values = encoded.dictionary.to_pylist()
    codes = encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)
    return codes.astype(np.int64), [*values, None]


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
