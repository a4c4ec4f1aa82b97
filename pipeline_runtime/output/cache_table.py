"""A cache table of a materialization as the destination of an output.

A commit replaces the rows of some partitions of the source, and records what they are made of. The
partition is a column of the table, so that the rows of one can be replaced, and read, alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa

from pipeline_runtime.config import Catalog as CatalogModel
from pipeline_runtime.errors import OutputRefused
from pipeline_runtime.iceberg.schemas import WantedTable
from pipeline_runtime.materialization.coverage import (
    COVERAGE_PROPERTY,
    Covered,
    encode_coverage,
    find_missing,
    read_coverage,
)
from pipeline_runtime.materialization.lookup import Materialization
from pipeline_runtime.materialization.recipe import Recipe
from pipeline_runtime.materialization.tables import (
    DELETING_PROPERTY,
    PARTITION_COLUMN,
    RECIPE_PROPERTY,
)
from pipeline_runtime.output.iceberg import (
    IcebergTable,
    check_table_form,
    open_iceberg,
)
from pipeline_runtime.sources import Location

if TYPE_CHECKING:
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.update.snapshot import _OverwriteFiles


class AlreadyCovered(OutputRefused):
    """Another run has committed all partitions of a commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTable(IcebergTable):
    """A cache table; see `destination.Destination`.

    Attributes:
        covered: the partitions of the commit, and what they are made of.
    """

    recipe: Recipe
    covered: Mapping[str, Covered]

    def _check(self, table: Table | None) -> None:
        """Raise OutputRefused if the table's present state forbids the commit."""
        if table is None:
            return  # the plan has looked for its namespace
        check_table_form(table, self.wanted)
        if DELETING_PROPERTY in table.properties:
            raise OutputRefused(
                f"{self.name}: must not be deleted while rows for it are computed, but is being "
                "deleted. Finish `lastmile materializations prune`, then run again"
            )
        if not find_missing(self.covered, read_coverage(table), lambda *_: False):
            raise AlreadyCovered(f"{self.name}: another run has the same rows committed meanwhile")

    def _replace(
        self, transaction: Transaction, table: Table | None, properties: dict[str, str]
    ) -> _OverwriteFiles:
        """Return a snapshot that replaces the partitions, with the table's new coverage."""
        from pipeline_runtime.iceberg.replacing import ReplaceSome

        before: Mapping[str, Covered] = {}
        if table is None:
            transaction.set_properties({RECIPE_PROPERTY: self.recipe.to_json()})
        else:
            before = read_coverage(table)
        coverage = encode_coverage({**before, **self.covered})
        place = [field.name for field in self.form.layout.spec.fields].index(PARTITION_COLUMN)
        return ReplaceSome(
            transaction,
            {**properties, COVERAGE_PROPERTY: coverage},
            uuid4(),
            lambda file: file.partition[place] in self.covered,
        )


def open_cache_table(
    found: Materialization,
    keys: frozenset[str],
    schema: pa.Schema,
    catalog: CatalogModel,
    artifacts: Location,
    target_bytes: int,
) -> CacheTable:
    """Open the table of a materialization to write some partitions, or prepare to create it.

    Args:
        schema: the rows' columns.
        artifacts: the folder in which runs are staged.

    Raises OutputRefused if the table cannot be written, SourceError or StoreError if the catalog
    does not answer.
    """
    step = found.step
    wanted = WantedTable(
        schema=schema.append(pa.field(PARTITION_COLUMN, pa.string())),
        partition_by=(PARTITION_COLUMN,),
        bucket_by=step.bucket_by,
        num_buckets=step.buckets,
        sort_by=tuple(step.sort_by or ()),
    )
    table = open_iceberg(
        catalog,
        found.table,
        wanted,
        "Overwrite",
        artifacts,
        compression="zstd",
        target_bytes=target_bytes,
    )
    given = {field.name: getattr(table, field.name) for field in fields(table)}
    covered = {key: found.wanted[key] for key in keys}
    return CacheTable(**given, recipe=found.recipe, covered=covered)
