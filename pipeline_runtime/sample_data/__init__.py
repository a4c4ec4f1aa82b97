"""A recommender's impression log, made from a seed, to try Lastmile on without data of one's own.

Reading order: `options` (what a caller sets, gets back) → `population` (users and items) →
`impressions` (chunks of rows, labels) → `file_layout` (files, layout, the no-op second call) →
`lake_tables` and `lake` (the same log as three Iceberg tables; only `lake` imports pyiceberg).
Called by the command line and the benchmarks; the files it writes are read by `sources` like any
other table. The columns are described in docs/sample-data.md.
"""

from pipeline_runtime.sample_data.file_layout import write_sample_data
from pipeline_runtime.sample_data.options import (
    MAX_ROWS,
    MIN_COMMAND_ROWS,
    SampleDataOptions,
    SampleDataSummary,
)

__all__ = [
    "MAX_ROWS",
    "MIN_COMMAND_ROWS",
    "SampleDataOptions",
    "SampleDataSummary",
    "write_sample_data",
]
