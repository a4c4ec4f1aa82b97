"""Hugging Face datasets: the files as a stream of Arrow batches, in the workers of a DataLoader.

It uses the best setting of the DataLoader that reads row groups by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, ClassVar

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the import: all files are here

from datasets import disable_progress_bars, load_dataset  # type: ignore[import-not-found,unused-ignore]
from torch.utils.data import get_worker_info

from benchmarks.dataloading.loaders.torch_loader import TorchLoader
from benchmarks.dataloading.work.arrow_work import CHUNK_ROWS, Arrays, process
from benchmarks.dataloading.work.row_groups import flat_columns, list_files, read_spam
from benchmarks.dataloading.workloads import Workload


class Streamed:
    """The table's files, read by `load_dataset(…, streaming=True)`, divided among the workers."""

    def __init__(self, workload: Workload) -> None:
        disable_progress_bars()
        self._workload = workload
        self._spam = read_spam(workload)
        files, columns = list_files(workload), list(workload.read_columns)
        self._stream: Any = load_dataset(
            "parquet", data_files=files, split="train", streaming=True, columns=columns
        ).with_format("arrow")

    def pieces(self) -> Iterator[Arrays]:
        """See torch_loader.Source."""
        for table in self._share().iter(CHUNK_ROWS):
            yield process(flat_columns(table), self._workload, self._spam)

    def _share(self) -> Any:
        worker = get_worker_info()
        if worker is None:
            return self._stream
        if worker.id >= self._stream.num_shards:  # more workers than files
            return self._stream.take(0)
        num_shards = min(worker.num_workers, self._stream.num_shards)
        return self._stream.shard(num_shards, worker.id)


class DatasetsLoader(TorchLoader):
    """Epochs by Hugging Face's `IterableDataset`."""

    source: ClassVar[Any] = Streamed
