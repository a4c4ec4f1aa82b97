"""The columns of a model's inputs: a sample of them, and the rows that no model can take."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline_runtime.arrays.conversion import check_tensor_schema, find_invalid_rows
from pipeline_runtime.steps.checks import Checks, find_field

# Several rows, since a model may drop the dimension of a single one.
_ROWS = 4


def choose_inputs(schema: pa.Schema, names: Sequence[str], field: str = "inputs") -> pa.Schema:
    """Return the columns of a schema that a model reads. Raises a broken rule for unknown ones."""
    checks, fields = Checks(""), []
    for index, name in enumerate(names):
        with checks.at(f"{field}[{index}]"):
            fields.append(find_field(schema, name))
    checks.finish()
    return pa.schema(fields)


def check_tensors(schema: pa.Schema, field: str = "inputs") -> None:
    """Raise a broken rule for every column that cannot become a tensor."""
    checks = Checks("")
    for name, message in check_tensor_schema(schema):
        checks.add(field, f"the column {name!r} {message}")
    checks.finish()


def find_invalid(rows: pa.Table) -> dict[str, npt.NDArray[np.bool_]]:
    """Return, by column, which rows have a null that no tensor has: a null float is NaN."""
    found = {name: find_invalid_rows(rows.column(name)) for name in rows.schema.names}
    return {name: invalid for name, invalid in found.items() if invalid is not None}


def build_zeros(schema: pa.Schema) -> pa.Table:
    """Return a table of several rows of zeros and empty values."""
    columns = [_build_zeros(field.type, _ROWS) for field in schema]
    return pa.table(columns, schema=pa.schema([f.with_nullable(True) for f in schema]))


def _build_zeros(kind: pa.DataType, num_rows: int) -> pa.Array:
    if pa.types.is_dictionary(kind):
        indices = pa.array(np.zeros(num_rows), kind.index_type, safe=False)
        return pa.DictionaryArray.from_arrays(indices, _build_zeros(kind.value_type, 1))
    if pa.types.is_fixed_size_list(kind):
        items = _build_zeros(kind.value_type, num_rows * kind.list_size)
        return pa.FixedSizeListArray.from_arrays(items, type=kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.array([[]] * num_rows, kind)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.array([""] * num_rows, kind)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([b""] * num_rows, kind)
    try:
        return pa.array([0] * num_rows).cast(kind)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return pa.nulls(num_rows, kind)
