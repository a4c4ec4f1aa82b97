"""The interface between the planner and the feed on one side, and a kind of source on the other.

The planner asks a source for its schema, and for the units that may hold rows for its predicates.
Workers read one unit at a time. `open_source` in `pipeline_runtime.sources` finds the source of a
manifest; CONTRIBUTING.md lists what a new kind of source needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import Any, Protocol

import pyarrow as pa

from pipeline_runtime.expressions import Expression
from pipeline_runtime.sources.gather import Int64s
from pipeline_runtime.sources.rows import SourceRows, expand_rows

# The identity of a row in every table that Lastmile writes.
ROW_ID_COLUMN = "_lastmile_row_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """The smallest part of a table that a worker reads as a whole, such as one row group.

    A source may derive a class of its own, with what it needs to read the unit. Units are sent to
    workers with each task, so they are small.

    Attributes:
        place: name of the place of the unit, unique in the table: of a file, its path relative to
            the table. A copy of the table has the same places.
        index: number of the unit within its place. Messages and reports call it a row group.
        num_bytes: uncompressed size of all columns, as flat rows.
        partition: values of partition columns, which are equal in all rows.
        bucket: number of the bucket, by the source's `bucketing`, that all rows are in; -1 if
            their key is null. None if the unit has rows of several buckets, or no bucket.
    """

    place: str
    index: int
    num_rows: int
    num_bytes: int
    partition: Mapping[str, Any] = field(default_factory=dict, hash=False)
    bucket: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionField:
    """A value of `Unit.partition`, by its name, and the function of a column that it is.

    A unit that has a value of this name has it by this very function.
    """

    name: str
    column: str
    transform: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucketing:
    """The buckets that a table is stored in: `bucketing.bucket` of a column.

    Attributes:
        column: the column by whose values rows are in buckets.
        num_buckets: number of buckets, which are numbered from 0.
        partitions: other fields by which the table is partitioned.
    """

    column: str
    num_buckets: int
    partitions: tuple[PartitionField, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicate:
    """A condition on columns of a table, which all rows that a run needs satisfy.

    Attributes:
        expression: as parsed, for sources that translate it for a catalog.
        filter: the same for pyarrow.dataset, with constants of the columns' types.
    """

    expression: Expression
    filter: Any


def combine(predicates: Sequence[Predicate]) -> Any:
    """Return the filter of all predicates together, for pyarrow.dataset; None if there are none."""
    return reduce(and_, (predicate.filter for predicate in predicates)) if predicates else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """Counts before and after pruning by predicates: of places, of units, and of rows."""

    files_total: int
    files_read: int
    row_groups_total: int
    row_groups_read: int
    rows_total: int
    rows_read: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The units that a run reads, in the table's own order, and what is known about them.

    Attributes:
        request_columns: columns that each unit holds once per request.
        is_remote: True if reads wait for a store, so that reading ahead pays.
        is_clustered: True if neighbouring rows are alike, since the table is sorted, bucketed or
            partitioned. A shuffled epoch then mixes rows of several units in each chunk.
        notes: remarks for the user about how the table is stored.
    """

    units: tuple[Unit, ...]
    pruning: Pruning
    request_columns: frozenset[str] = frozenset()
    is_remote: bool = False
    is_clustered: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity of a row, by which it is sampled: columns, or else its place in the table."""

    columns: tuple[str, ...] = ()  # empty: (place and index of its unit, number of the row)

    @property
    def is_position(self) -> bool:
        return not self.columns

    def __str__(self) -> str:
        return ", ".join(self.columns) or "position in the file (path, row group, row)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSize:
    """The size of one column of some units.

    Attributes:
        stored_bytes: on the storage, compressed.
        num_bytes: uncompressed, as flat rows.
    """

    stored_bytes: int = 0
    num_bytes: int = 0


class Source(Protocol):
    """A table to read; picklable, and cheap to send to a worker, which only reads units of it."""

    @property
    def description(self) -> str:
        """The table's URI or name, as reports show it."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """Names and types of all columns, including partition columns."""
        ...

    @property
    def identity(self) -> Identity:
        """The identity of a row if the manifest declares none."""
        ...

    @property
    def bucketing(self) -> Bucketing | None:
        """The buckets that new rows are stored in; None if the table has none."""
        return None

    def scan(self, predicates: Sequence[Predicate], columns: Collection[str] = ()) -> Scan:
        """Return the units that may hold a row that satisfies all predicates.

        Args:
            columns: the columns that will be read; the notes describe how.
        """
        ...

    def sizes(self, units: Sequence[Unit], columns: Sequence[str]) -> dict[str, ColumnSize]:
        """Return the size of each of these columns in these units."""
        ...

    def digest(self, units: Sequence[Unit]) -> str:
        """Return a SHA-256, in hexadecimal, of the rows that these units hold and of their places.

        A resumed run compares it with that of its checkpoint. It is the same for a copy.
        """
        ...

    def version(self, units: Sequence[Unit]) -> str:
        """Return a value that changes whenever the content of these units may have changed.

        Caches compare it. A copy may have another version.
        """
        ...

    def read(
        self,
        unit: Unit,
        columns: Sequence[str],
        max_rows: int,
        *,
        rows: Int64s | None = None,
    ) -> Iterator[SourceRows]:
        """Yield the unit's rows in order, with at most `max_rows` at a time.

        A table has the requested columns in the requested order. Rows that have columns of their
        requests once may have them in any order.

        Args:
            rows: positions in ascending order: yield only these rows, all at once. The source may
                skip decoding the others. None: yield all rows.

        Raises:
            SourceError: the unit cannot be read, or has changed since it was planned.
        """
        ...


def read_flat(
    source: Source, unit: Unit, columns: Sequence[str], max_rows: int
) -> Iterator[pa.Table]:
    """Yield the unit's rows like `Source.read`, as tables with the columns in this order."""
    for rows in source.read(unit, columns, max_rows):
        yield expand_rows(rows, columns)


def find_identity(schema: pa.Schema) -> Identity:
    """Return the identity of rows by Lastmile's own column, or by position if there is none."""
    return Identity(columns=(ROW_ID_COLUMN,) if ROW_ID_COLUMN in schema.names else ())
