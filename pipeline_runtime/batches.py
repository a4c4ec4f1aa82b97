"""Arrow tables as batches of CPU tensors, and those on the trainer's device.

Owned here: which Arrow type becomes which tensor, and what a null becomes. The feed runs before,
with tables that hold the rows of one mini-batch; the training loop runs after.

    bool                                      bool [B]
    int8, int16, int32, int64, uint8          the same integer [B]
    uint16, uint32, uint64                    int64 [B]; 2**63 and more is refused
    float16, float32, float64                 the same float [B]; null becomes NaN
    date, time, timestamp, duration           int64 [B], days or ticks in the column's own unit
    dictionary, run-end encoded, extension    as the type of its values
    fixed_size_list<T>[L]                     T [B, L]
    list<T>, large_list<T>                    `name.values` T [N], `name.offsets` int64 [B+1] from 0

Nulls of anything but floats are refused, since no integer says "missing"; a null list of no fixed
size is an empty one.

Shapes: B rows, L items of a fixed-size list, N items of all lists of a column.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch.utils.dlpack import from_dlpack

from pipeline_runtime.errors import TrainingError
from pipeline_runtime.request_tables import requests_of
from pipeline_runtime.steps.base import REQUEST_COLUMN, public_schema

# float32 [B] in every batch: the weight column's value, or 1; 0 for the rows of padding.
ROW_WEIGHT = "row_weight"
# int64 [B]: the row of a request's tensors that belongs to each row, where requests stand once.
REQUEST_INDEX = "request_index"
# The two tensors of a list column are named after it with these endings.
VALUES_SUFFIX = ".values"
OFFSETS_SUFFIX = ".offsets"

Batch = dict[str, torch.Tensor]

_NULL_ADVICE = "fillNull or filter it before training"
_SIGNED_AND_BYTE = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8())
# Most columns: a look at the type is all that they cost a batch.
_AS_THEY_ARE = frozenset((*_SIGNED_AND_BYTE, pa.float16(), pa.float32(), pa.float64()))


def check_tensor_schema(
    schema: pa.Schema, *, weight_column: str | None = None
) -> list[tuple[str, str]]:
    """Say which columns cannot become tensors, before anything runs.

    Args:
        schema: of the tables that `to_batch` will get.
        weight_column: the column that may be called `row_weight`, since it is the row weight.

    Returns:
        (column, message) for each column that is in the way, in the schema's order.
    """
    schema = public_schema(schema)
    messages = [(field.name, _problem_of_type(field.type)) for field in schema]
    problems = [(name, message) for name, message in messages if message is not None]
    return problems + list(_name_clashes(schema, weight_column))


def to_batch(
    table: pa.Table,
    *,
    weight_column: str | None,
    label_column: str | None,
    writable: bool = True,
) -> Batch:
    """Convert the rows of a table to CPU tensors, without a copy where Arrow's memory allows.

    Args:
        table: the B rows; columns of Lastmile's own (`_lastmile_…`) are left out, but for
            `REQUEST_COLUMN`, of which come `request_index` and tensors of Q requests.
        weight_column: whose values become `row_weight`; every row weighs 1 when None.
        label_column: may hold neither nulls nor NaN.
        writable: copy what Arrow holds read-only (shared memory, a mapped file), so that a training
            loop may work in place; False where the batch is copied to another device anyway.

    Raises:
        TrainingError: a null or a value that has no place in its tensor; names column and count.
    """
    batch: Batch = {}
    for field in public_schema(table.schema):
        batch.update(_column_tensors(field.name, table.column(field.name), writable))
    if REQUEST_COLUMN in table.schema.names:
        requests, index_B = requests_of(table)
        batch[REQUEST_INDEX] = torch.from_numpy(index_B)
        for name, column in zip(requests.schema.names, requests.columns, strict=True):
            tensors = dict(_column_tensors(name, column, False))
            # A request may have rows in the next batch too, which must not see what is written.
            batch |= {n: t.clone() for n, t in tensors.items()} if writable else tensors
    if label_column is not None:
        _check_label(label_column, table.column(label_column).type, batch)
    batch[ROW_WEIGHT] = _row_weight(weight_column, table, batch)
    return batch


def pin(batch: Batch) -> Batch:
    """The batch in memory that a GPU copies from by itself."""
    return {name: tensor.pin_memory() for name, tensor in batch.items()}


def to_device(batch: Batch, device: torch.device | str) -> Batch:
    """Copy a batch to a device; to a GPU through pinned memory, without waiting for the copy."""
    device = torch.device(device)
    if device.type != "cuda":
        return {name: tensor.to(device) for name, tensor in batch.items()}
    return {name: tensor.to(device, non_blocking=True) for name, tensor in pin(batch).items()}


def empty_batch(schema: pa.Schema, request_columns: Collection[str] = ()) -> Batch:
    """One row of zeros that weighs nothing, for a rank without rows; its lists are empty.

    Args:
        schema: of the batches' columns.
        request_columns: those that batches carry once a request, if any.
    """
    none = to_batch(schema.empty_table(), weight_column=None, label_column=None)
    batch = {name: tensor.new_zeros((1, *tensor.shape[1:])) for name, tensor in none.items()}
    for field in public_schema(schema):
        if is_ragged(field.type):
            batch[field.name + VALUES_SUFFIX] = none[field.name + VALUES_SUFFIX]
            batch[field.name + OFFSETS_SUFFIX] = torch.zeros(2, dtype=torch.int64)
    if request_columns:
        batch[REQUEST_INDEX] = torch.zeros(1, dtype=torch.int64)
    return batch


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
    """Whether a column of the type becomes two tensors, values and offsets."""
    plain = plain_type(data_type)
    return bool(pa.types.is_list(plain) or pa.types.is_large_list(plain))


def _item_type(data_type: pa.DataType) -> pa.DataType | None:
    """The Arrow type whose memory is that of the tensor; None if there is no such tensor."""
    if pa.types.is_boolean(data_type) or pa.types.is_floating(data_type):
        return data_type
    if data_type in _SIGNED_AND_BYTE:
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


def _column_tensors(
    name: str, column: pa.ChunkedArray, writable: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of one column by name: one, or two for lists of different lengths."""
    if column.num_chunks == 1 and column.type in _AS_THEY_ARE and column.null_count == 0:
        yield name, _tensor(column.chunk(0), writable)
        return
    array = _plain_array(_one_chunk(column))
    if is_ragged(array.type):
        values, offsets_B1 = _ragged(array)
        yield name + VALUES_SUFFIX, _flat_tensor(name, values, writable)
        yield name + OFFSETS_SUFFIX, offsets_B1
    elif pa.types.is_fixed_size_list(array.type):
        yield name, _fixed_tensor_BL(name, array, writable)
    else:
        yield name, _flat_tensor(name, array, writable)


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


def _ragged(array: pa.Array) -> tuple[pa.Array, torch.Tensor]:
    """The items of all lists in one array, and where each list starts and the last one ends."""
    if len(array) == 0:
        return array.values.slice(0, 0), torch.zeros(1, dtype=torch.int64)
    if array.null_count == 0:
        offsets_B1 = from_dlpack(array.offsets).to(torch.int64, copy=True)
        offsets_B1 -= offsets_B1[0].item()
        start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return array.values.slice(start, end - start), offsets_B1
    lengths_B = from_dlpack(pc.list_value_length(array).fill_null(0))
    offsets_B1 = torch.zeros(len(array) + 1, dtype=torch.int64)
    torch.cumsum(lengths_B, 0, out=offsets_B1[1:])
    return array.flatten(), offsets_B1  # flatten() leaves out what lies below null lists


def _fixed_tensor_BL(name: str, array: pa.Array, writable: bool) -> torch.Tensor:
    size = array.type.list_size
    values = _plain_array(array.values.slice(array.offset * size, len(array) * size))
    if array.null_count:
        # A null list may have anything below it, so its items are made null one by one.
        rows = pa.array(torch.arange(len(array)).repeat_interleave(size).numpy())
        is_null = array.is_null().take(rows)
        values = pc.if_else(is_null, pa.scalar(None, values.type), values)
    return _flat_tensor(name, values, writable).reshape(len(array), size)


def _flat_tensor(name: str, array: pa.Array, writable: bool) -> torch.Tensor:
    """One dimension of scalars as a tensor, a view of Arrow's memory where that is possible."""
    array = _plain_array(array)
    item_type = _item_type(array.type)
    if item_type is None:
        raise TrainingError(f"column {name!r}: {_problem_of_type(array.type)}")
    if array.null_count:
        array = _without_nulls(name, array)
    if pa.types.is_boolean(item_type):  # a bit each in Arrow, a byte each in torch
        return from_dlpack(array.cast(pa.uint8())).view(torch.bool)
    return _tensor(_cast(name, array, item_type), writable)


def _tensor(array: pa.Array, writable: bool) -> torch.Tensor:
    """Numbers without nulls as a tensor over Arrow's memory, or of its own where it must be."""
    tensor: torch.Tensor = from_dlpack(array)
    data = array.buffers()[1]
    return tensor.clone() if writable and data is not None and not data.is_mutable else tensor


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


def _check_label(name: str, label_type: pa.DataType, batch: Batch) -> None:
    """Refuse labels that say nothing: nulls, which floats turn into NaN, and NaN itself."""
    label = batch.get(name)
    if label is None:
        raise TrainingError(f"label column {name!r}: must hold one number a row, got {label_type}")
    num_missing = int(torch.isnan(label).sum()) if label.is_floating_point() else 0
    if num_missing:
        got = f"got {num_missing} null or NaN in {label.shape[0]} rows"
        raise TrainingError(f"label column {name!r}: must be known, {got}; {_NULL_ADVICE}")


def _row_weight(name: str | None, table: pa.Table, batch: Batch) -> torch.Tensor:
    """float32 [B], finite and at least 0."""
    if name is None:
        return torch.ones(table.num_rows)
    weight_B = batch.get(name)
    if weight_B is None or weight_B.dim() != 1:
        got = table.schema.field(name).type
        raise TrainingError(f"weight column {name!r}: must hold one number a row, got {got}")
    weight_B = weight_B.to(torch.float32, copy=True)
    is_bad_B = ~(torch.isfinite(weight_B) & (weight_B >= 0))
    if is_bad_B.any():
        got = f"got {int(is_bad_B.sum())} others in {table.num_rows} rows"
        first = f"such as {weight_B[is_bad_B][0].item()!r}"
        raise TrainingError(
            f"weight column {name!r}: must be finite and at least 0, {got}, {first}; {_NULL_ADVICE}"
        )
    return weight_B
