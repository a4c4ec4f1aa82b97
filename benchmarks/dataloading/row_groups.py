"""The unit of work of the peers that read for themselves: one row group, read and worked on."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from benchmarks.dataloading.arrow_work import Arrays, process
from benchmarks.dataloading.workloads import SPAM_KEY, Workload

Unit = tuple[str, int]  # a file and a row group of it


def list_units(workload: Workload) -> list[Unit]:
    """The table's row groups, in the files' order."""
    return [(path, i) for path in list_files(workload) for i in range(_num_row_groups(path))]


def list_files(workload: Workload) -> list[str]:
    """The table's files."""
    files: list[str] = pads.dataset(f"{workload.root}/impressions", format="parquet").files
    return files


def _num_row_groups(path: str) -> int:
    with pq.ParquetFile(path) as file:
        return int(file.num_row_groups)


def read_spam(workload: Workload) -> pa.Array | None:
    """The ids of spam users; None at the level that keeps them."""
    if workload.level == "none":
        return None
    table = pq.read_table(f"{workload.root}/spam_users", columns=[SPAM_KEY])
    return table.column(SPAM_KEY).combine_chunks()


def read_unit(unit: Unit, workload: Workload, *, threads: bool = False) -> pa.Table:
    """A row group's columns in use; `threads` lets pyarrow's own decode them side by side."""
    path, row_group = unit
    with pq.ParquetFile(path) as file:
        return file.read_row_group(row_group, list(workload.read_columns), use_threads=threads)


def make_piece(
    unit: Unit, workload: Workload, spam: pa.Array | None, *, threads: bool = False
) -> Arrays:
    """A row group's rows that are left, in their final form."""
    return process(read_unit(unit, workload, threads=threads), workload, spam)
