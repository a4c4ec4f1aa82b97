"""Takes `REQUEST_COLUMN` apart: `conversion` makes arrays of the requests of a table's rows.

`feed.making.stage_rows` makes the column for a whole chunk; a table may be cut from several chunks.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipeline_runtime.sources.gather import Int64s, one_chunk, take_rows
from pipeline_runtime.steps.base import REQUEST_COLUMN


def requests_of(table: pa.Table) -> tuple[pa.Table, Int64s]:
    """The requests of a table's rows, without those that have no row in it, and each row's.

    Requests come in the order of their places in the chunks that the table was cut from.
    """
    tables, indices, first = [], [], 0
    for chunk in table.column(REQUEST_COLUMN).chunks:
        requests, index = _used(chunk)
        tables.append(requests)
        indices.append(index + first)
        first += requests.num_rows
    if not tables:
        values = table.schema.field(REQUEST_COLUMN).type.value_type
        return pa.schema(list(values)).empty_table(), np.zeros(0, dtype=np.int64)
    return pa.concat_tables(tables), np.concatenate(indices)


def copy_rows(table: pa.Table) -> pa.Table:
    """The rows in memory of their own, which a slice shares with all rows of its table."""
    if REQUEST_COLUMN in table.schema.names:
        requests, index = requests_of(table)
        arrays = [one_chunk(column) for column in _copy(requests).columns]
        values = pa.StructArray.from_arrays(arrays, fields=list(requests.schema))
        column = pa.DictionaryArray.from_arrays(pa.array(index, pa.int32()), values)
        return _copy(table.drop_columns([REQUEST_COLUMN])).append_column(REQUEST_COLUMN, column)
    return _copy(table)


def _copy(table: pa.Table) -> pa.Table:
    """Copy a table through Arrow's format, which stores only the rows of a slice."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()


def _used(chunk: pa.DictionaryArray) -> tuple[pa.Table, Int64s]:
    """The entries that a slice of rows uses: views where they lie together, as they mostly do."""
    codes = chunk.indices.to_numpy().astype(np.int64)
    if len(codes) == 0:
        return _table(chunk.dictionary.slice(0, 0)), codes
    first, last = int(codes.min()), int(codes.max())
    is_used = np.zeros(last - first + 1, dtype=np.bool_)
    codes -= first
    is_used[codes] = True
    if is_used.all():
        return _table(chunk.dictionary.slice(first, last - first + 1)), codes
    places = np.flatnonzero(is_used) + first
    requests = _table(chunk.dictionary)
    taken = [take_rows(column, places) for column in requests.columns]
    return (
        pa.Table.from_arrays(taken, schema=requests.schema),
        (np.cumsum(is_used) - 1)[codes],
    )


def _table(values: pa.StructArray) -> pa.Table:
    fields = list(values.type)
    arrays = [values.field(i) for i in range(len(fields))]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))
