"""Daft on its local runner: a frame over the files, its partitions as a stream of Arrow batches."""

from __future__ import annotations

import os
from collections.abc import Iterator

# Before the import: nothing leaves this machine.
os.environ.setdefault("DO_NOT_TRACK", "true")
os.environ.setdefault("DAFT_ANALYTICS_ENABLED", "0")
os.environ.setdefault("DAFT_PROGRESS_BAR", "0")
os.environ["DAFT_RUNNER"] = "native"

import daft  # type: ignore[import-not-found,unused-ignore]
import pyarrow as pa

from benchmarks.dataloading.work.arrow_work import batches_of
from benchmarks.dataloading.work.row_groups import list_files
from benchmarks.dataloading.workloads import SPAM_KEY, Workload
from pipeline_runtime.batches import Batch


class DaftLoader:
    """Epochs by Daft."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    def batches(self) -> Iterator[Batch]:
        """Yield the next epoch's batches."""
        frame = daft.read_parquet(list_files(self._workload))
        if self._workload.level != "none":
            spam = daft.read_parquet(f"{self._workload.root}/spam_users/*.parquet")
            frame = frame.join(spam.select(SPAM_KEY), on=SPAM_KEY, how="anti")
        found = frame.select(*self._workload.read_columns).to_arrow_iter()
        return batches_of((pa.Table.from_batches([chunk]) for chunk in found), self._workload)
