"""Opens side tables of joins: sizes them before anything runs, and loads them on the workers.

Steps call `open_side_table` while they are bound. The rows are read later: once by the driver if
side tables are broadcast, else once by each worker process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, cast

import pyarrow as pa

from pipeline_runtime import expressions
from pipeline_runtime.bucketing import NO_BUCKET
from pipeline_runtime.errors import SourceError
from pipeline_runtime.plan.bucketed_sides import BucketedParts, SideRows
from pipeline_runtime.plan.exchange import Exchange, ExchangedParts
from pipeline_runtime.plan.join_strategies import JoinChoice, SideFacts, choose_strategy
from pipeline_runtime.plan.model import PlannedStep
from pipeline_runtime.sources import (
    Opening,
    Predicate,
    Scan,
    Source,
    Unit,
    open_source,
    read_flat,
)
from pipeline_runtime.steps.base import SideParts, SideTable, SideTableRequest

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
    return build_side_table(
        request, open_source(request.source, opening), opening.storage_root, request.source.source
    )


def build_side_table(request: SideTableRequest, table: Source, *place: object) -> SideTable:
    """Return a side table of an open table; see `open_side_table`.

    Args:
        place: names the table, whatever its version.
    """
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
    sizes = table.sizes(scan.units, known).values()
    num_bytes = sum(size.num_bytes for size in sizes)
    facts = SideFacts(
        description=table.description,
        bucketing=table.bucketing,
        num_bytes=num_bytes,
        stored_bytes=sum(size.stored_bytes for size in sizes),
        units=scan.units,
    )
    choice = choose_strategy(request, facts)
    if choice.strategy == "Broadcast" and request.where is None:  # else only reading shows the size
        check_size(table.description, num_bytes, request.max_bytes)
    # Stays the same when the table is rewritten; its version changes.
    place = (*place, loader.columns, loader.where, choice.strategy, choice.num_parts)
    digest = _hash(place, table.version(scan.units))
    notes = choice.describe()
    if choice.strategy == "Broadcast":
        notes = (*notes, *facts.describe())
    has_buckets = request.bucketing or table.bucketing or request.strategy != "Auto"
    return SideTable(
        digest=digest,
        description=table.description,
        schema=pa.schema([table.schema.field(name) for name in known]),
        num_rows=scan.pruning.rows_read,
        num_bytes=num_bytes,
        load=loader,
        place=_hash(place),
        parts=_build_parts(choice, request, facts, loader, digest),
        notes=notes if has_buckets else (),
    )


def _build_parts(
    choice: JoinChoice,
    request: SideTableRequest,
    facts: SideFacts,
    loader: SideTableLoader,
    digest: str,
) -> SideParts | None:
    """Return the parts that the chosen strategy reads; None if the table is read as a whole."""
    if choice.strategy == "Broadcast":
        return None
    rows = SideRows(table=loader.table, columns=loader.columns, where=loader.where)
    if choice.strategy == "Exchange":
        exchange = Exchange(
            rows=rows,
            units=loader.scan.units,
            right_keys=request.right_keys,
            key=choice.key,
            num_parts=choice.num_parts,
            num_row_buckets=choice.num_row_buckets,
            max_bytes=request.max_bytes,
            kernels=request.kernels,
        )
        return ExchangedParts(exchange=exchange, digest=digest, num_bytes=facts.num_bytes)
    parts: list[list[Unit]] = [[] for _ in range(choice.num_parts)]
    for unit in loader.scan.units:
        if unit.bucket is not None and unit.bucket != NO_BUCKET:  # rows without a key match nothing
            parts[unit.bucket % choice.num_parts].append(unit)
    bytes_per_row = facts.num_bytes / max(1, sum(unit.num_rows for unit in loader.scan.units))
    bucketed = BucketedParts(
        rows=rows,
        right_keys=request.right_keys,
        key=choice.key,
        num_row_buckets=choice.num_row_buckets,
        max_bytes=request.max_bytes,
        num_files=len({unit.place for unit in loader.scan.units}),
        partitions=_find_shared(request, facts),
        compression=facts.stored_bytes / max(1, facts.num_bytes),
        units=tuple(map(tuple, parts)),
        unit_bytes=tuple(
            tuple(int(bytes_per_row * unit.num_rows) for unit in part) for part in parts
        ),
    )
    if request.where is None:
        bucketed.check_keys()
    return bucketed


def narrow_step(step: PlannedStep, row_units: Sequence[Unit]) -> PlannedStep:
    """Return a join that only reads its side table's partitions that rows in these units have."""
    side = step.transform.side_table
    if side is None or not isinstance(side.parts, BucketedParts):
        return step
    parts = side.parts.narrow(row_units)
    if parts.units == side.parts.units:
        return step
    places = [(unit.place, unit.index) for part in parts.units for unit in part]
    # Training and evaluation may need other partitions: each has indices of its own.
    narrowed = replace(
        side,
        digest=_hash(side.digest, places),
        place=_hash(side.place, places),
        num_rows=sum(unit.num_rows for part in parts.units for unit in part),
        parts=parts,
    )
    return replace(step, transform=replace(cast(Any, step.transform), side_table=narrowed))


def _find_shared(request: SideTableRequest, side: SideFacts) -> tuple[tuple[str, str], ...]:
    """Return the names of partition values that are equal on both sides if the keys are."""
    if request.bucketing is None or side.bucketing is None:
        return ()
    keys = set(zip(request.left_keys, request.right_keys, strict=True))
    return tuple(
        (mine.name, theirs.name)
        for mine in request.bucketing.partitions
        for theirs in side.bucketing.partitions
        if mine.transform == theirs.transform and (mine.column, theirs.column) in keys
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
