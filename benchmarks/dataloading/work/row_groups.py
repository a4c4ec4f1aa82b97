"""The unit of work of peers that read by themselves: a row group, in either layout of its file.

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
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from benchmarks.dataloading.workloads import ONCE, REQUEST_KEY, SPAM_KEY, Workload

Array = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]
Unit = tuple[str, int]  # a file, and the index of its row group

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

    def requests_of(self, rows: Int64s | None) -> tuple[Int64s, Int64s]:
        """Return the requests of the rows (None: all), and the index of each row's request."""
        assert self.request_of is not None
        codes = self.request_of if rows is None else self.request_of[rows]
        is_first = _is_first(codes)
        return codes[is_first], np.cumsum(is_first) - 1


class Footers(dict[str, pq.FileMetaData]):
    """Footers of files, each parsed once, since that of a file with many row groups is long."""

    def __missing__(self, path: str) -> pq.FileMetaData:
        footer = self[path] = pq.read_metadata(path)
        return footer


def list_files(workload: Workload) -> list[str]:
    """List the files of the table."""
    files: list[str] = pads.dataset(f"{workload.root}/impressions", format="parquet").files
    return files


def list_units(workload: Workload, footers: Footers) -> list[Unit]:
    """List the row groups of the table in the order of its files."""
    files = list_files(workload)
    return [(path, index) for path in files for index in range(footers[path].num_row_groups)]


def read_spam(workload: Workload) -> pa.Array | None:
    """Read the ids of spam users; None at the level that keeps their rows."""
    if workload.level == "none":
        return None
    table = pq.read_table(f"{workload.root}/spam_users", columns=[SPAM_KEY])
    return table.column(SPAM_KEY).combine_chunks()


def read_unit(
    unit: Unit, workload: Workload, footers: Footers, *, threads: bool = False
) -> Columns:
    """Read the columns in use of a row group; with `threads`, pyarrow decodes them in parallel."""
    path, row_group = unit
    is_nested = workload.layout == "nested"
    names = [*workload.read_columns, *([COUNT_COLUMN] if is_nested else [])]
    with pq.ParquetFile(path, metadata=footers[path]) as file:
        table = file.read_row_group(row_group, names, use_threads=threads)
    if is_nested:
        return nested_columns(table, ONCE)
    return flat_columns(table, REQUEST_KEY if workload.is_deduplicated else None)


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


def _is_first(keys: Array) -> npt.NDArray[np.bool_]:
    """Return whether each key differs from the previous one."""
    is_first = np.ones(len(keys), dtype=np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    return is_first


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Return the column in one chunk, without a copy if it has only one."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
