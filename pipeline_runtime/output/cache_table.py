"""A cache table of a materialization as the destination of an output.

The partition of the source is a column of the table, so that the rows of one can be replaced, and
read, alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from pipeline_runtime.config import Catalog as CatalogModel
from pipeline_runtime.errors import OutputRefused
from pipeline_runtime.iceberg.schemas import WantedTable
from pipeline_runtime.materialization.lookup import Materialization
from pipeline_runtime.materialization.recipe import Recipe
from pipeline_runtime.materialization.tables import (
    DELETING_PROPERTY,
    PARTITION_COLUMN,
    RECIPE_PROPERTY,
)
from pipeline_runtime.output.covered_table import CoveredTable, list_fields
from pipeline_runtime.output.iceberg import check_table_form, open_iceberg
from pipeline_runtime.sources import Location

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table, Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTable(CoveredTable):
    """A cache table; see `destination.Destination`."""

    recipe: Recipe

    def _check_state(self, table: Table | None) -> None:
        """Raise OutputRefused if the table cannot take the rows."""
        if table is None:
            return  # the plan has looked for its namespace
        check_table_form(table, self.wanted)
        if DELETING_PROPERTY in table.properties:
            raise OutputRefused(
                f"{self.name}: must not be deleted while rows for it are computed, but is being "
                "deleted. Finish `lastmile materializations prune`, then run again"
            )

    def _is_replaced(self, table: Table, file: DataFile) -> bool:
        """Return whether a file has rows of the commit's partitions."""
        place = [field.name for field in self.form.layout.spec.fields].index(PARTITION_COLUMN)
        return file.partition[place] in self.covered

    def _begin(self, transaction: Transaction) -> None:
        """Add to the transaction that creates the table."""
        transaction.set_properties({RECIPE_PROPERTY: self.recipe.to_json()})


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
    covered = {key: found.wanted[key] for key in keys}
    return CacheTable(**list_fields(table), recipe=found.recipe, covered=covered)
