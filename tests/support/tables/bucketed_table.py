"""A source of rows in memory, in units of Iceberg's buckets as a writer of Iceberg makes them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline_runtime.bucketing import bucket
from pipeline_runtime.sources import (
    Bucketing,
    ColumnSize,
    Identity,
    Predicate,
    Pruning,
    Scan,
    Unit,
    find_identity,
)
from pipeline_runtime.sources.gather import Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketedTable:
    """A Source whose units have at most `unit_rows` rows of one bucket each.

    Attributes:
        bucketing: None makes units of neighbouring rows, without a bucket.
        old_units: numbers of units that do not know their bucket, as files of an older spec.
    """

    rows: pa.Table
    bucketing: Bucketing | None
    unit_rows: int = 1_000_000
    description: str = "rows in memory"
    old_units: frozenset[int] = frozenset()

    @property
    def schema(self) -> pa.Schema:
        return self.rows.schema

    @property
    def identity(self) -> Identity:
        return find_identity(self.schema)

    def scan(self, predicates: Sequence[Predicate], columns: Collection[str] = ()) -> Scan:
        units = tuple(
            Unit(
                place=f"file-{index}",
                index=0,
                num_rows=len(numbers),
                num_bytes=self.rows.take(pa.array(numbers)).nbytes,
                bucket=None if index in self.old_units else number,
            )
            for index, (number, numbers) in enumerate(self._find_units())
        )
        num_rows = self.rows.num_rows
        pruning = Pruning(
            files_total=len(units),
            files_read=len(units),
            row_groups_total=len(units),
            row_groups_read=len(units),
            rows_total=num_rows,
            rows_read=num_rows,
        )
        return Scan(units=units, pruning=pruning)

    def sizes(self, units: Sequence[Unit], columns: Sequence[str]) -> dict[str, ColumnSize]:
        found = pa.concat_tables([self.rows.slice(0, 0), *(self._table_of(u) for u in units)])
        return {name: ColumnSize(num_bytes=found.column(name).nbytes) for name in columns}

    def digest(self, units: Sequence[Unit]) -> str:
        text = repr((self.rows.to_pydict(), self.bucketing, self.unit_rows, units))
        return hashlib.sha256(text.encode()).hexdigest()

    version = digest

    def read(
        self, unit: Unit, columns: Sequence[str], max_rows: int, *, rows: Int64s | None = None
    ) -> Iterator[pa.Table]:
        table = self._table_of(unit).select(list(columns))
        if rows is not None:
            yield table.take(pa.array(rows))
            return
        for first in range(0, unit.num_rows, max_rows):
            yield table.slice(first, max_rows)

    def _table_of(self, unit: Unit) -> pa.Table:
        _, numbers = self._find_units()[int(unit.place.removeprefix("file-"))]
        return self.rows.take(pa.array(numbers))

    def _find_units(self) -> list[tuple[int | None, Int64s]]:
        """Return the bucket of each unit and the numbers of its rows; -1 for null keys."""
        num_rows = self.rows.num_rows
        if self.bucketing is None:
            groups: list[tuple[int | None, Int64s]] = [(None, np.arange(num_rows))]
        else:
            column, count = self.rows.column(self.bucketing.column), self.bucketing.num_buckets
            buckets = bucket(column, count, kernels=False)
            groups = [(int(b), np.flatnonzero(buckets == b)) for b in np.unique(buckets)]
        return [
            (number, numbers[first : first + self.unit_rows])
            for number, numbers in groups
            for first in range(0, len(numbers), self.unit_rows)
        ]
