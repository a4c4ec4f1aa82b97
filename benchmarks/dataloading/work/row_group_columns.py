"""The columns of a row group, whichever layout its file has.

A nested file (docs/nested-tables.md) has a row a request: the request's columns once, all others as
lists with an item for each impression. Plain Parquet, so any peer can read it; who knows what it is
works on a request's columns once, and gathers them by the number of each row's request, or hands
them on once. In a flat file rows of a request are neighbours, and the first one has its columns.
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

# Impressions of each request, beside the data of a nested file.
COUNT_COLUMN: Final = "_lastmile_num_rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Columns in one piece each.

    Args:
        arrays: by name; of the rows, or of their requests.
        num_rows: rows of the flat table.
        once: columns whose arrays are of requests.
        request_of: the number of each row's request, ascending; None where nobody asks.
        first_of: the row of each request that has its columns; None where the arrays have them.
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
    """The requests that have one of those rows (None: all), and which of them each row's is."""
    assert columns.request_of is not None
    codes = columns.request_of if rows is None else columns.request_of[rows]
    is_first = _is_first(codes)
    return codes[is_first], np.cumsum(is_first) - 1


def flat_columns(table: pa.Table, request_key: str | None = None) -> Columns:
    """The columns of a flat table; with a key, neighbours that share it are of one request."""
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
    """Return which keys differ from the one before."""
    is_first = np.ones(len(keys), dtype=np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    return is_first


def nested_columns(table: pa.Table, once: frozenset[str]) -> Columns:
    """The columns of a nested table with `COUNT_COLUMN`; those that are not `once` are lists."""
    counts = _one_chunk(table.column(COUNT_COLUMN)).to_numpy()
    arrays = {name: _one_chunk(table.column(name)) for name in table.column_names}
    return Columns(
        arrays={n: a if n in once else a.flatten() for n, a in arrays.items() if n != COUNT_COLUMN},
        num_rows=int(counts.sum()),
        once=once,
        request_of=np.repeat(np.arange(len(counts)), counts),
    )


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """The column in one piece, without a copy if it is that already."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
