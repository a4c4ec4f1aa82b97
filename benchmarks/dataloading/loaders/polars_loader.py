"""Polars: a lazy frame over the files, collected in batches by the streaming engine."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl  # type: ignore[import-not-found,unused-ignore]

from benchmarks.dataloading.work.arrow_work import CHUNK_ROWS, batches_of
from benchmarks.dataloading.work.row_groups import list_files
from benchmarks.dataloading.workloads import SPAM_KEY, Workload
from pipeline_runtime.batches import Batch


class PolarsLoader:
    """Epochs by Polars."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        columns = list(workload.read_columns)
        frame = pl.scan_parquet(list_files(workload), hive_partitioning=False)
        if workload.level != "none":
            spam = pl.scan_parquet(f"{workload.root}/spam_users/*.parquet").select(SPAM_KEY)
            frame = frame.join(spam, on=SPAM_KEY, how="anti")
        self._frame = frame.select(columns)

    def batches(self) -> Iterator[Batch]:
        """Yield the next epoch's batches."""
        chunks = self._frame.collect_batches(
            chunk_size=CHUNK_ROWS, maintain_order=False, engine="streaming"
        )
        return batches_of((chunk.to_arrow() for chunk in chunks), self._workload)
