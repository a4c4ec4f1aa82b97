"""A table that is written by partitions of the source, as the destination of an output.

A commit replaces the rows of some partitions, and records what they are made of. `cache_table` is
the table of a materialization, `staging_table` that of a backfill.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pipeline_runtime.errors import OutputRefused
from pipeline_runtime.materialization.coverage import (
    COVERAGE_PROPERTY,
    Change,
    Covered,
    encode_coverage,
    find_missing,
    read_coverage,
)
from pipeline_runtime.output.iceberg import IcebergTable

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.update.snapshot import _OverwriteFiles


class AlreadyCovered(OutputRefused):
    """Another run has committed all partitions of a commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoveredTable(IcebergTable):
    """A table with a coverage; see `destination.Destination`.

    Attributes:
        covered: the partitions of the commit, and what they are made of.
    """

    covered: Mapping[str, Covered]

    def _check(self, table: Table | None) -> None:
        """Raise OutputRefused if the table's present state forbids the commit."""
        self._check_state(table)
        if table is None:
            return
        if not self._find_missing(table):
            raise AlreadyCovered(f"{self.name}: another run has the same rows committed meanwhile")

    def find_missing(self) -> frozenset[str]:
        """Return the partitions of the commit that the table lacks now."""
        table = self._load()
        return frozenset(self.covered if table is None else self._find_missing(table))

    def find_lost(self) -> frozenset[str]:
        """Return the partitions of the commit of which the table knows nothing any more."""
        table = self._load()
        with self._asking("read its coverage"):
            return frozenset(self.covered.keys() - (read_coverage(table) if table else {}))

    def abandon(self, run: str) -> bool:
        """See `destination.Destination`. Each commit is staged in a folder of its own."""
        is_abandoned = IcebergTable.abandon(self, run)
        self.stage(run).parent().remove_if_empty()
        return is_abandoned

    def _find_missing(self, table: Table) -> dict[str, Change]:
        with self._asking("read its coverage"):
            return find_missing(self.covered, read_coverage(table), lambda *_: False)

    @abstractmethod
    def _check_state(self, table: Table | None) -> None:
        """Raise OutputRefused if the table cannot take the rows."""

    @abstractmethod
    def _is_replaced(self, table: Table, file: DataFile) -> bool:
        """Return whether a file has rows of the commit's partitions."""

    def _merge(self, before: Mapping[str, Covered]) -> Mapping[str, Covered]:
        """Return the coverage after the commit."""
        return {**before, **self.covered}

    def _begin(self, transaction: Transaction) -> None:
        """Add to the transaction that creates the table."""

    def _replace(
        self, transaction: Transaction, table: Table | None, properties: dict[str, str]
    ) -> _OverwriteFiles:
        """Return a snapshot that replaces the partitions, with the table's new coverage."""
        from pipeline_runtime.iceberg.replacing import ReplaceSome

        if table is None:
            self._begin(transaction)
        coverage = encode_coverage(self._merge(read_coverage(table) if table else {}))
        return ReplaceSome(
            transaction,
            {**properties, COVERAGE_PROPERTY: coverage},
            uuid4(),
            lambda file: table is not None and self._is_replaced(table, file),
        )


def list_fields(table: IcebergTable) -> dict[str, Any]:
    """Return the fields of an open table, for a table of another kind."""
    return {field.name: getattr(table, field.name) for field in fields(table)}
