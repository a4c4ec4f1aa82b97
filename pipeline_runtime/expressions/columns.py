"""Reads columns in their plain form: dictionaries decoded, every list layout as offsets and values.

Used by `evaluate` for columns and by `binder` for fields of structs; `types.plain_type` is the same
rule on types.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.expressions import types


def plain_array(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """`array` as `dtype`, the plain type of its own; the array itself if it is plain already."""
    if array.type == dtype:
        return array
    if pa.types.is_run_end_encoded(array.type):
        return plain_array(pc.run_end_decode(array), dtype)
    if pa.types.is_dictionary(array.type):
        return plain_array(array.dictionary_decode(), dtype)
    if types.is_any_list(array.type):
        return _plain_list(array, dtype)
    # A date64 holds whole days; the milliseconds of one that does not are dropped.
    return array.cast(dtype, safe=False)


def _plain_list(lists: pa.Array, dtype: pa.DataType) -> pa.Array:
    # Built by hand: Arrow 26's cast of a list view gives an array with offsets that are too short.
    sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    values = plain_array(lists.flatten(), dtype.value_type)
    return join_list(dtype, sizes, values, pc.is_null(lists))


def join_list(
    dtype: pa.DataType, sizes: np.ndarray, values: pa.Array, is_null: pa.BooleanArray
) -> pa.Array:
    """The list array whose rows hold the next `sizes` of `values`; a null row has size 0."""
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes, dtype=np.int64)])
    is_large = pa.types.is_large_list(dtype)
    build = pa.LargeListArray.from_arrays if is_large else pa.ListArray.from_arrays
    width = pa.int64() if is_large else pa.int32()
    return build(pa.array(offsets, type=width), values, type=dtype, mask=is_null)


def read_field(structs: pa.Array, name: str, dtype: pa.DataType) -> pa.Array:
    """The field of a struct array in its plain form; null where the struct is."""
    return plain_array(pc.struct_field(structs, name), dtype)
