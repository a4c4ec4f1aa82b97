"""Parquet tables: files, directories with hive partitions, globs and lists, on any filesystem.

    open_parquet ─▶ listing (files) ─▶ fragments (footers) ─▶ schemas ─▶ table (ParquetTable)
    planner:  table ─▶ statistics (row groups that may hold a row) ─▶ footers (sizes, digests)
    workers:  table ─▶ opening (one file) ─▶ decoding (pages to columns, by kernels or pyarrow)
              nested (requests once), if the file says so of itself

`versions` gives the cache key of a file. `thrift` and `decoding` parse bytes, which they treat as
untrusted. `convert` writes nested files; everything else above knows only `sources.Source`.
"""

from __future__ import annotations

from pipeline_runtime.config import ParquetSource
from pipeline_runtime.sources import Opening
from pipeline_runtime.sources.parquet.table import ParquetTable, open_parquet

__all__ = ["ParquetTable", "open_parquet", "open_source"]


def open_source(model: ParquetSource, opening: Opening) -> ParquetTable:
    """Open a table for `sources.open_source`."""
    return open_parquet(
        model,
        opening.storage_root,
        kernels=opening.kernels,
        decodes_pages=opening.decodes_pages,
    )
