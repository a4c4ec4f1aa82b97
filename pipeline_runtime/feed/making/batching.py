"""Batches made by readers: mini-batches are cut and collated where their rows are made.

Data workers do this work once per chunk; the trainer's process would do it for each batch and
column. The batches of a chunk begin with its first row. Its remaining rows are joined with those of
other chunks (`training.stream`). If the order of rows is fixed (`preserveOrder`), batches continue
from chunk to chunk, so that only the trainer can cut them. The readers of `Pipeline.loader` are
threads of the trainer: they convert the rows in either case, and the trainer cuts views of arrays.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import pyarrow as pa

from pipeline_runtime.arrays.conversion import to_arrays
from pipeline_runtime.arrays.cuts import num_rows_of, split_parts
from pipeline_runtime.config import Training
from pipeline_runtime.feed.chunk import Batches, Chunk
from pipeline_runtime.plan.model import Delivery, StreamPlan
from pipeline_runtime.steps.base import GROUP_HASH_COLUMN, ROW_HASH_COLUMN


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Settings by which readers make batches; columns as `to_arrays` takes them.

    Attributes:
        once: columns that batches carry once per request.
        cuts: cut batches of `batch_size` rows; if False, the trainer cuts them, in any size.
    """

    batch_size: int
    weight_column: str | None
    label_column: str | None
    once: Sequence[str] = ()
    cuts: bool = True


def batching_of(delivery: Delivery, stream: StreamPlan, training: Training) -> Batching | None:
    """Return the batching of a stream's readers; None if the trainer makes its batches."""
    if not delivery.is_ready:
        return None
    return Batching(
        batch_size=training.batch_size,
        weight_column=training.weight_column,
        label_column=training.label_column,
        once=stream.request_columns,
    )


def make_ready(chunk: Chunk, batching: Batching) -> Chunk:
    """Return the chunk with its table as batches. Raises TrainingError as `to_arrays` does."""
    started = time.perf_counter()
    table = chunk.table
    parts = [
        to_arrays(
            part,
            weight_column=batching.weight_column,
            label_column=batching.label_column,
            is_shared=chunk.is_shared,
        )
        for part in _parts(table, batching.batch_size)
    ]
    batches = tuple(parts)
    if batching.cuts:
        batches = tuple(split_parts(parts, batching.batch_size, batching.once))
    hashes = table.column(ROW_HASH_COLUMN).to_numpy()
    has_groups = GROUP_HASH_COLUMN in table.schema.names
    num_bytes = hashes.nbytes + sum(array.nbytes for part in parts for array in part.values())
    is_counted = None
    if batching.weight_column is not None:
        is_counted = np.concatenate([part[batching.weight_column] > 0 for part in parts])
    made = Batches(
        starts=tuple(accumulate(map(num_rows_of, batches[:-1]), initial=0)),
        batches=batches,
        num_bytes=num_bytes,
        hashes=hashes,
        is_counted=is_counted,
        once=tuple(batching.once),
        groups=table.column(GROUP_HASH_COLUMN).to_numpy() if has_groups else None,
    )
    header = replace(chunk.header, batching_seconds=time.perf_counter() - started)
    return replace(chunk, header=header, rows=made)


def _parts(table: pa.Table, batch_size: int) -> list[pa.Table]:
    """Return the table, or its contiguous parts, which then need not be joined."""
    lengths = [len(chunk) for chunk in table.column(ROW_HASH_COLUMN).chunks]
    if len(lengths) < 2 or min(lengths) < batch_size:
        return [table]
    return [pa.Table.from_batches([batch]) for batch in table.to_batches()]
