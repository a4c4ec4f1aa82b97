"""The toy source: eight small members, of which workers need `read` alone."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pipeline_runtime.errors import SourceError
from pipeline_runtime.sources import (
    Bucketing,
    ColumnSize,
    Identity,
    Opening,
    Predicate,
    Pruning,
    Scan,
    Unit,
    find_identity,
)
from pipeline_runtime.sources.gather import Int64s
from toy_source.model import ToySource

BUCKETS = 4


def open_source(model: ToySource, opening: Opening) -> ToyTable:
    """Open a table for `sources.open_source`."""
    if not model.rows:
        raise SourceError(f"{opening.storage_root}/{model.label}: no rows")
    return ToyTable(model=model)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyTable:
    """A Source whose units are split by bucket: unit i holds rows of bucket i % BUCKETS."""

    model: ToySource

    @property
    def description(self) -> str:
        return self.model.label

    @property
    def schema(self) -> pa.Schema:
        return self._rows(0).schema

    @property
    def identity(self) -> Identity:
        return find_identity(self.schema)

    @property
    def bucketing(self) -> Bucketing | None:
        """See Source."""
        return None

    def scan(self, predicates: Sequence[Predicate], columns: Collection[str] = ()) -> Scan:
        every = [self._unit(index) for index in range(-(-self.model.rows // self.model.unit_rows))]
        units = [unit for unit in every if self._may_hold(unit, predicates)]
        return Scan(
            units=tuple(units),
            pruning=Pruning(
                files_total=1,
                files_read=min(1, len(units)),
                row_groups_total=len(every),
                row_groups_read=len(units),
                rows_total=self.model.rows,
                rows_read=sum(unit.num_rows for unit in units),
            ),
            notes=(f"computed, {BUCKETS} buckets",),
        )

    def sizes(self, units: Sequence[Unit], columns: Sequence[str]) -> dict[str, ColumnSize]:
        total = dict.fromkeys(columns, 0)
        for unit in units:
            for name in columns:
                total[name] += self._rows(unit.index).column(name).nbytes
        return {name: ColumnSize(num_bytes=size) for name, size in total.items()}

    def digest(self, units: Sequence[Unit]) -> str:
        text = repr((self.model.revision, [(unit.index, unit.num_rows) for unit in units]))
        return hashlib.sha256(text.encode()).hexdigest()

    version = digest

    def read(
        self,
        unit: Unit,
        columns: Sequence[str],
        max_rows: int,
        *,
        rows: Int64s | None = None,
    ) -> Iterator[pa.Table]:
        table = self._rows(unit.index).select(list(columns))
        if rows is not None:
            yield table.take(pa.array(rows))
            return
        for first in range(0, unit.num_rows, max_rows):
            yield table.slice(first, max_rows)

    def _unit(self, index: int) -> Unit:
        rows = self._rows(index)
        return Unit(
            place="numbers",
            index=index,
            num_rows=rows.num_rows,
            num_bytes=rows.nbytes,
            partition={"half": rows.column("half")[0].as_py()},
            bucket=index % BUCKETS,
        )

    def _may_hold(self, unit: Unit, predicates: Sequence[Predicate]) -> bool:
        """Decide exactly, which real statistics cannot."""
        rows = self._rows(unit.index)
        return all(rows.filter(predicate.filter).num_rows for predicate in predicates)

    def _rows(self, index: int) -> pa.Table:
        first = index * self.model.unit_rows
        ids = range(first, min(first + self.model.unit_rows, self.model.rows))
        return pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "half": pa.array([2 * number // self.model.rows for number in ids], pa.int32()),
                "score": pa.array([number * self.model.revision % 7 / 7 for number in ids]),
                "items": pa.array([[number] * (number % 3) for number in ids]),
            }
        )
