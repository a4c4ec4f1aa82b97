"""Shared part of the query engines: scan, project, drop spam users; Arrow comes out.

What is left, the same work as everybody's, runs on each of their chunks in the trainer's process,
while the engine's own threads make the next ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from benchmarks.dataloading.work.arrow_work import process
from benchmarks.dataloading.work.batching import cut, to_tensors
from benchmarks.dataloading.work.row_group_columns import flat_columns
from benchmarks.dataloading.workloads import Workload
from pipeline_runtime.batches import Batch

# As many as a row group of the table: few enough to wait for, many enough for vectorised work.
CHUNK_ROWS = 16_384


def batches_of(chunks: Iterable[pa.Table], workload: Workload) -> Iterator[Batch]:
    """Batches of what an engine gave; the rows of spam users are gone already."""
    pieces = (to_tensors(process(flat_columns(plain(chunk)), workload, None)) for chunk in chunks)
    return cut(pieces, workload.batch_size)


def plain(table: pa.Table) -> pa.Table:
    """Strings as Arrow's own: an engine's views have no kernels that fill nulls."""
    for index, field in enumerate(table.schema):
        if pa.types.is_string_view(field.type):
            text = table.column(index).cast(pa.large_string())
            table = table.set_column(index, field.name, text)
    return table
