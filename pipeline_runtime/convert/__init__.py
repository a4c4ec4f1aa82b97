"""`lastmile convert`: a flat Parquet table rewritten with its requests' columns stored once.

Reading order: `job` (a table to a folder) → `windows` (flat rows streamed, cut between requests) →
`grouping` (rows to requests) → `equality` (what equal means) → `encoding` (how columns are stored)
→ `destination` (the folder, whole or not at all). `sources.parquet.nested` defines the layout, and
reads the result as the flat table again.
"""

from pipeline_runtime.convert.destination import MARKER_NAME
from pipeline_runtime.convert.job import (
    DEFAULT_ROWS_PER_GROUP,
    ConversionOptions,
    ConversionSummary,
    convert_table,
)

__all__ = [
    "DEFAULT_ROWS_PER_GROUP",
    "MARKER_NAME",
    "ConversionOptions",
    "ConversionSummary",
    "convert_table",
]
