"""Stock Ray Data, as its documentation teaches: read_parquet, map_batches a step, torch batches.

Columns are named to `read_parquet`; each step is a function of numpy batches, the default format;
everything else is left as Ray sets it. Lists of any length have no default conversion, so levels
that hand them on collate them from Arrow, which Ray's documentation recommends as the fastest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import ray.data
import torch
from ray.data.collate_fn import ArrowBatchCollateFn

from benchmarks.dataloading.arrow_work import (
    Arrays,
    fill,
    hash_ids,
    is_drawn,
    process,
    weigh,
)
from benchmarks.dataloading.torch_loader import to_tensors
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
from pipeline_runtime.batches import ROW_WEIGHT, Batch

NumpyBatch = dict[str, npt.NDArray[Any]]


class StockLoader:
    """One epoch by Ray Data alone."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        columns = list(workload.read_columns)
        dataset = ray.data.read_parquet(f"{workload.root}/impressions", columns=columns)
        if workload.level != "none":
            spam = pq.read_table(f"{workload.root}/spam_users", columns=[SPAM_KEY])
            dataset = dataset.map_batches(
                drop_spam, fn_kwargs={"spam": spam.column(SPAM_KEY).to_numpy()}
            )
        if workload.level == "heavy":
            for step in (derive_label, downsample, add_weight, pad_sequence, hash_categories):
                dataset = dataset.map_batches(step)
            dataset = dataset.select_columns(list(workload.columns))
        self._dataset = dataset

    def batches(self) -> Iterator[Batch]:
        """The epoch's batches."""
        if self._workload.level == "heavy":
            for batch in self._dataset.iter_torch_batches(batch_size=BATCH_SIZE):
                batch[ROW_WEIGHT] = batch["sample_weight"]
                yield batch
            return
        collate = CollateRagged(self._workload)
        yield from self._dataset.iter_torch_batches(batch_size=BATCH_SIZE, collate_fn=collate)

    def profile(self) -> dict[str, float]:
        """Ray's own statistics are not comparable."""
        return {}


class CollateRagged(ArrowBatchCollateFn):  # type: ignore[misc]
    """Arrow batches as tensors, lists as values and offsets."""

    def __init__(self, workload: Workload) -> None:
        self._plain = Workload(level="none", root=workload.root)

    def __call__(self, batch: pa.Table) -> dict[str, torch.Tensor]:
        return to_tensors(process(batch, self._plain, None))


def drop_spam(batch: NumpyBatch, spam: npt.NDArray[np.int64]) -> NumpyBatch:
    """Drop the rows of spam users."""
    kept = ~np.isin(batch[SPAM_KEY], spam)
    return {name: values[kept] for name, values in batch.items()}


def derive_label(batch: NumpyBatch) -> NumpyBatch:
    """Clicked or saved; a missing count of saves arrives as NaN."""
    batch["label"] = batch["clicked"] | (np.nan_to_num(batch["saves"]) > 0)
    return batch


def downsample(batch: NumpyBatch) -> NumpyBatch:
    """Keep all positives, and negatives by the hash that all loaders share."""
    kept = batch["label"] | is_drawn(pa.array(batch[ROW_KEY]))
    return {name: values[kept] for name, values in batch.items()}


def add_weight(batch: NumpyBatch) -> NumpyBatch:
    """Add the sample weights."""
    batch["sample_weight"] = weigh(batch["label"], ~np.isnan(batch["conversion_delay_hours"]))
    return batch


def pad_sequence(batch: NumpyBatch) -> NumpyBatch:
    """Cut or fill up each user's sequence."""
    padded = np.zeros((len(batch[SEQUENCE]), SEQUENCE_LENGTH), dtype=np.int64)
    for row, items in enumerate(batch[SEQUENCE]):
        length = min(len(items), SEQUENCE_LENGTH)
        padded[row, :length] = items[:length]
    batch[SEQUENCE] = padded
    return batch


def hash_categories(batch: NumpyBatch) -> Arrays:
    """Buckets of the categorical ids; ids with nulls arrive as floats."""
    for name in HASHED:
        values = batch[name]
        if name not in TEXTS:
            values = np.nan_to_num(values).astype(np.int64)
        batch[name] = hash_ids(fill(name, pa.array(values)))
    return batch
