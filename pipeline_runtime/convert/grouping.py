"""A window of flat rows to rows of requests: the heart of the conversion, without any I/O.

Rows with one request key come together where the first of them stood, and share a row of the result
as long as all request columns are equal byte by byte. A null key is no key: its rows stay alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline_runtime.sources.equality import BoolArray, Int64Array, rows_equal
from pipeline_runtime.sources.gather import one_chunk
from pipeline_runtime.sources.parquet.nested import NestedLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """A window's requests, as they are stored, and what was met on the way."""

    table: pa.Table  # a row a request
    num_rows: int  # flat
    null_keys: int  # rows without a key
    mismatches: int  # rows that differ from the one before in their key's request columns


def group_rows(rows: pa.Table, layout: NestedLayout) -> Grouped:
    """Group a window of flat rows, at least one, of the layout's columns."""
    rows = rows.combine_chunks()
    key = _array(rows, layout.request_key)
    places = first_places(key)
    if np.any(places[1:] < places[:-1]):
        order = np.argsort(places, kind="stable")
        rows, places = rows.take(pa.array(order)).combine_chunks(), places[order]
    same_key = np.asarray(places[1:] == places[:-1])
    same = _equal_to_previous(rows, layout, same_key)
    starts = np.concatenate([[0], np.flatnonzero(~same) + 1])
    return Grouped(
        table=_nest(rows, layout, starts),
        num_rows=rows.num_rows,
        null_keys=key.null_count,
        mismatches=int(same_key.sum() - same.sum()),
    )


def first_places(key: pa.Array) -> Int64Array:
    """Return for each row the first row with an equal key; a row without a key has itself."""
    if isinstance(key, pa.ExtensionArray):
        key = key.storage
    codes = key.dictionary_encode().indices
    places = np.arange(len(key))
    valid = codes.is_valid().to_numpy(zero_copy_only=False)
    known = codes.drop_null().to_numpy()
    _, first = np.unique(known, return_index=True)  # codes are 0, 1, … as their values appear
    places[valid] = places[valid][first][known]
    return places


def _array(rows: pa.Table, name: str) -> pa.Array:
    """A column of a window as one array."""
    return one_chunk(rows.column(name))


def _equal_to_previous(rows: pa.Table, layout: NestedLayout, same_key: BoolArray) -> BoolArray:
    """Return for each i whether row i + 1 belongs to the request of row i."""
    pairs = np.flatnonzero(same_key)
    for name in layout.request_columns:
        if name != layout.request_key:
            pairs = pairs[rows_equal(_array(rows, name), pairs, pairs + 1)]
    same = np.zeros(len(same_key), dtype=np.bool_)
    same[pairs] = True
    return same


def _nest(rows: pa.Table, layout: NestedLayout, starts: Int64Array) -> pa.Table:
    schema = layout.stored_schema(rows.schema)
    ends = np.append(starts, rows.num_rows).astype(np.int32)
    offsets, first = pa.array(ends), pa.array(starts)
    arrays = [pa.array(np.diff(ends))]
    for name in layout.columns:
        column = _array(rows, name)
        if layout.is_request_column(name):
            arrays.append(column.take(first))
        else:
            kind = schema.field(name).type
            arrays.append(pa.ListArray.from_arrays(offsets, column, type=kind))
    return pa.Table.from_arrays(arrays, schema=schema)
