"""Iceberg tables: PyIceberg reads the metadata, Lastmile reads the rows.

    open_source ─▶ catalogs (metadata) ─▶ pins (snapshot, schema) ─▶ table (IcebergTable)
    planner:  table ─▶ pruning, planning (files by PyIceberg) ─▶ footers and deletes (units)
    workers:  table ─▶ sources.parquet (one row group) ─▶ reading (columns by field id), deletes

Workers import no PyIceberg. They open data files and delete files by the file systems that the
planner found, with its credentials.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline_runtime.config import IcebergSource
from pipeline_runtime.iceberg.catalogs import load_table
from pipeline_runtime.iceberg.pins import Pin, Reference
from pipeline_runtime.sources import Opening
from pipeline_runtime.sources.iceberg.table import IcebergTable, build_table
from pipeline_runtime.sources.parquet.opening import Opener

if TYPE_CHECKING:
    from pyiceberg.table import Table

__all__ = ["IcebergTable", "open_snapshot", "open_source"]


def open_source(model: IcebergSource, opening: Opening) -> IcebergTable:
    """Open a table for `sources.open_source`, at the snapshot at which the run is pinned."""
    reference = Reference(model.catalog, model.table, model.snapshot_id, model.branch, model.tag)
    found = load_table(opening.catalogs, model.catalog, model.table)
    pin = opening.pins.pin(reference, found.metadata, model.keep_days)
    opener = Opener(kernels=opening.kernels, decodes_pages=opening.decodes_pages)
    return build_table(found, pin, opener, model.sample_buckets)


def open_snapshot(found: Table, snapshot_id: int | None, schema_id: int) -> IcebergTable:
    """Open a table that is loaded already, for a command that also changes it.

    Args:
        snapshot_id: None if the table has none.
        schema_id: the schema of which it has the columns.

    Raises SourceError for a type that this release cannot read.
    """
    pin = Pin(
        catalog=found.catalog.name,
        table=".".join(found.name()),
        given=snapshot_id is not None,
        table_uuid=str(found.metadata.table_uuid),
        snapshot_id=None if snapshot_id is None else str(snapshot_id),
        schema_id=schema_id,
    )
    return build_table(found, pin, Opener(kernels=True, decodes_pages=True), None)
