"""Arrow tables as the numpy arrays of a batch, without a copy where Arrow's memory allows.

Owned here: which Arrow type becomes which array, and what a null becomes.

    bool                                      bool [B]
    int8, int16, int32, int64, uint8          the same integer [B]
    uint16, uint32, uint64                    int64 [B]; 2**63 and more is refused
    float16, float32, float64                 the same float [B]; null becomes NaN
    date, time, timestamp, duration           int64 [B], days or ticks in the column's own unit
    dictionary, run-end encoded, extension    as the type of its values
    fixed_size_list<T>[L]                     T [B, L]
    list<T>, large_list<T>                    `name.values` T [N], `name.offsets` int64 [B+1] from 0

Nulls of anything but floats are refused, since no integer says "missing"; a null list of no fixed
size is an empty one. An array that may not be written to says so by its flag `writeable`: a view of
read-only memory, and what the rows of a request share.

Shapes: B rows, L items of a fixed-size list, N items of all lists of a column.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.arrays.requests import requests_of
from pipeline_runtime.errors import TrainingError
from pipeline_runtime.steps.base import REQUEST_COLUMN, public_schema

# float32 [B] in every batch: the weight column's value, or 1; 0 for the rows of padding.
ROW_WEIGHT = "row_weight"
# int64 [B]: the row of a request's arrays that belongs to each row, where requests stand once.
REQUEST_INDEX = "request_index"
# The two arrays of a list column are named after it with these endings.
VALUES_SUFFIX = ".values"
OFFSETS_SUFFIX = ".offsets"

Array = npt.NDArray[Any]
Arrays = dict[str, Array]

_NULL_ADVICE = "fillNull or filter it before training"
# By the types' ids: a type is hashed by its text.
_DTYPES: dict[int, np.dtype[Any]] = {
    pa.int8().id: np.dtype(np.int8),
    pa.int16().id: np.dtype(np.int16),
    pa.int32().id: np.dtype(np.int32),
    pa.int64().id: np.dtype(np.int64),
    pa.uint8().id: np.dtype(np.uint8),
    pa.float16().id: np.dtype(np.float16),
    pa.float32().id: np.dtype(np.float32),
    pa.float64().id: np.dtype(np.float64),
}


def check_tensor_schema(
    schema: pa.Schema, *, weight_column: str | None = None
) -> list[tuple[str, str]]:
    """Say which columns cannot become tensors, before anything runs.

    Args:
        schema: of the tables that `to_arrays` will get.
        weight_column: the column that may be called `row_weight`, since it is the row weight.

    Returns:
        (column, message) for each column that is in the way, in the schema's order.
    """
    schema = public_schema(schema)
    messages = [(field.name, _problem_of_type(field.type)) for field in schema]
    problems = [(name, message) for name, message in messages if message is not None]
    return problems + list(_name_clashes(schema, weight_column))


def to_arrays(
    table: pa.Table,
    *,
    weight_column: str | None,
    label_column: str | None,
    is_shared: bool = True,
) -> Arrays:
    """The rows of a table as arrays by name.

    Args:
        table: the B rows; columns of Lastmile's own (`_lastmile_…`) are left out, but for
            `REQUEST_COLUMN`, of which come `request_index` and arrays of Q requests.
        weight_column: whose values become `row_weight`; every row weighs 1 when None.
        label_column: may hold neither nulls nor NaN.
        is_shared: whether a request may have rows in the next batch too, which must not see what
            is written to this one.

    Raises:
        TrainingError: a null or a value that has no place in its array; names column and count.
    """
    arrays: Arrays = {}
    for field in public_schema(table.schema):
        arrays.update(_column_arrays(field.name, table.column(field.name)))
    if REQUEST_COLUMN in table.schema.names:
        requests, arrays[REQUEST_INDEX] = requests_of(table)
        for name, column in zip(requests.schema.names, requests.columns, strict=True):
            for array_name, array in _column_arrays(name, column):
                if is_shared:
                    array.flags.writeable = False
                arrays[array_name] = array
    if label_column is not None:
        _check_label(label_column, table.column(label_column).type, arrays)
    arrays[ROW_WEIGHT] = _row_weight(weight_column, table, arrays)
    return arrays


def find_invalid_rows(column: pa.ChunkedArray) -> npt.NDArray[np.bool_] | None:
    """Return which rows have a null that `to_arrays` refuses; None if there is none."""
    if column.null_count == 0 and column.type.id in _DTYPES:
        return None
    found = [_find_invalid(_plain_array(chunk)) for chunk in column.chunks]
    return np.concatenate(found) if any(each.any() for each in found) else None


def _find_invalid(array: pa.Array) -> npt.NDArray[np.bool_]:
    invalid_B = np.zeros(len(array), dtype=np.bool_)
    if is_ragged(array.type):
        values, offsets_B1 = _ragged(array)
        is_null = _find_item_nulls(values)
        if is_null is not None:
            invalid_B[np.repeat(np.arange(len(array)), np.diff(offsets_B1))[is_null]] = True
        return invalid_B
    size = 1
    items = array
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        items = array.values.slice(array.offset * size, len(array) * size)
        if array.null_count and not pa.types.is_floating(plain_type(items.type)):
            invalid_B |= array.is_null().to_numpy(zero_copy_only=False)
    is_null = _find_item_nulls(items)
    if is_null is not None:
        invalid_B |= is_null.reshape(len(array), size).any(axis=1)
    return invalid_B


def _find_item_nulls(items: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Return which items are null; None if none is, or a null is NaN."""
    items = _plain_array(items)
    if items.null_count == 0 or pa.types.is_floating(items.type):
        return None
    is_null: npt.NDArray[np.bool_] = items.is_null().to_numpy(zero_copy_only=False)
    return is_null


def plain_type(data_type: pa.DataType) -> pa.DataType:
    """The type of a column once dictionaries, runs and extensions are decoded."""
    while True:
        if pa.types.is_dictionary(data_type) or pa.types.is_run_end_encoded(data_type):
            data_type = data_type.value_type
        elif isinstance(data_type, pa.BaseExtensionType):
            data_type = data_type.storage_type
        else:
            return data_type


def is_ragged(data_type: pa.DataType) -> bool:
    """Return whether a column of the type becomes two arrays, values and offsets."""
    plain = plain_type(data_type)
    return bool(pa.types.is_list(plain) or pa.types.is_large_list(plain))


def _item_type(data_type: pa.DataType) -> pa.DataType | None:
    """The Arrow type whose memory is that of the array; None if there is no such array."""
    if pa.types.is_boolean(data_type) or data_type.id in _DTYPES:
        return data_type
    if pa.types.is_integer(data_type) or pa.types.is_temporal(data_type):
        return None if pa.types.is_interval(data_type) else pa.int64()
    return None


def _problem_of_type(data_type: pa.DataType) -> str | None:
    plain = plain_type(data_type)
    if is_ragged(plain) or pa.types.is_fixed_size_list(plain):
        items = plain_type(plain.value_type)
        kind = "a list of numbers or booleans"
    else:
        items, kind = plain, "a number, a boolean, a time or a list of these"
    if _item_type(items) is not None:
        return None
    return f"must be {kind} to become a tensor, got {data_type}; {_advice_for_type(items)}"


def _advice_for_type(data_type: pa.DataType) -> str:
    if _is_text(data_type):
        return "hashBucket it, or leave it out through training.columns"
    if pa.types.is_decimal(data_type):
        return "cast it to float64, or leave it out through training.columns"
    return "leave it out through training.columns"


def _is_text(data_type: pa.DataType) -> bool:
    checks = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(check(data_type) for check in checks)


def _name_clashes(schema: pa.Schema, weight_column: str | None) -> Iterator[tuple[str, str]]:
    if ROW_WEIGHT in schema.names and weight_column != ROW_WEIGHT:
        advice = "rename it, or make it training.weightColumn"
        yield ROW_WEIGHT, f"must not have the name of the weight in every batch; {advice}"
    if REQUEST_INDEX in schema.names:
        yield REQUEST_INDEX, "must not have the name of a batch's own tensor; rename it"
    for field in schema:
        for suffix in (VALUES_SUFFIX, OFFSETS_SUFFIX) if is_ragged(field.type) else ():
            if field.name + suffix in schema.names:
                clash = f"must not have the name of a tensor of the list column {field.name!r}"
                yield field.name + suffix, f"{clash}; rename one"
        values = field.name.removesuffix(OFFSETS_SUFFIX) + VALUES_SUFFIX
        if field.name.endswith(OFFSETS_SUFFIX) and values in schema.names:
            yield (
                field.name,
                f"must not be named as a list's tensors, beside {values!r}; rename one",
            )


def _column_arrays(name: str, column: pa.ChunkedArray) -> Iterator[tuple[str, Array]]:
    """The arrays of one column by name: one, or two for lists of different lengths."""
    if column.num_chunks == 1 and column.type.id in _DTYPES and column.null_count == 0:
        yield name, _view(column.chunk(0))  # most columns: a look at the type is all it costs
        return
    array = _plain_array(_one_chunk(column))
    if is_ragged(array.type):
        values, offsets_B1 = _ragged(array)
        yield name + VALUES_SUFFIX, _flat(name, values)
        yield name + OFFSETS_SUFFIX, offsets_B1
    elif pa.types.is_fixed_size_list(array.type):
        yield name, _fixed_BL(name, array)
    else:
        yield name, _flat(name, array)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """The column's values in one array, dictionaries decoded where there are several.

    pyarrow 26 unites unlike dictionaries wrongly for float16 (1.0 becomes 15360.0), and not at all
    where they hold nulls or together have more values than the index type.
    """
    if column.num_chunks == 1:
        return column.chunk(0)
    if column.num_chunks == 0:
        return column.combine_chunks()
    chunks = [_plain_items(_plain_array(chunk)) for chunk in column.chunks]
    return pa.concat_arrays(chunks)


def _plain_items(array: pa.Array) -> pa.Array:
    """A list array whose items are no dictionaries; any other array as it is."""
    if not (is_ragged(array.type) or pa.types.is_fixed_size_list(array.type)):
        return array
    items = array.type.value_type
    if not pa.types.is_dictionary(items):
        return array
    if pa.types.is_fixed_size_list(array.type):
        return array.cast(pa.list_(plain_type(items), array.type.list_size))
    make = pa.large_list if pa.types.is_large_list(array.type) else pa.list_
    return array.cast(make(plain_type(items)))


def _plain_array(array: pa.Array) -> pa.Array:
    """The array with dictionaries, runs and extensions decoded, as `plain_type` says."""
    while array.type != (plain := plain_type(array.type)):
        if isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        elif pa.types.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        else:
            array = array.dictionary_decode()
    assert array.type == plain
    return array


def _ragged(array: pa.Array) -> tuple[pa.Array, Array]:
    """The items of all lists in one array, and where each list starts and the last one ends."""
    if len(array) == 0:
        return array.values.slice(0, 0), np.zeros(1, dtype=np.int64)
    if array.null_count == 0:
        offsets_B1 = array.offsets.to_numpy().astype(np.int64)
        start, end = int(offsets_B1[0]), int(offsets_B1[-1])
        offsets_B1 -= start
        return array.values.slice(start, end - start), offsets_B1
    lengths_B = pc.list_value_length(array).fill_null(0).to_numpy()
    offsets_B1 = np.zeros(len(array) + 1, dtype=np.int64)
    np.cumsum(lengths_B, out=offsets_B1[1:])
    # flatten() leaves out what lies below null lists; of half floats in a dictionary pyarrow 26
    # cannot make an array without any, so they are decoded first.
    return _plain_items(array).flatten(), offsets_B1


def _fixed_BL(name: str, array: pa.Array) -> Array:
    size = array.type.list_size
    values = _plain_array(array.values.slice(array.offset * size, len(array) * size))
    if array.null_count:
        # A null list may have anything below it, so its items are made null one by one.
        is_null = array.is_null().take(pa.array(np.repeat(np.arange(len(array)), size)))
        values = pc.if_else(is_null, pa.scalar(None, values.type), values)
    return _flat(name, values).reshape(len(array), size)


def _flat(name: str, array: pa.Array) -> Array:
    """One dimension of scalars, a view of Arrow's memory where that is possible."""
    array = _plain_array(array)
    item_type = _item_type(array.type)
    if item_type is None:
        raise TrainingError(f"column {name!r}: {_problem_of_type(array.type)}")
    if array.null_count:
        array = _without_nulls(name, array)
    if pa.types.is_boolean(item_type):  # a bit each in Arrow, a byte each in numpy
        return _view(array.cast(pa.uint8())).view(np.bool_)
    return _view(_cast(name, array, item_type))


def _view(array: pa.Array) -> Array:
    """Numbers without nulls as they lie in Arrow's memory; read-only if that is."""
    dtype, data = _DTYPES[array.type.id], array.buffers()[1]
    if len(array) == 0 or data is None:
        return np.empty(0, dtype=dtype)
    view: Array = np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)
    return view


def _without_nulls(name: str, array: pa.Array) -> pa.Array:
    if not pa.types.is_floating(array.type):
        got = f"got {array.null_count} among {len(array)} values of type {array.type}"
        raise TrainingError(f"column {name!r}: must have no nulls, {got}; {_NULL_ADVICE}")
    return array.fill_null(pa.scalar(float("nan"), array.type))


def _cast(name: str, array: pa.Array, item_type: pa.DataType) -> pa.Array:
    """The array as `item_type`, which is without a copy if it is that already, or 64-bit ticks."""
    if array.type == item_type:
        return array
    if array.type == pa.date32() or pa.types.is_time32(array.type):
        array = array.cast(pa.int32())  # Arrow has no direct way to int64
    try:
        return array.cast(item_type)
    except pa.ArrowInvalid as error:
        largest = pc.max(array).as_py()
        rule = f"must be below 2**63 to become int64, got {largest}"
        raise TrainingError(
            f"column {name!r}: {rule}; hashBucket it, or leave it out through training.columns"
        ) from error


def _check_label(name: str, label_type: pa.DataType, arrays: Arrays) -> None:
    """Refuse labels that say nothing: nulls, which floats turn into NaN, and NaN itself."""
    label = arrays.get(name)
    if label is None:
        raise TrainingError(f"label column {name!r}: must hold one number a row, got {label_type}")
    is_float = np.issubdtype(label.dtype, np.floating)
    num_missing = int(np.isnan(label).sum()) if is_float else 0
    if num_missing:
        got = f"got {num_missing} null or NaN in {label.shape[0]} rows"
        raise TrainingError(f"label column {name!r}: must be known, {got}; {_NULL_ADVICE}")


def _row_weight(name: str | None, table: pa.Table, arrays: Arrays) -> Array:
    """float32 [B], finite and at least 0."""
    if name is None:
        return np.ones(table.num_rows, dtype=np.float32)
    weight_B = arrays.get(name)
    if weight_B is None or weight_B.ndim != 1:
        got = table.schema.field(name).type
        raise TrainingError(f"weight column {name!r}: must hold one number a row, got {got}")
    with np.errstate(over="ignore"):  # what is too large is infinite, and refused as such
        weight_B = weight_B.astype(np.float32)
    is_bad_B = ~(np.isfinite(weight_B) & (weight_B >= 0))
    if is_bad_B.any():
        got = f"got {int(is_bad_B.sum())} others in {table.num_rows} rows"
        first = f"such as {weight_B[is_bad_B][0].item()!r}"
        raise TrainingError(
            f"weight column {name!r}: must be finite and at least 0, {got}, {first}; {_NULL_ADVICE}"
        )
    return weight_B
