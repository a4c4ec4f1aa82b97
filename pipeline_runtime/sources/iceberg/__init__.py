"""Iceberg tables: PyIceberg reads the metadata, Lastmile reads the rows.

    open_source ─▶ catalogs (metadata) ─▶ pins (snapshot, schema) ─▶ table (IcebergTable)
    planner:  table ─▶ pruning, planning (files by PyIceberg) ─▶ footers and deletes (units)
    workers:  table ─▶ sources.parquet (one row group) ─▶ schemas (columns by field id), deletes

Workers import no PyIceberg. They open data files and delete files by the file systems that the
planner found, with its credentials.
"""

from __future__ import annotations

from pipeline_runtime.config import IcebergSource
from pipeline_runtime.iceberg.catalogs import load_table
from pipeline_runtime.iceberg.pins import Reference
from pipeline_runtime.sources import Opening
from pipeline_runtime.sources.iceberg.table import IcebergTable, build_table
from pipeline_runtime.sources.parquet.opening import Opener

__all__ = ["IcebergTable", "open_source"]


def open_source(model: IcebergSource, opening: Opening) -> IcebergTable:
    """Open a table for `sources.open_source`, at the snapshot at which the run is pinned."""
    reference = Reference(model.catalog, model.table, model.snapshot_id, model.branch, model.tag)
    found = load_table(opening.catalogs, model.catalog, model.table)
    pin = opening.pins.pin(reference, found.metadata)
    opener = Opener(kernels=opening.kernels, decodes_pages=opening.decodes_pages)
    return build_table(found, pin, opener, model.sample_buckets)
