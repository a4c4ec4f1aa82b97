"""The columns of a row group, whichever layout its file has.

A nested file (docs/nested-tables.md) has a row a request: the request's columns once, all others as
lists with an item for each impression. Plain Parquet, so any peer can read it; who knows what it is
works on a request's columns once, and gathers them by the number of each row's request.
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
        once: columns that are of requests.
        request_of: the number of each row's request; None of a flat file.
    """

    arrays: Mapping[str, pa.Array]
    num_rows: int
    once: frozenset[str] = frozenset()
    request_of: Int64s | None = None

    def places(self, name: str, rows: Int64s | None) -> Any:
        """Where the values of those rows are; None for all, as they are."""
        if self.request_of is None or name not in self.once:
            return rows
        return self.request_of if rows is None else self.request_of[rows]


def flat_columns(table: pa.Table) -> Columns:
    """The columns of a flat table."""
    arrays = {name: _one_chunk(table.column(name)) for name in table.column_names}
    return Columns(arrays=arrays, num_rows=table.num_rows)


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
