"""Raw tables: `open_table` finds the table that a manifest names and gives its schema and units.

Before this package runs `config`, which parsed the manifest; after it `plan`, which decides what
of the table is read.
"""

from __future__ import annotations

from pipeline_runtime.config import SourceChoice
from pipeline_runtime.errors import SourceError
from pipeline_runtime.sources.base import Pruning, RawTable, Scan, Unit
from pipeline_runtime.sources.filesystem import Location, open_location, resolve_uri
from pipeline_runtime.sources.parquet import ParquetTable, open_parquet

__all__ = [
    "Location",
    "ParquetTable",
    "Pruning",
    "RawTable",
    "Scan",
    "Unit",
    "open_location",
    "open_parquet",
    "open_table",
    "resolve_uri",
]


def open_table(choice: SourceChoice, storage_root: str, *, decodes_pages: bool = False) -> RawTable:
    """Open the one source that a manifest gives; `decodes_pages` as in `open_parquet`.

    Raises SourceError if it cannot be found or read, or its kind has no reader here.
    """
    if choice.parquet is not None:
        return open_parquet(choice.parquet, storage_root, decodes_pages=decodes_pages)
    raise SourceError(
        "iceberg: this release reads parquet tables only; give dataset.parquet instead"
    )
