"""The columns of a row group, in either layout of its file.

A nested file (docs/nested-tables.md) has a row per request: the request's columns once, all others
as lists with an item per impression. It is plain Parquet, so any peer can read it. A peer that
knows the layout works on a request's columns once, and gathers them by each row's request or
delivers them once. In a flat file the rows of a request are adjacent, and the first has its
columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]

# The number of impressions of each request, a column of nested files.
COUNT_COLUMN: Final = "_lastmile_num_rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Columns, each in one chunk.

    Args:
        arrays: by name; with a value per row, or per request.
        num_rows: rows of the flat table.
        once: columns whose arrays have a value per request.
        request_of: the number of each row's request, ascending; None if nothing needs it.
        first_of: the row with each request's columns; None if the arrays have a value per request.
    """

    arrays: Mapping[str, pa.Array]
    num_rows: int
    once: frozenset[str] = frozenset()
    request_of: Int64s | None = None
    first_of: Int64s | None = None

    def places(self, name: str, rows: Int64s | None) -> Any:
        """Return the places of the rows' values; None if they are all in place."""
        if self.request_of is None or name not in self.once:
            return rows
        return self.request_of if rows is None else self.request_of[rows]

    def places_once(self, requests: Int64s) -> Int64s:
        """Return the places of the requests' columns."""
        return requests if self.first_of is None else self.first_of[requests]


def requests_of(columns: Columns, rows: Int64s | None) -> tuple[Int64s, Int64s]:
    """Return the requests of the given rows (None: all), and the index of each row's request."""
    assert columns.request_of is not None
    codes = columns.request_of if rows is None else columns.request_of[rows]
    is_first = _is_first(codes)
    return codes[is_first], np.cumsum(is_first) - 1


def flat_columns(table: pa.Table, request_key: str | None = None) -> Columns:
    """Return the columns of a flat table; with a key, adjacent rows that share it are a request."""
    arrays = {name: _one_chunk(table.column(name)) for name in table.column_names}
    if request_key is None:
        return Columns(arrays=arrays, num_rows=table.num_rows)
    is_first = _is_first(arrays[request_key].to_numpy())
    return Columns(
        arrays=arrays,
        num_rows=table.num_rows,
        request_of=np.cumsum(is_first) - 1,
        first_of=np.flatnonzero(is_first),
    )


def _is_first(keys: Array) -> npt.NDArray[np.bool_]:
    """Return whether each key differs from the previous one."""
    is_first = np.ones(len(keys), dtype=np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    return is_first


def nested_columns(table: pa.Table, once: frozenset[str]) -> Columns:
    """Return the columns of a nested table with `COUNT_COLUMN`; all but `once` are lists."""
    counts = _one_chunk(table.column(COUNT_COLUMN)).to_numpy()
    arrays = {name: _one_chunk(table.column(name)) for name in table.column_names}
    return Columns(
        arrays={n: a if n in once else a.flatten() for n, a in arrays.items() if n != COUNT_COLUMN},
        num_rows=int(counts.sum()),
        once=once,
        request_of=np.repeat(np.arange(len(counts)), counts),
    )


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Return the column in one chunk, without a copy if it has only one."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
