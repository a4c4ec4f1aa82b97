"""The rows of some files of a source: those of a cache table that a run reads."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from pipeline_runtime.sources import (
    Bucketing,
    ColumnSize,
    Identity,
    Predicate,
    Scan,
    Source,
    Unit,
)
from pipeline_runtime.sources.gather import Int64s
from pipeline_runtime.sources.rows import SourceRows


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOfSource:
    """A Source with only some of the files of another one.

    Attributes:
        places: the files, as units name them; None on workers, which plan nothing.
        hidden: a column that is left out.
    """

    whole: Source
    places: frozenset[str] | None
    hidden: str = ""

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.whole, self.hidden)

    @property
    def description(self) -> str:
        """See Source."""
        return self.whole.description

    @property
    def schema(self) -> pa.Schema:
        """See Source."""
        return pa.schema([field for field in self.whole.schema if field.name != self.hidden])

    @property
    def identity(self) -> Identity:
        """See Source."""
        return self.whole.identity

    @property
    def bucketing(self) -> Bucketing | None:
        """See Source."""
        return self.whole.bucketing

    def scan(self, predicates: Sequence[Predicate], columns: Collection[str] = ()) -> Scan:
        """See Source; files that are left out count as pruned."""
        assert self.places is not None, "workers read units; they plan none"
        scan = self.whole.scan(predicates, columns)
        units = tuple(unit for unit in scan.units if unit.place in self.places)
        pruning = replace(
            scan.pruning,
            files_read=len({unit.place for unit in units}),
            row_groups_read=len(units),
            rows_read=sum(unit.num_rows for unit in units),
        )
        return replace(scan, units=units, pruning=pruning)

    def sizes(self, units: Sequence[Unit], columns: Sequence[str]) -> dict[str, ColumnSize]:
        """See Source."""
        return self.whole.sizes(units, columns)

    def digest(self, units: Sequence[Unit]) -> str:
        """See Source."""
        return self.whole.digest(units)

    def version(self, units: Sequence[Unit]) -> str:
        """See Source."""
        return self.whole.version(units)

    def read(
        self,
        unit: Unit,
        columns: Sequence[str],
        max_rows: int,
        *,
        rows: Int64s | None = None,
    ) -> Iterator[SourceRows]:
        """See Source."""
        return self.whole.read(unit, columns, max_rows, rows=rows)


def _rebuild(whole: Source, hidden: str) -> PartOfSource:
    return PartOfSource(whole=whole, places=None, hidden=hidden)
