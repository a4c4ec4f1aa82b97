"""What rows of one request share, once a batch: tensors of requests, and which is each row's.

A batch in this form has, beside its tensors of B rows, `request_index` int64 [B], and the columns
that requests share as tensors of Q requests: the same names and types, Q in place of B. Only
requests that have a row in the batch are in it. `expand` gives a value a row;
`expand_rows` does so for whatever a model has computed of requests.

Shapes: B rows, Q requests, N items of all lists of a column.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import torch

from pipeline_runtime.sources.gather import take_rows
from pipeline_runtime.steps.base import REQUEST_COLUMN

# int64 [B]: the row of a request's tensors that belongs to each row of the batch.
REQUEST_INDEX = "request_index"
_VALUES, _OFFSETS = ".values", ".offsets"


def requests_of(table: pa.Table) -> tuple[pa.Table, torch.Tensor]:
    """The requests of a table's rows, without those that have no row in it, and `request_index`.

    Requests come in the order of their places in the pieces that the table was cut from.
    """
    tables, indices, first = [], [], 0
    for chunk in table.column(REQUEST_COLUMN).chunks:
        requests, index = _used(chunk)
        tables.append(requests)
        indices.append(index + first)
        first += requests.num_rows
    if not tables:
        values = table.schema.field(REQUEST_COLUMN).type.value_type
        return pa.schema(list(values)).empty_table(), torch.zeros(0, dtype=torch.int64)
    return pa.concat_tables(tables), torch.from_numpy(np.concatenate(indices))


def _used(chunk: pa.DictionaryArray) -> tuple[pa.Table, np.ndarray]:
    """The entries that a slice of rows uses: views where they lie together, as they mostly do."""
    codes = chunk.indices.to_numpy().astype(np.int64)
    if len(codes) == 0:
        return _table(chunk.dictionary.slice(0, 0)), codes
    first, last = int(codes.min()), int(codes.max())
    is_used = np.zeros(last - first + 1, dtype=np.bool_)
    is_used[codes - first] = True
    if is_used.all():
        return _table(chunk.dictionary.slice(first, last - first + 1)), codes - first
    places = np.flatnonzero(is_used) + first
    requests = _table(chunk.dictionary)
    taken = [take_rows(column, places) for column in requests.columns]
    return (
        pa.Table.from_arrays(taken, schema=requests.schema),
        (np.cumsum(is_used) - 1)[codes - first],
    )


def _table(values: pa.StructArray) -> pa.Table:
    fields = list(values.type)
    arrays = [values.field(i) for i in range(len(fields))]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def expand_rows(values: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """[Q, …] as [B, …]: each row's of what was computed once a request; gradients add up."""
    return values.index_select(0, batch[REQUEST_INDEX])


def expand(batch: dict[str, torch.Tensor], columns: Collection[str]) -> dict[str, torch.Tensor]:
    """The batch with a value a row of these columns, which stand once a request in it."""
    flat = dict(batch)
    for name in columns:
        if name in flat:
            flat[name] = expand_rows(flat[name], batch)
        else:
            values, offsets = flat[name + _VALUES], flat[name + _OFFSETS]
            flat[name + _VALUES], flat[name + _OFFSETS] = expand_lists(
                values, offsets, batch[REQUEST_INDEX]
            )
    return flat


def expand_lists(
    values_N: torch.Tensor, offsets_Q1: torch.Tensor, index_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Lists of Q requests as the lists of B rows: values [M] and offsets [B + 1]."""
    lengths_B = offsets_Q1.diff()[index_B]
    offsets_B1 = torch.nn.functional.pad(lengths_B.cumsum(0), (1, 0))
    num_items = int(offsets_B1[-1])
    shift_B = offsets_Q1[index_B] - offsets_B1[:-1]
    places_M = torch.arange(num_items, device=values_N.device)
    places_M += torch.repeat_interleave(shift_B, lengths_B, output_size=num_items)
    return values_N[places_M], offsets_B1
