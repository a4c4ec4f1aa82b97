"""The forms in which a `map` function takes and returns a batch: Arrow, Numpy, Torch.

A table becomes the form and the function's result becomes a table again. Torch is imported only
when a step asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline_runtime.errors import StepError
from pipeline_runtime.sources.gather import one_chunk
from pipeline_runtime.steps.checks import broken
from pipeline_runtime.steps.list_columns import decode, decoded_type

# Types by column name that the result should have, as far as they are known.
Types = Mapping[str, pa.DataType]


class BatchFormat(Protocol):
    """One form of a batch."""

    carries_row_hash: bool  # whether ROW_HASH_COLUMN (uint64) survives the form

    def check_input(self, schema: pa.Schema) -> None:
        """Raise `ManifestError` for a column that the form cannot hold."""
        ...

    def to_batch(self, table: pa.Table) -> Any:
        """The table in this form."""
        ...

    def to_table(self, result: Any, types: Types) -> pa.Table:
        """The function's result as a table; `StepError` if it is not of this form."""
        ...


class ArrowFormat:
    """`pa.Table` in, `pa.Table` (or `pa.RecordBatch`) out."""

    carries_row_hash = True

    def check_input(self, schema: pa.Schema) -> None:
        return

    def to_batch(self, table: pa.Table) -> pa.Table:
        return table

    def to_table(self, result: Any, types: Types) -> pa.Table:
        if isinstance(result, pa.RecordBatch):
            return pa.Table.from_batches([result])
        if not isinstance(result, pa.Table):
            raise StepError(f"must return a pyarrow.Table, got {_describe(result)}")
        return result


class NumpyFormat:
    """dict of arrays in and out.

    Fixed-size lists are two-dimensional; strings and ragged lists are object arrays; null is NaN in
    a float column and None in an object one, and an error in integers and booleans.
    """

    carries_row_hash = True

    def check_input(self, schema: pa.Schema) -> None:
        return

    def to_batch(self, table: pa.Table) -> dict[str, np.ndarray]:
        return {name: to_numpy(name, table.column(name)) for name in table.schema.names}

    def to_table(self, result: Any, types: Types) -> pa.Table:
        if not isinstance(result, Mapping):
            raise StepError(f"must return a dict of numpy arrays, got {_describe(result)}")
        columns = {name: from_numpy(name, v, types.get(name)) for name, v in result.items()}
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise StepError(f"must return arrays of one length, got {lengths}")
        return pa.table(columns)


class TorchFormat:
    """dict of tensors in and out: numbers, booleans, and fixed-size lists of them."""

    carries_row_hash = False

    def check_input(self, schema: pa.Schema) -> None:
        for field in schema:
            if not _is_tensor_type(decoded_type(field.type)):
                raise broken(
                    "torch tensors must be of numbers, booleans or fixed-size lists of them, got "
                    f"{field.name!r} of type {field.type}; leave it out with inputColumns, or pad "
                    "or hash it first"
                )

    def to_batch(self, table: pa.Table) -> dict[str, Any]:
        import torch

        def to_tensor(array: np.ndarray) -> Any:
            # Arrow's buffers are read-only and torch has no such tensors, so those are copied.
            return torch.from_numpy(array if array.flags.writeable else array.copy())

        return {name: to_tensor(v) for name, v in NumpyFormat().to_batch(table).items()}

    def to_table(self, result: Any, types: Types) -> pa.Table:
        import torch

        tensors = isinstance(result, Mapping) and all(
            isinstance(value, torch.Tensor) for value in result.values()
        )
        if not tensors:
            raise StepError(f"must return a dict of torch tensors, got {_describe(result)}")
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in result.items()}
        return NumpyFormat().to_table(arrays, types)


FORMATS: Mapping[str, BatchFormat] = {
    "Arrow": ArrowFormat(),
    "Numpy": NumpyFormat(),
    "Torch": TorchFormat(),
}


def to_numpy(name: str, column: pa.ChunkedArray) -> np.ndarray:
    """Return a column as an array, without a copy where Arrow allows it."""
    array = decode(one_chunk(column))
    if pa.types.is_fixed_size_list(array.type):
        _refuse_nulls(name, array)
        return to_numpy(name, pa.chunked_array([array.flatten()])).reshape(
            len(array), array.type.list_size
        )
    if pa.types.is_integer(array.type) or pa.types.is_boolean(array.type):
        _refuse_nulls(name, array)
    return np.asarray(array.to_numpy(zero_copy_only=False))


def from_numpy(name: str, values: Any, data_type: pa.DataType | None) -> pa.Array:
    """Return an array of a result as a column; the type counts where numpy has none."""
    array = np.asarray(values)
    if array.ndim == 2:
        item = pa.array(np.ascontiguousarray(array).ravel())
        return pa.FixedSizeListArray.from_arrays(item, type=pa.list_(item.type, array.shape[1]))
    if array.ndim != 1:
        raise StepError(
            f"must return arrays of one or two dimensions, got {name!r} of shape {array.shape}"
        )
    if array.dtype != object:
        column = pa.array(array)
        both_times = data_type is not None and _are_times(column.type, data_type)
        return pc.cast(column, data_type) if both_times else column
    try:
        return pa.array(array, type=data_type)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise StepError(
            f"must return values of one type, got column {name!r} that is not "
            f"{data_type or 'of one'}: {error}"
        ) from error


def _refuse_nulls(name: str, array: pa.Array) -> None:
    if array.null_count:
        raise StepError(
            f"must have no nulls in columns of type {array.type} to become an array, got "
            f"{array.null_count} in {name!r}; fill them with fillNull first"
        )


def _are_times(left: pa.DataType, right: pa.DataType) -> bool:
    return bool(pa.types.is_temporal(left) and pa.types.is_temporal(right))


def _is_tensor_type(data_type: pa.DataType) -> bool:
    if pa.types.is_fixed_size_list(data_type):
        return _is_tensor_type(data_type.value_type)
    numeric = pa.types.is_integer(data_type) or pa.types.is_floating(data_type)
    return bool(numeric or pa.types.is_boolean(data_type))


def _describe(value: Any) -> str:
    if isinstance(value, Mapping):
        kinds = {name: type(item).__name__ for name, item in value.items()}
        return f"a dict of {kinds}"
    return type(value).__name__
