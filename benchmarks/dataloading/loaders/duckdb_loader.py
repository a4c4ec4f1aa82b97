"""DuckDB: one query over the files, its result as a stream of Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pyarrow as pa

from benchmarks.dataloading.work.arrow_work import CHUNK_ROWS, batches_of
from benchmarks.dataloading.workloads import SPAM_KEY, Workload
from pipeline_runtime.batches import Batch

# Buffer for results that the trainer has not fetched. DuckDB's default of about 1 MB stalls its
# threads.
_STREAM_BUFFER = "256MB"


class DuckdbLoader:
    """Epochs by DuckDB."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._connection = duckdb.connect()
        self._connection.execute("set enable_progress_bar = false")
        self._connection.execute("set preserve_insertion_order = false")
        self._connection.execute(f"set streaming_buffer_size = '{_STREAM_BUFFER}'")

    def batches(self) -> Iterator[Batch]:
        """Yield the next epoch's batches."""
        reader = self._connection.sql(self._query()).to_arrow_reader(CHUNK_ROWS)
        return batches_of((pa.Table.from_batches([found]) for found in reader), self._workload)

    def _query(self) -> str:
        root, columns = self._workload.root, ", ".join(self._workload.read_columns)
        files = f"read_parquet('{root}/impressions/*/*.parquet', hive_partitioning = false)"
        query = f"select {columns} from {files}"
        if self._workload.level == "none":
            return query
        spam = f"read_parquet('{root}/spam_users/*.parquet')"
        return f"{query} anti join (select {SPAM_KEY} from {spam}) using ({SPAM_KEY})"
