"""The rows of one row group of a data file, in the columns of the table.

`table` opens the file. A `Reading` says which of its columns are which of the table, and makes the
table's columns of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline_runtime.sources.base import Unit
from pipeline_runtime.sources.gather import Int64s
from pipeline_runtime.sources.iceberg.deletes import DeleteFile
from pipeline_runtime.sources.iceberg.schemas import id_of, project
from pipeline_runtime.sources.parquet.decoding.pages import OpenFile


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergUnit(Unit):
    """A row group of a data file. `num_rows` are the rows that are not deleted.

    Attributes:
        uri, store, path: see PlannedFile.
        first_row: position in the file of the row group's first row.
        num_stored: rows of the row group, with the deleted ones.
        constants: values of columns, by field id, in a file that lacks the columns.
        deletes: files with deleted rows of this row group; none if it has no deleted rows.
        deleted: digest of the deleted positions; empty if there are none.
    """

    uri: str
    store: str
    path: str
    first_row: int
    num_stored: int
    constants: Mapping[int, Any] = field(default_factory=dict, hash=False)
    deletes: tuple[DeleteFile, ...] = ()
    deleted: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The columns to read of one file, and how to make the table's columns of them.

    Attributes:
        wanted: fields of the table, with ids.
        stored: the file's field of each; None if the file lacks it.
        constants: values of the lacking ones, by id.
        schema: the columns of the result.
        is_plain: the file's columns are the table's, but for their names.
    """

    wanted: Sequence[pa.Field]
    stored: Sequence[pa.Field | None]
    constants: Mapping[int, Any]
    schema: pa.Schema
    is_plain: bool

    @classmethod
    def of(
        cls, wanted: Sequence[pa.Field], stored: Sequence[pa.Field | None], schema: pa.Schema
    ) -> Reading:
        """Return the reading of a file, without constants."""
        pairs = zip(stored, schema.types, strict=True)
        is_plain = bool(stored) and all(
            field is not None and _is_same(field.type, kind) for field, kind in pairs
        )
        return cls(wanted=wanted, stored=stored, constants={}, schema=schema, is_plain=is_plain)

    @property
    def names(self) -> list[str]:
        """The names in the file of the columns to read."""
        return [field.name for field in self.stored if field is not None]

    def complete(self, table: pa.Table | None, num_rows: int) -> pa.Table:
        """Return rows with the table's names, types and order, and constants for lacking columns.

        Args:
            table: the file's columns; None if it has none of them.
        """
        if self.is_plain and table is not None:
            return pa.Table.from_arrays(table.columns, schema=self.schema)
        arrays = []
        for wanted, stored, kind in zip(self.wanted, self.stored, self.schema.types, strict=True):
            if stored is None:
                scalar = pa.scalar(self.constants.get(id_of(wanted)), type=kind)
                arrays.append(pa.chunked_array([pa.repeat(scalar, num_rows)], type=kind))
            else:
                assert table is not None
                arrays.append(project(table.column(stored.name), stored, wanted))
        if not arrays:
            return pa.table({"": pa.nulls(num_rows)}).select([])  # knows its number of rows
        return pa.Table.from_arrays(arrays, schema=self.schema)


def _is_same(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a type is the table's; False for parts of structs, which may differ by id."""
    items = stored.value_type if pa.types.is_list(stored) else stored
    return bool(stored == wanted) and not pa.types.is_nested(items)


@dataclass(slots=True)
class LatestReading:
    """The reading of the latest file, since most files are alike. Threads may share it."""

    _latest: tuple[pa.Schema, tuple[str, ...], Reading] | None = None

    def find(
        self, stored: pa.Schema, columns: Sequence[str], build: Callable[[], Reading]
    ) -> Reading:
        """Return the reading of these columns of a file with this schema; `build` makes it."""
        latest, wanted = self._latest, tuple(columns)
        if latest and latest[1] == wanted and latest[0].equals(stored, check_metadata=True):
            return latest[2]
        reading = build()
        self._latest = (stored, wanted, reading)
        return reading


def read_windows(
    opened: OpenFile,
    unit: IcebergUnit,
    reading: Reading,
    max_rows: int,
    live: Int64s | None,
) -> Iterator[pa.Table]:
    """Yield a long row group in parts, to bound memory; a part without rows is left out."""
    first = 0
    for window in opened.iter_row_group(unit.index, reading.names, max_rows):
        num_stored = window.num_rows
        if live is not None:
            window = window.take(pa.array(within(live, first, num_stored)))
        first += num_stored
        if window.num_rows:
            yield reading.complete(window, window.num_rows)


def within(positions: Int64s, first: int, count: int) -> Int64s:
    """Return the ascending positions in [first, first + count), relative to the first."""
    start, stop = np.searchsorted(positions, (first, first + count))
    return positions[start:stop] - first
