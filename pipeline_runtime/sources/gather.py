"""Rows of columns picked by number: Arrow's take, and a faster one for lists of numbers.

Arrow moves the items of a picked list one by one (about 1 GB/s for int64, an eighth of that for
int8), but the bytes of a picked binary value at once. A list of fixed-width numbers is a binary
value in all but name, so such columns are taken as binary ones; their buffers are shared, not
copied. Whatever has nulls among its items, or items of no fixed width, goes Arrow's own way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64s = npt.NDArray[np.int64]

_MAX_INT32 = 2**31 - 1


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """The column's values in one array; `combine_chunks` copies even what is one already."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def count_column_bytes(column: pa.ChunkedArray) -> int:
    """Return the Arrow bytes of a column's values; `nbytes` visits each buffer of each chunk."""
    if not pa.types.is_primitive(column.type):
        return int(column.nbytes)
    bits = column.type.bit_width + (column.null_count > 0)
    return int(-(-len(column) * bits // 8))


def take_rows(column: pa.ChunkedArray, indices: Int64s, *, kernels: bool = True) -> pa.ChunkedArray:
    """The values at `indices`, which are from 0 to the column's length less 1, in their order.

    Args:
        kernels: False for Arrow's own take whatever the type; the values are the same.
    """
    if kernels and len(indices) and _is_list_of_numbers(column.type):
        taken = _take_chunks(column, indices)
        if taken is not None:
            return pa.chunked_array(taken)
    return column.take(pa.array(indices))


def _take_chunks(column: pa.ChunkedArray, indices: Int64s) -> list[pa.Array] | None:
    taken = []
    for chunk, inside, _ in place_in_chunks(column, indices):
        array = _take_lists(chunk, inside)
        if array is None:
            return None
        taken.append(array)
    return taken


def place_in_chunks(
    column: pa.ChunkedArray, indices: Int64s
) -> Iterator[tuple[pa.Array, Int64s, slice]]:
    """Chunks that have values at `indices`, where in each, and which of the indices these are.

    Chunk by chunk where the indices ascend; else all chunks have to become one, by a copy.
    """
    if column.num_chunks > 1 and (indices[1:] < indices[:-1]).any():
        column = pa.chunked_array([pa.concat_arrays(column.chunks)])
    ends = np.cumsum([len(chunk) for chunk in column.chunks])
    cuts = [0, *np.searchsorted(indices, ends[:-1]).tolist(), len(indices)]
    for chunk, end, (first, last) in zip(column.chunks, ends, pairwise(cuts), strict=True):
        if last > first:
            yield chunk, indices[first:last] - (end - len(chunk)), slice(first, last)


def cut_lists(array: pa.Array, starts: Int64s, lengths: Int64s) -> pa.Array | None:
    """The same lists with just the items from `starts` on, `lengths` a list.

    Args:
        array: of lists, whose items are in ascending places.
        starts: where each list's items begin among `array.values`; within the list.
        lengths: items that stay; none of a null list.

    Returns:
        The lists, or None if Arrow's own way is needed: items of no fixed width, or with nulls.
    """
    items = array.values
    if len(array) == 0 or items.null_count or not _is_list_of_numbers(array.type):
        return None
    bounds = np.stack([starts, starts + lengths], axis=1).ravel()
    wanted = np.arange(0, len(bounds), 2)  # the odd ones lie between two lists' items
    return _as_lists(array.type, _as_binary(items, bounds).take(pa.array(wanted)), _validity(array))


def lists_as_binary(array: pa.Array) -> pa.Array | None:
    """Lists of numbers as binary values over the same memory; None for any other array."""
    if not _is_list_of_numbers(array.type) or array.values.null_count:
        return None
    offsets = array.offsets.to_numpy().astype(np.int64, copy=False)
    return _as_binary(array.values, offsets, _validity(array))


def to_takeable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return lists of numbers as binary values, once for many calls of `take_takeable`.

    `take_rows` looks at every list of a column, however few it takes. Other columns stay as they
    are.
    """
    binary = [lists_as_binary(chunk) for chunk in column.chunks]
    if not binary or any(chunk is None for chunk in binary):
        return column
    return pa.chunked_array(binary)


def take_takeable(
    column: pa.ChunkedArray, indices: Int64s, data_type: pa.DataType
) -> pa.ChunkedArray:
    """Return rows of a column that `to_takeable` made of a column of this type; of −1, a null."""
    missing = indices < 0
    taken = column.take(pa.array(indices, mask=missing if missing.any() else None))
    if taken.type == data_type or not pa.types.is_large_binary(taken.type):
        return taken
    return pa.chunked_array(
        [lists for chunk in taken.chunks for lists in _split_to_lists(data_type, chunk)], data_type
    )


def concat_takeable(
    parts: Sequence[Sequence[pa.ChunkedArray]], schema: pa.Schema
) -> list[pa.ChunkedArray]:
    """Return the columns of several tables, as `to_takeable` made them, in one chunk each."""
    columns = []
    for number, field in enumerate(schema):
        mine = [part[number] for part in parts if len(part[number])]
        if len({column.type for column in mine}) > 1:  # some have lists with nulls among the items
            mine = [take_takeable(c, np.arange(len(c)), field.type) for c in mine]
        chunks = [chunk for column in mine for chunk in column.chunks]
        whole = pa.concat_arrays(chunks) if chunks else pa.array([], field.type)
        columns.append(pa.chunked_array([whole]))
    return columns


def _split_to_lists(data_type: pa.DataType, binary: pa.Array) -> Iterator[pa.Array]:
    """Yield the lists that binary values in fresh memory are; in halves if they are too many."""
    lists = _as_lists(data_type, binary, binary.buffers()[0] if binary.null_count else None)
    if lists is not None:
        yield lists
        return
    half = len(binary) // 2
    for numbers in (np.arange(half), np.arange(half, len(binary))):
        yield from _split_to_lists(data_type, binary.take(pa.array(numbers)))


def _is_list_of_numbers(data_type: pa.DataType) -> bool:
    if not (pa.types.is_list(data_type) or pa.types.is_large_list(data_type)):
        return False
    item = data_type.value_type
    return bool(pa.types.is_primitive(item) and item.bit_width % 8 == 0)


def _take_lists(array: pa.Array, indices: Int64s) -> pa.Array | None:
    """Take lists; None if an item is null or the items exceed the type's offsets."""
    binary = lists_as_binary(array)
    if binary is None:
        return None
    taken = binary.take(pa.array(indices))
    return _as_lists(array.type, taken, taken.buffers()[0] if taken.null_count else None)


def _as_binary(items: pa.Array, bounds: Int64s, validity: pa.Buffer | None = None) -> pa.Array:
    """One binary value between each two bounds, which count items, over the items' memory."""
    width = items.type.bit_width // 8
    offsets = pa.py_buffer((bounds + items.offset) * width)
    data = items.buffers()[1] or pa.py_buffer(b"")
    return pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, [validity, offsets, data])


def _as_lists(
    data_type: pa.DataType, binary: pa.Array, validity: pa.Buffer | None
) -> pa.Array | None:
    """The binary values, in fresh memory, as the lists that they are; None if they are too many."""
    width = data_type.value_type.bit_width // 8
    offsets = np.frombuffer(binary.buffers()[1], np.int64, len(binary) + 1) // width
    if pa.types.is_list(data_type):
        if offsets[-1] > _MAX_INT32:
            return None
        offsets = offsets.astype(np.int32)
    items = pa.Array.from_buffers(
        data_type.value_type, int(offsets[-1]), [None, binary.buffers()[2]], null_count=0
    )
    return pa.Array.from_buffers(
        data_type, len(binary), [validity, pa.py_buffer(offsets)], children=[items]
    )


def _validity(array: pa.Array) -> pa.Buffer | None:
    """A bit a value from the first bit on, wherever the array starts in its own."""
    if array.null_count == 0:
        return None
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    return pa.py_buffer(np.packbits(valid, bitorder="little"))
