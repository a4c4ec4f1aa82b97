"""Shared part of the query engines, which scan, project, drop spam users, and return Arrow.

The remaining work is the same as that of all peers. It runs on each chunk in the trainer's process,
while the engine's threads make the next chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from benchmarks.dataloading.work.arrow_work import process
from benchmarks.dataloading.work.batching import cut, to_tensors
from benchmarks.dataloading.work.row_group_columns import flat_columns
from benchmarks.dataloading.workloads import Workload
from pipeline_runtime.batches import Batch

# As many as in a row group: few enough to wait for, many enough for vectorised work.
CHUNK_ROWS = 16_384


def batches_of(chunks: Iterable[pa.Table], workload: Workload) -> Iterator[Batch]:
    """Yield batches of an engine's chunks, which have no rows of spam users."""
    pieces = (to_tensors(process(flat_columns(plain(chunk)), workload, None)) for chunk in chunks)
    return cut(pieces, workload.batch_size)


def plain(table: pa.Table) -> pa.Table:
    """Convert string views to strings: Arrow cannot fill nulls of views."""
    for index, field in enumerate(table.schema):
        if pa.types.is_string_view(field.type):
            text = table.column(index).cast(pa.large_string())
            table = table.set_column(index, field.name, text)
    return table
