"""Find requests in flat rows, for a table that is not stored by request.

Consecutive rows share an entry if their keys are equal and all request columns are equal byte by
byte. Steps that read only those columns then run once per request (`stage_rows`). A null key never
matches. Rows of a request that are not adjacent have several entries; `lastmile convert` stores
them together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipeline_runtime.sources.equality import BoolArray, equal_to_previous
from pipeline_runtime.sources.gather import Int64s, one_chunk, take_rows
from pipeline_runtime.sources.rows import RequestRows

# With fewer, to compare the rows costs more than it saves: `python -m benchmarks.deduplication`.
MIN_ROWS_PER_REQUEST = 4.0


def find_requests(rows: pa.Table, key: str, request_columns: Sequence[str]) -> RequestRows | None:
    """The rows by request, in their order; None if there are too few rows a request to pay.

    Args:
        rows: with the key and the request columns among their columns.
        request_columns: that are kept once a request; the key may be one of them.
    """
    if rows.num_rows < 2:
        return None
    values = _array(rows, key)
    same = equal_to_previous(values)
    if values.null_count:
        same &= values.is_valid().to_numpy(zero_copy_only=False)[1:]
    if not _pays(same):
        return None
    for name in request_columns:
        if name != key:
            same &= _same_as_previous(_array(rows, name))
    if not _pays(same):
        return None
    starts = np.flatnonzero(np.append(True, ~same))
    each = [name for name in rows.schema.names if name not in request_columns]
    return RequestRows(
        requests=_take(rows.select(list(request_columns)), starts),
        impressions=rows.select(each),
        counts=np.diff(np.append(starts, rows.num_rows)),
    )


def unfold(rows: pa.Table) -> pa.Table:
    """The rows with each list that was read once (`Source.read`) as often as it stands."""
    if not any(_is_folded(data_type) for data_type in rows.schema.types):
        return rows
    every = np.arange(rows.num_rows)
    folded = [name for name in rows.column_names if _is_folded(rows.schema.field(name).type)]
    plain = _take(rows.select(folded), every)
    for name in folded:
        index = rows.schema.get_field_index(name)
        rows = rows.set_column(index, plain.schema.field(name), plain.column(name))
    return rows


def _take(rows: pa.Table, places: Int64s) -> pa.Table:
    """The rows at these places, of lists as what they are."""
    columns = [_take_folded(column, places) for column in rows.columns]
    pairs = zip(rows.schema, columns, strict=True)
    fields = [field.with_type(column.type) for field, column in pairs]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields, rows.schema.metadata))


def _take_folded(column: pa.ChunkedArray, places: Int64s) -> pa.ChunkedArray:
    """The values at these places, lists themselves where the column has places of lists."""
    if not _is_folded(column.type):
        return take_rows(column, places)
    [chunk] = column.chunks  # of one row group
    codes = chunk.indices.to_numpy()[places].astype(np.int64)
    if np.array_equal(codes, np.arange(len(chunk.dictionary))):
        return pa.chunked_array([chunk.dictionary])
    return take_rows(pa.chunked_array([chunk.dictionary]), codes)


def _is_folded(data_type: pa.DataType) -> bool:
    if not pa.types.is_dictionary(data_type):
        return False
    values = data_type.value_type
    return bool(pa.types.is_list(values) or pa.types.is_large_list(values))


def _same_as_previous(array: pa.Array) -> BoolArray:
    """Return `equal_to_previous`; of folded lists, compare only different places."""
    if not _is_folded(array.type):
        return equal_to_previous(array)
    codes = array.indices.to_numpy()
    is_next = codes[1:] != codes[:-1]  # places ascend, by one at most
    same: BoolArray = ~is_next
    same[is_next] = equal_to_previous(array.dictionary)[codes[:-1][is_next]]
    return same


def _pays(same: np.ndarray) -> bool:
    num_rows = len(same) + 1
    return num_rows >= MIN_ROWS_PER_REQUEST * (num_rows - int(same.sum()))


def _array(rows: pa.Table, name: str) -> pa.Array:
    return one_chunk(rows.column(name))
