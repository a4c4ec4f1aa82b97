"""The work of each level on one row group, for peers that read by themselves, and cut batches.

A peer does what Lastmile does, in the order in which a good engineer would: it computes the mask
from the small columns first, and then gathers the remaining rows once, in their final form. The
hash is Lastmile's, since another one would keep other rows. Conversion, padding and cutting are
Lastmile's too, so that the loaders differ only in how rows get to the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import torch

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
from pipeline_runtime import hashing, kernels
from pipeline_runtime.arrays.conversion import ROW_WEIGHT, Arrays, to_arrays
from pipeline_runtime.arrays.cuts import split_parts
from pipeline_runtime.batches import Batch
from pipeline_runtime.steps.pad_sequence.transform import pad_rows
from pipeline_runtime.steps.row_hash import IDENTITY_SEED

Bools = npt.NDArray[np.bool_]

kernels.warm()  # no first batch waits for them
_KERNELS: Final = kernels.select(True, 0)


class RowGroups:
    """The row groups of a flat table, and the work on each."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._spam = read_spam(workload)
        files = pads.dataset(f"{workload.root}/impressions", format="parquet").files
        # Each footer is parsed once, since that of a file with many row groups is long.
        self._footers = {path: pq.read_metadata(path) for path in files}
        self._units = [(p, i) for p in files for i in range(self._footers[p].num_row_groups)]

    def __len__(self) -> int:
        return len(self._units)

    def make(self, index: int, *, threads: bool = False) -> Arrays:
        """Return the remaining rows of a row group; with `threads`, pyarrow decodes in parallel."""
        path, group = self._units[index]
        columns = list(self._workload.read_columns)
        with pq.ParquetFile(path, metadata=self._footers[path]) as file:
            table = file.read_row_group(group, columns, use_threads=threads)
        return process(table, self._workload, self._spam)


def read_spam(workload: Workload) -> pa.Array:
    """Read the ids of spam users."""
    table = pq.read_table(f"{workload.root}/spam_users", columns=[SPAM_KEY])
    return table.column(SPAM_KEY).combine_chunks()


def process(table: pa.Table, workload: Workload, spam: pa.Array) -> Arrays:
    """Return the remaining rows of a table as arrays."""
    if workload.level == "none":
        plain = table.select(workload.columns)
        return to_arrays(plain, weight_column=None, label_column=None)
    label = to_numpy(table["clicked"]) | (to_numpy(pc.fill_null(table["saves"], 0)) > 0)
    kept = label | is_drawn(table[ROW_KEY])
    kept &= ~to_numpy(pc.is_in(table[SPAM_KEY], value_set=spam))
    rows = np.flatnonzero(kept)
    arrays = {name: to_numpy(table[name])[rows] for name in KEPT_COLUMNS}
    assert _KERNELS is not None  # numba is installed
    zero = pa.scalar(0, pa.int64())
    padded = pad_rows(table[SEQUENCE], rows, SEQUENCE_LENGTH, zero, _KERNELS)
    arrays[SEQUENCE] = to_numpy(padded.flatten()).reshape(-1, SEQUENCE_LENGTH)
    picked = pa.array(rows)
    for name in HASHED:
        arrays[name] = hash_ids(name, table[name].take(picked))
    arrays["label"] = label[rows]
    is_conversion = to_numpy(table["conversion_delay_hours"].is_valid())[rows]
    arrays["sample_weight"] = arrays[ROW_WEIGHT] = weigh(label[rows], is_conversion)
    return arrays


def is_drawn(row_keys: pa.Array | pa.ChunkedArray) -> Bools:
    """Return whether each row stays if it is a negative."""
    identities = hashing.hash_columns([row_keys], IDENTITY_SEED, _KERNELS)
    return hashing.keep_mask(identities, DOWNSAMPLE_SEED, KEEP_PERCENT)


def hash_ids(name: str, values: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Hash a column of ids to buckets, nulls like the value that fills them."""
    filled = pc.fill_null(values, UNKNOWN_TEXT if name in TEXTS else 0)
    return hashing.bucket_of(filled, HASH_SEED, NUM_BUCKETS, _KERNELS)


def weigh(label: Bools, is_conversion: Bools) -> npt.NDArray[np.float32]:
    """Return sample weights: a kept negative counts four times, a conversion twice."""
    weights = np.where(label, 1.0, 100 / KEEP_PERCENT)
    weights *= np.where(is_conversion, CONVERSION_WEIGHT, 1.0)
    return weights.astype(np.float32)


def to_numpy(values: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """Return the values, as a view if possible. Null floats become NaN."""
    if isinstance(values, pa.ChunkedArray):
        values = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
    return np.asarray(values.to_numpy(zero_copy_only=False))


def cut(chunks: Iterable[Arrays], batch_size: int) -> Iterator[Batch]:
    """Yield batches of exact size from chunks of any size; the last one may be smaller."""
    return map(as_tensors, split_parts(chunks, batch_size))


def as_tensors(arrays: Arrays) -> Batch:
    """Return arrays as tensors, without a copy."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
