"""The work of each level on one row group, as a good engineer writes it without Lastmile.

pyarrow reads and filters, numpy does the rest, vectorised, or numba where it is installed: the mask
first, from the small columns, then one gather of what is left, in its final form. Peers that read
for themselves call it on row groups, those with an engine of their own on what it hands on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.dataloading.workloads import (
    CONVERSION_WEIGHT,
    DOWNSAMPLE_SEED,
    HASH_SEED,
    HASHED,
    KEEP_PERCENT,
    KEPT_COLUMNS,
    NUM_BUCKETS,
    ROW_KEY,
    SEQUENCE,
    SEQUENCE_LENGTH,
    SPAM_KEY,
    TEXTS,
    UNKNOWN_TEXT,
    Workload,
)
from pipeline_runtime import hashing
from pipeline_runtime.batches import OFFSETS_SUFFIX, ROW_WEIGHT, VALUES_SUFFIX

try:
    from benchmarks.dataloading import numba_work
except ModuleNotFoundError:
    numba_work = None  # type: ignore[assignment]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
# A batch, or more, as numpy: a list column is two arrays, see `pipeline_runtime.batches`.
Arrays = dict[str, Array]

# Rows padded at once: their index matrix stays in the second-level cache.
_PAD_ROWS = 2048


def process(table: pa.Table, workload: Workload, spam: pa.Array | None) -> Arrays:
    """The rows of a row group that are left, as arrays.

    Args:
        table: the columns in use.
        workload: whose level says what is done.
        spam: the ids of spam users; None where their rows are gone, or stay.
    """
    if workload.level == "heavy":
        return _process_heavy(table, spam)
    if spam is not None:
        table = table.filter(pc.invert(pc.is_in(table.column(SPAM_KEY), value_set=spam)))
    arrays: Arrays = {}
    for name in workload.columns:
        arrays.update(_convert(name, one_chunk(table.column(name))))
    arrays[ROW_WEIGHT] = np.ones(table.num_rows, dtype=np.float32)
    return arrays


def _process_heavy(table: pa.Table, spam: pa.Array | None) -> Arrays:
    columns = {name: one_chunk(table.column(name)) for name in table.column_names}
    saves = pc.fill_null(columns["saves"], 0)
    label = to_numpy(columns["clicked"]) | (to_numpy(saves) > 0)
    kept = label | is_drawn(columns[ROW_KEY])
    if spam is not None:
        kept &= ~to_numpy(pc.is_in(columns[SPAM_KEY], value_set=spam))
    rows = np.flatnonzero(kept)
    arrays: Arrays = {name: to_numpy(columns[name])[rows] for name in KEPT_COLUMNS}
    arrays[SEQUENCE] = pad_rows(columns[SEQUENCE], rows)
    indices = pa.array(rows)
    for name in HASHED:
        arrays[name] = hash_ids(fill(name, columns[name].take(indices)))
    arrays["label"] = label = label[rows]
    is_conversion = to_numpy(columns["conversion_delay_hours"].is_valid())[rows]
    arrays["sample_weight"] = arrays[ROW_WEIGHT] = weigh(label, is_conversion)
    return arrays


def is_drawn(row_keys: pa.Array) -> Bools:
    """Which rows stay if they are negatives: Lastmile's own decision, the kernel that is shared."""
    if numba_work is not None:
        return numba_work.is_drawn(to_numpy(row_keys), DOWNSAMPLE_SEED, KEEP_PERCENT)
    return hashing.keep_mask(hashing.hash_columns([row_keys], 0), DOWNSAMPLE_SEED, KEEP_PERCENT)


def hash_ids(values: pa.Array) -> Int64s:
    """Buckets of ids without nulls: the other kernel that is shared."""
    if numba_work is not None and pa.types.is_integer(values.type):
        return numba_work.hash_ids(to_numpy(values), HASH_SEED, NUM_BUCKETS)
    return hashing.bucket_of(values, HASH_SEED, NUM_BUCKETS)


def fill(name: str, values: pa.Array) -> pa.Array:
    """Categorical values with their nulls filled."""
    return pc.fill_null(values, UNKNOWN_TEXT if name in TEXTS else 0)


def weigh(label: Bools, is_conversion: Bools) -> npt.NDArray[np.float32]:
    """Sample weights: a kept negative stands for four, and conversions count twice."""
    weights = np.where(label, 1.0, 100 / KEEP_PERCENT)
    weights *= np.where(is_conversion, CONVERSION_WEIGHT, 1.0)
    return weights.astype(np.float32)


def pad_rows(lists: pa.ListArray, rows: Int64s) -> Int64s:
    """The lists of those rows, cut or filled up with zeros to `SEQUENCE_LENGTH` [rows, length]."""
    values, offsets = to_numpy(lists.values), to_numpy(lists.offsets).astype(np.int64)
    if numba_work is not None:
        return numba_work.pad_rows(values, offsets, rows, SEQUENCE_LENGTH)
    starts, lengths = offsets[rows], offsets[rows + 1] - offsets[rows]
    padded = np.empty((len(rows), SEQUENCE_LENGTH), dtype=np.int64)
    places = np.arange(SEQUENCE_LENGTH)
    for first in range(0, len(rows), _PAD_ROWS):
        block = slice(first, first + _PAD_ROWS)
        np.take(values, starts[block, None] + places, mode="clip", out=padded[block])
        padded[block][places >= lengths[block, None]] = 0
    return padded


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """The column in one piece, without a copy if it is that already."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def to_numpy(array: pa.Array) -> Array:
    """An array's values; a view where Arrow's memory allows; null floats become NaN."""
    if pa.types.is_timestamp(array.type):
        array = array.view(pa.int64())
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _convert(name: str, array: pa.Array) -> Arrays:
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        return {name: to_numpy(array)}
    offsets = to_numpy(array.offsets).astype(np.int64)
    values = to_numpy(array.values)[offsets[0] : offsets[-1]]
    return {name + VALUES_SUFFIX: values, name + OFFSETS_SUFFIX: offsets - offsets[0]}


def num_rows(arrays: Mapping[str, Array]) -> int:
    """Rows of a batch as arrays."""
    return len(arrays[ROW_WEIGHT])
