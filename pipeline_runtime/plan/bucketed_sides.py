"""Side tables that are read in parts: one part for each remainder of the bucket's number.

With N buckets of the rows that are joined, M of the side table and g their greatest common divisor,
rows of bucket i match only rows of the side's buckets j with j ≡ i (mod g): both numbers are the
same hash, modulo N and modulo M. Part r of g is the side's rows in buckets j ≡ r (mod g).
`join_strategies` decides before that a join is done so; `steps.side_parts` keeps the parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa

from pipeline_runtime import expressions
from pipeline_runtime.errors import SourceError
from pipeline_runtime.formatting import format_bytes
from pipeline_runtime.plan.part_files import PartFiles
from pipeline_runtime.sources import Unit
from pipeline_runtime.sources.gather import Int64s
from pipeline_runtime.sources.rows import SourceRows, expand_rows
from pipeline_runtime.steps.base import ROW_COLUMN, UNIT_COLUMN

# Rows per read; only the peak memory of reading depends on it.
_READ_ROWS = 1 << 17
# Bytes of an index for each row: its number, its hash, where its group starts, and up to four
# entries of the table of buckets, 8 bytes each (`steps.side_tables.KeyIndex`).
INDEX_BYTES_PER_ROW = 56
_PLACE_BYTES_PER_ROW = 12  # UNIT_COLUMN and ROW_COLUMN
NUM_OPEN = 8  # buckets of which a chunk of a shuffled epoch has rows, at least


class UnitReader(Protocol):
    """The members of a Source that reading its units needs."""

    @property
    def description(self) -> str: ...

    @property
    def schema(self) -> pa.Schema: ...

    def read(
        self, unit: Unit, columns: Sequence[str], max_rows: int, *, rows: Int64s | None = None
    ) -> Iterator[SourceRows]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRows:
    """The rows and columns of a side table that a join needs; picklable."""

    table: UnitReader
    columns: tuple[str, ...]
    where: str | None

    def read(self, unit: Unit, columns: Sequence[str]) -> Iterator[tuple[pa.Table, Int64s]]:
        """Yield columns of the unit's rows that satisfy `where`, and their numbers in the unit."""
        extra = expressions.parse(self.where).columns if self.where else frozenset()
        wanted = [name for name in self.table.schema.names if name in extra or name in columns]
        first = 0
        for rows in self.table.read(unit, wanted, _READ_ROWS):
            table = expand_rows(rows, wanted)
            numbers = np.arange(first, first + table.num_rows)
            first += table.num_rows
            if self.where:
                mask = expressions.mask(expressions.parse(self.where), table)
                table = table.filter(mask)
                numbers = numbers[np.asarray(mask)]
            yield table.select(columns), numbers

    def schema_of(self, columns: Sequence[str]) -> pa.Schema:
        return pa.schema([self.table.schema.field(name) for name in columns])


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketedParts:
    """A `steps.base.SideParts` of units that know their bucket.

    Attributes:
        units: of each part, in the table's order.
        unit_bytes: of the needed columns of each of these units, uncompressed.
        num_files: files of the side table, for people.
        partitions: names of partition values of the rows, and of the same values of the units.
        compression: share of these bytes that storage holds.
        files: shares loaded parts with other processes; None if this is the only one.
    """

    rows: SideRows
    right_keys: tuple[str, ...]
    key: int
    num_row_buckets: int
    max_bytes: int
    units: tuple[tuple[Unit, ...], ...]
    unit_bytes: tuple[tuple[int, ...], ...]
    num_files: int = 0
    partitions: tuple[tuple[str, str], ...] = ()
    compression: float = 1.0
    files: PartFiles | None = None

    @property
    def num_parts(self) -> int:
        """See SideParts."""
        return len(self.units)

    def estimate_bytes(self, part: int) -> int:
        """See SideParts."""
        return sum(self.unit_bytes[part]) + INDEX_BYTES_PER_ROW * self.num_rows(part)

    def estimate_key_bytes(self, part: int) -> int:
        """Return the size of a part in memory that keeps its keys alone."""
        schema = self.rows.schema_of(self.right_keys)
        width = sum(fixed_width(field.type) for field in schema)
        per_row = INDEX_BYTES_PER_ROW + _PLACE_BYTES_PER_ROW + width
        return per_row * self.num_rows(part)

    def describe(self, row_units: Sequence[Unit]) -> list[str]:
        """See SideParts."""
        needed = self._find_needed(row_units)
        units = [unit for part in needed for unit in self.units[part]]
        sizes = {part: self.estimate_bytes(part) for part in needed}
        stored = sum(self.compression * sum(self.unit_bytes[part]) for part in needed)
        files = len({unit.place for unit in units})
        largest = max(sizes.values(), default=0)
        held = min(self.max_bytes, sum(sizes.values()))
        lines = [
            f"reads {files} of {self.num_files} files of the side table, about "
            f"{format_bytes(int(stored))}",
            f"peak memory per reader about {format_bytes(held + min(self.max_bytes, largest))}: "
            f"{format_bytes(held)} of parts, and as much again as the part that is being loaded",
        ]
        if large := [part for part, size in sizes.items() if size > self.max_bytes]:
            lines.append(
                f"{len(large)} of {len(sizes)} parts exceed maxBytes ({self.max_bytes:,} bytes) "
                "and keep their keys alone: their other columns are read again for each chunk"
            )
        elif (together := sum(sorted(sizes.values())[-NUM_OPEN:])) > self.max_bytes:
            lines.append(
                f"{min(NUM_OPEN, len(sizes))} parts that are in use together take {together:,} "
                f"bytes, more than maxBytes ({self.max_bytes:,} bytes): parts are loaded more than "
                "once. Raise maxBytes to avoid that"
            )
        return lines

    def narrow(self, row_units: Sequence[Unit]) -> BucketedParts:
        """Return the parts without the units whose partition no row has."""
        known = [
            (theirs, {unit.partition[mine] for unit in row_units})
            for mine, theirs in self.partitions
            if all(mine in unit.partition for unit in row_units)
        ]

        def is_needed(unit: Unit) -> bool:
            values = unit.partition
            return all(name not in values or values[name] in found for name, found in known)

        kept = [
            [pair for pair in zip(part, sizes, strict=True) if is_needed(pair[0])]
            for part, sizes in zip(self.units, self.unit_bytes, strict=True)
        ]
        return replace(
            self,
            units=tuple(tuple(unit for unit, _ in part) for part in kept),
            unit_bytes=tuple(tuple(size for _, size in part) for part in kept),
        )

    def _find_needed(self, row_units: Sequence[Unit]) -> list[int]:
        """Return the parts that rows in these units may match."""
        buckets = {unit.bucket for unit in row_units}
        if None in buckets:
            return list(range(self.num_parts))
        return sorted({b % self.num_parts for b in buckets if b is not None and b >= 0})

    def num_rows(self, part: int) -> int:
        """Return the number of rows of a part before `where`."""
        return sum(unit.num_rows for unit in self.units[part])

    def load(self, part: int) -> pa.Table | None:
        """See SideParts."""
        if self.files is None:
            return self._read(part)
        return self.files.load(part, partial(self._read, part))

    def _read(self, part: int) -> pa.Table | None:
        tables: list[pa.Table] = []
        num_bytes = 0
        for unit in self.units[part]:
            for table, _ in self.rows.read(unit, self.rows.columns):
                tables.append(table)
                num_bytes += table.nbytes
                if num_bytes > self.max_bytes:
                    return None
        return _concat(tables, self.rows.schema_of(self.rows.columns))

    def load_keys(self, part: int) -> pa.Table:
        """See SideParts."""
        tables: list[pa.Table] = []
        num_bytes = 0
        for number, unit in enumerate(self.units[part]):
            for table, rows in self.rows.read(unit, self.right_keys):
                places = [pa.array(np.full(len(rows), number, dtype=np.int32)), pa.array(rows)]
                columns = [*table.columns, *places]
                tables.append(pa.Table.from_arrays(columns, schema=self._key_schema))
                num_bytes += tables[-1].nbytes + INDEX_BYTES_PER_ROW * len(rows)
                if num_bytes > self.max_bytes:
                    raise SourceError(self._explain_keys(part, num_bytes))
        return _concat(tables, self._key_schema)

    def gather(self, part: int, places: pa.Table, columns: Sequence[str]) -> pa.Table:
        """See SideParts."""
        units = places.column(UNIT_COLUMN).to_numpy()
        rows = places.column(ROW_COLUMN).to_numpy()
        order = np.lexsort((rows, units))
        tables: list[pa.Table] = []
        # The place of each row among the rows that are read, each of which is read once.
        found = np.zeros(len(rows), dtype=np.int64)
        num_read = 0
        for number in np.unique(units).tolist():
            mine = order[units[order] == number]
            wanted, inverse = np.unique(rows[mine], return_inverse=True)
            found[mine] = num_read + inverse
            num_read += len(wanted)
            unit = self.units[part][number]
            read = self.rows.table.read(unit, columns, unit.num_rows, rows=wanted)
            tables += [expand_rows(part_rows, columns) for part_rows in read]
        read_rows = _concat(tables, self.rows.schema_of(columns)).combine_chunks()
        return read_rows.take(pa.array(found))

    def check_keys(self) -> None:
        """Raise SourceError, with both numbers, if even the keys of a part exceed the bound."""
        for part in range(self.num_parts):
            num_bytes = self.estimate_key_bytes(part)
            if num_bytes > self.max_bytes:
                raise SourceError(self._explain_keys(part, num_bytes))

    def _explain_keys(self, part: int, num_bytes: int) -> str:
        """Return the error of a part whose keys exceed the bound."""
        buckets = f"{part} modulo {self.num_parts}"
        return (
            f"side table {self.rows.table.description}: the keys of buckets {buckets} must fit in "
            f"maxBytes ({self.max_bytes:,} bytes), got at least {num_bytes:,} bytes for "
            f"{self.num_rows(part):,} rows; raise maxBytes, narrow it with where, or give both "
            "tables more buckets"
        )

    @property
    def _key_schema(self) -> pa.Schema:
        places = [pa.field(UNIT_COLUMN, pa.int32()), pa.field(ROW_COLUMN, pa.int64())]
        return pa.schema([*self.rows.schema_of(self.right_keys), *places])


def _concat(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables(tables) if tables else schema.empty_table()


def fixed_width(data_type: pa.DataType) -> int:
    """Return the bytes of a value at least, in Arrow's memory."""
    return max(1, data_type.bit_width // 8) if pa.types.is_primitive(data_type) else 4
