"""Compares rows of a column byte by byte, for every type that a Parquet file can hold.

`==` does not suffice, since NaN differs from itself and -0.0 equals 0.0. Used to store identical
rows once: in nested files (`convert`), and in a reader (`found_requests`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.sources.gather import lists_as_binary

BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]

# Items of lists that are compared at once: four index and mask arrays of this length, about 32 MiB.
_BLOCK_ITEMS = 1 << 20


def rows_equal(array: pa.Array, left: Int64Array, right: Int64Array) -> BoolArray:
    """Return for each i whether array[left[i]] equals array[right[i]]; null equals null.

    Raises TypeError for a type whose values cannot be compared by their bytes.
    """
    if not array.null_count:
        return _values_equal(array, left, right)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    equal = np.asarray(valid[left] == valid[right])
    both = np.flatnonzero(valid[left] & valid[right])
    equal[both] = _values_equal(array, left[both], right[both])
    return equal


def equal_to_previous(array: pa.Array) -> BoolArray:
    """Return for each row but the first whether it equals the previous row.

    This is faster than `rows_equal`: lists of numbers are compared by a memcmp each.

    Raises TypeError as `rows_equal` does.
    """
    binary = lists_as_binary(array)
    if binary is not None:
        array = binary
    left, right = array.slice(0, max(0, len(array) - 1)), array.slice(1)
    if _is_text(array.type):
        equal = pc.equal(left, right)
        if array.null_count:
            equal = pc.or_(equal.fill_null(False), pc.and_(left.is_null(), right.is_null()))
        return np.asarray(equal.to_numpy(zero_copy_only=False))
    places = np.arange(len(left))
    return rows_equal(array, places, places + 1)


def _values_equal(array: pa.Array, left: Int64Array, right: Int64Array) -> BoolArray:
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _values_equal(array.storage, left, right)
    if pa.types.is_null(kind):
        return np.ones(len(left), dtype=np.bool_)
    if pa.types.is_struct(kind):
        return _structs_equal(array, left, right)
    if pa.types.is_fixed_size_list(kind):
        starts = (np.arange(len(array) + 1) + array.offset) * kind.list_size
        return _lists_equal(array.values, starts, left, right)
    if pa.types.is_map(kind):
        return _lists_equal(_map_items(array), _offsets(array), left, right)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists_equal(array.values, _offsets(array), left, right)
    if _is_text(kind):
        pair = (array.take(pa.array(side)) for side in (left, right))
        return np.asarray(pc.equal(*pair).to_numpy(zero_copy_only=False))
    return _fixed_width_equal(array, left, right)


def _is_text(kind: pa.DataType) -> bool:
    """Return whether the type is a string or binary, which Arrow compares by their bytes."""
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return any(test(kind) for test in (*tests, *binary))


def _structs_equal(array: pa.StructArray, left: Int64Array, right: Int64Array) -> BoolArray:
    equal = np.ones(len(left), dtype=np.bool_)
    for field in array.flatten():
        equal &= rows_equal(field, left, right)
    return equal


def _offsets(array: pa.Array) -> Int64Array:
    return np.asarray(array.offsets.to_numpy(), dtype=np.int64)


def _map_items(array: pa.MapArray) -> pa.StructArray:
    return pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])


def _lists_equal(
    items: pa.Array, offsets: Int64Array, left: Int64Array, right: Int64Array
) -> BoolArray:
    """Compare lists of equal length item by item, in blocks of pairs of rows."""
    lengths = np.diff(offsets)
    equal = np.asarray(lengths[left] == lengths[right])
    pairs = np.flatnonzero(equal & (lengths[left] > 0))
    ends = np.cumsum(lengths[left[pairs]])
    first = 0
    while first < len(pairs):
        done = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, done + _BLOCK_ITEMS, side="right")))
        block = pairs[first:last]
        equal[block] = _block_equal(items, offsets, left[block], right[block])
        first = last
    return equal


def _block_equal(
    items: pa.Array, offsets: Int64Array, left: Int64Array, right: Int64Array
) -> BoolArray:
    lengths = offsets[left + 1] - offsets[left]
    starts = np.cumsum(lengths) - lengths
    place = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
    same = rows_equal(
        items,
        np.repeat(offsets[left], lengths) + place,
        np.repeat(offsets[right], lengths) + place,
    )
    return np.asarray(np.logical_and.reduceat(same, starts))


def _fixed_width_equal(array: pa.Array, left: Int64Array, right: Int64Array) -> BoolArray:
    """Compare numbers, booleans, times, decimals and binary of fixed size by their bytes."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    try:
        width = array.type.bit_width // 8
    except ValueError as error:
        raise TypeError(f"values of type {array.type} cannot be compared by their bytes") from error
    buffer = array.buffers()[1]
    if buffer is None or width == 0:
        return np.ones(len(left), dtype=np.bool_)
    if width in (1, 2, 4, 8):
        words = np.frombuffer(buffer, f"u{width}", len(array), array.offset * width)
        return np.asarray(words[left] == words[right])
    count = len(array) * width
    rows = np.frombuffer(buffer, np.uint8, count, array.offset * width).reshape(-1, width)
    return np.asarray((rows[left] == rows[right]).all(axis=1))
