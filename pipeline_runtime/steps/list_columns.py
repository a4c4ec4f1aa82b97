"""List columns as offsets and items, without a loop over rows.

What `padSequence`, `truncate` and `hashBucket` share. Every function respects slices: an array may
start in the middle of its buffers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ragged:
    """Lists as items, and the start and length of each list; a null list has length 0."""

    starts: Int64s
    lengths: Int64s
    null: Bools | None  # which lists are null; None if none is
    items: pa.Array


def is_list(data_type: pa.DataType) -> bool:
    """Return whether values are lists of any length: list or large_list."""
    return bool(pa.types.is_list(data_type) or pa.types.is_large_list(data_type))


def split_lists(array: pa.Array) -> Ragged:
    """Return the starts, lengths and items of a list, large_list or fixed_size_list array."""
    null = _nulls(array)
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        starts = (np.arange(len(array), dtype=np.int64) + array.offset) * size
        lengths = np.full(len(array), size, dtype=np.int64)
    else:
        offsets = array.offsets.to_numpy().astype(np.int64)
        starts, lengths = offsets[:-1], np.diff(offsets)
    if null is not None:
        lengths = np.where(null, 0, lengths)
    return Ragged(starts=starts, lengths=lengths, null=null, items=array.values)


def join_lists(
    data_type: pa.DataType, ragged: Ragged, indices: Int64s, lengths: Int64s
) -> pa.Array:
    """Return lists of that type: the items at `indices`, with `lengths` items in each row."""
    items = ragged.items.take(pa.array(indices))
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    mask = None if ragged.null is None else pa.array(ragged.null)
    if pa.types.is_large_list(data_type):
        return pa.LargeListArray.from_arrays(pa.array(offsets), items, type=data_type, mask=mask)
    narrow = pa.array(offsets.astype(np.int32))
    return pa.ListArray.from_arrays(narrow, items, type=data_type, mask=mask)


def item_indices(starts: Int64s, lengths: Int64s) -> Int64s:
    """Return the indices of the items of each list, one list after another."""
    ends = np.cumsum(lengths)
    shift = np.repeat(starts - (ends - lengths), lengths)
    return np.asarray(shift + np.arange(len(shift), dtype=np.int64))


def map_chunks(
    column: pa.ChunkedArray, data_type: pa.DataType, function: Callable[[pa.Array], pa.Array]
) -> pa.ChunkedArray:
    """Return the function's results for each chunk as a column of that type."""
    return pa.chunked_array([function(chunk) for chunk in column.chunks], type=data_type)


def decode(array: pa.Array) -> pa.Array:
    """Return the values without dictionary or run-end encoding."""
    if isinstance(array, pa.DictionaryArray):
        return decode(array.dictionary_decode())
    if isinstance(array, pa.RunEndEncodedArray):
        return decode(pc.run_end_decode(array))
    return array


def decoded_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type of `decode`'s result."""
    if isinstance(data_type, pa.DictionaryType | pa.RunEndEncodedType):
        return decoded_type(data_type.value_type)
    return data_type


def _nulls(array: pa.Array) -> Bools | None:
    if array.null_count == 0:
        return None
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False))
