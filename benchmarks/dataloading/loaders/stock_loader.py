"""Ray Data, as its documentation teaches: read_parquet, map_batches per step, torch batches.

Columns are selected; each step is a function of numpy batches, the default format; all other
settings are Ray's defaults. Ray has no default conversion of ragged lists to tensors, so the
level that delivers such lists collates Arrow batches, which Ray's documentation recommends as the
fastest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import ray.data
from ray.data.collate_fn import ArrowBatchCollateFn

from benchmarks.dataloading.loaders.row_groups import (
    as_tensors,
    hash_ids,
    is_drawn,
    read_spam,
    weigh,
)
from benchmarks.dataloading.workloads import (
    BATCH_SIZE,
    HASHED,
    ROW_KEY,
    SEQUENCE,
    SEQUENCE_LENGTH,
    SPAM_KEY,
    TEXTS,
    Workload,
)
from pipeline_runtime.arrays.conversion import to_arrays
from pipeline_runtime.batches import ROW_WEIGHT, Batch

NumpyBatch = dict[str, npt.NDArray[Any]]


class StockLoader:
    """Epochs by Ray Data alone."""

    def __init__(self, workload: Workload) -> None:
        # Without Ray Data's output; its work stays the same.
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = context.print_on_execution_start = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        self._is_heavy = workload.level == "heavy"
        dataset = ray.data.read_parquet(f"{workload.root}/impressions")
        dataset = dataset.select_columns(list(workload.read_columns))
        if self._is_heavy:
            spam = {"spam": read_spam(workload).to_numpy()}
            dataset = dataset.map_batches(drop_spam, fn_kwargs=spam)  # type: ignore[arg-type]
            for step in (derive_label, downsample, add_weight, pad_sequence, hash_categories):
                dataset = dataset.map_batches(step)
            dataset = dataset.select_columns(list(workload.columns))
        self._dataset = dataset

    def batches(self) -> Iterator[Batch]:
        """Yield the next epoch's batches."""
        if not self._is_heavy:
            collate = CollateArrow()
            yield from self._dataset.iter_torch_batches(batch_size=BATCH_SIZE, collate_fn=collate)
            return
        for batch in self._dataset.iter_torch_batches(batch_size=BATCH_SIZE):
            batch[ROW_WEIGHT] = batch["sample_weight"]
            yield batch


class CollateArrow(ArrowBatchCollateFn):
    """Converts Arrow batches to tensors, and lists to values and offsets."""

    def __call__(self, batch: pa.Table) -> Any:
        """See ArrowBatchCollateFn."""
        return as_tensors(to_arrays(batch, weight_column=None, label_column=None))


def drop_spam(batch: NumpyBatch, spam: npt.NDArray[np.int64]) -> NumpyBatch:
    """Drop the rows of spam users."""
    kept = ~np.isin(batch[SPAM_KEY], spam)
    return {name: values[kept] for name, values in batch.items()}


def derive_label(batch: NumpyBatch) -> NumpyBatch:
    """Derive the label: clicked or saved. A missing count of saves arrives as NaN."""
    batch["label"] = batch["clicked"] | (np.nan_to_num(batch["saves"]) > 0)
    return batch


def downsample(batch: NumpyBatch) -> NumpyBatch:
    """Keep all positives, and choose negatives by the hash that all loaders share."""
    kept = batch["label"] | is_drawn(pa.array(batch[ROW_KEY]))
    return {name: values[kept] for name, values in batch.items()}


def add_weight(batch: NumpyBatch) -> NumpyBatch:
    """Add the sample weights."""
    batch["sample_weight"] = weigh(batch["label"], ~np.isnan(batch["conversion_delay_hours"]))
    return batch


def pad_sequence(batch: NumpyBatch) -> NumpyBatch:
    """Cut or pad each user's sequence to the common length."""
    padded = np.zeros((len(batch[SEQUENCE]), SEQUENCE_LENGTH), dtype=np.int64)
    for row, items in enumerate(batch[SEQUENCE]):
        length = min(len(items), SEQUENCE_LENGTH)
        padded[row, :length] = items[:length]
    batch[SEQUENCE] = padded
    return batch


def hash_categories(batch: NumpyBatch) -> NumpyBatch:
    """Hash the categorical ids to buckets. Ids with nulls arrive as floats."""
    for name in HASHED:
        values = batch[name]
        if name not in TEXTS:
            values = np.nan_to_num(values).astype(np.int64)
        batch[name] = hash_ids(name, pa.array(values))
    return batch
