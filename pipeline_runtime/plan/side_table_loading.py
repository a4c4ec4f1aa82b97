"""Opens side tables of joins: sizes them before anything runs, and loads them on the workers.

Steps call `open_side_table` while they are bound. The rows are read later: once by the driver if
side tables are broadcast, else once by each worker process.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from pipeline_runtime import expressions
from pipeline_runtime.errors import SourceError
from pipeline_runtime.sources import Opening, Predicate, Scan, Source, open_source, read_flat
from pipeline_runtime.steps.base import SideTable, SideTableRequest

# Rows per read of a side table; only the peak memory of reading depends on it.
_READ_ROWS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SideTableLoader:
    """Reads a side table's rows; picklable."""

    table: Source
    scan: Scan
    columns: tuple[str, ...]  # those that the join needs
    where: str | None
    max_bytes: int

    def __call__(self) -> pa.Table:
        """Return the rows. Raises SourceError, with their size, if they exceed the bound."""
        read = self._read_columns()
        parts = (read_flat(self.table, unit, read, _READ_ROWS) for unit in self.scan.units)
        tables = list(chain.from_iterable(parts))
        schema = pa.schema([self.table.schema.field(name) for name in read])
        rows = pa.concat_tables(tables) if tables else schema.empty_table()
        if self.where:
            rows = rows.filter(expressions.mask(expressions.parse(self.where), rows))
        check_size(self.table.description, rows.nbytes, self.max_bytes)
        return rows.select(self.columns).combine_chunks()

    def _read_columns(self) -> list[str]:
        extra = expressions.parse(self.where).columns if self.where else frozenset()
        return [name for name in self.table.schema.names if name in extra or name in self.columns]


def check_size(description: str, num_bytes: int, max_bytes: int) -> None:
    """Raise SourceError, with both numbers, if a side table does not fit."""
    if num_bytes > max_bytes:
        raise SourceError(
            f"side table {description}: must fit in maxBytes ({max_bytes:,} bytes), got "
            f"{num_bytes:,} bytes; raise maxBytes, name fewer columns, or narrow it with where"
        )


def open_side_table(request: SideTableRequest, opening: Opening) -> SideTable:
    """Open a join's side table and check its size before anything is read. Raises SourceError."""
    table = open_source(request.source, opening)
    columns = tuple(request.columns) if request.columns is not None else tuple(table.schema.names)
    scan = table.scan(_predicates(request.where, table.schema))
    known = [name for name in columns if name in table.schema.names]
    loader = SideTableLoader(
        table=table,
        scan=scan,
        columns=tuple(known),
        where=request.where,
        max_bytes=request.max_bytes,
    )
    num_bytes = sum(size.num_bytes for size in table.sizes(scan.units, known).values())
    if request.where is None:  # else only reading shows how many rows remain
        check_size(table.description, num_bytes, request.max_bytes)
    # Stays the same when the table is rewritten; its version changes.
    place = (opening.storage_root, request.source.source, loader.columns, loader.where)
    return SideTable(
        digest=_hash(place, table.version(scan.units)),
        description=table.description,
        schema=pa.schema([table.schema.field(name) for name in known]),
        num_rows=scan.pruning.rows_read,
        num_bytes=num_bytes,
        load=loader,
        place=_hash(place),
    )


def _predicates(where: str | None, schema: pa.Schema) -> list[Predicate]:
    if where is None:
        return []
    expression = expressions.parse(where)
    expressions.check_boolean(expression, schema)
    conjuncts = expressions.conjuncts(expression)
    filters = [(c, expressions.to_dataset_filter(c, schema)) for c in conjuncts]
    return [Predicate(expression=c, filter=f) for c, f in filters if f is not None]


def _hash(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
