"""The unit of work of the peers that read for themselves: one row group, read and worked on."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from benchmarks.dataloading.work.arrow_work import Arrays, process
from benchmarks.dataloading.work.row_group_columns import (
    COUNT_COLUMN,
    Columns,
    flat_columns,
    nested_columns,
)
from benchmarks.dataloading.workloads import ONCE, REQUEST_KEY, SPAM_KEY, Workload

Unit = tuple[str, int]  # a file and a row group of it


class Footers(dict[str, pq.FileMetaData]):
    """Footers of files, each parsed once: a file of many row groups has a long one."""

    def __missing__(self, path: str) -> pq.FileMetaData:
        footer = self[path] = pq.read_metadata(path)
        return footer


def list_units(workload: Workload, footers: Footers) -> list[Unit]:
    """The table's row groups, in the files' order."""
    return [
        (path, index)
        for path in list_files(workload)
        for index in range(footers[path].num_row_groups)
    ]


def list_files(workload: Workload) -> list[str]:
    """The table's files."""
    files: list[str] = pads.dataset(f"{workload.root}/impressions", format="parquet").files
    return files


def read_spam(workload: Workload) -> pa.Array | None:
    """The ids of spam users; None at the level that keeps them."""
    if workload.level == "none":
        return None
    table = pq.read_table(f"{workload.root}/spam_users", columns=[SPAM_KEY])
    return table.column(SPAM_KEY).combine_chunks()


def read_unit(
    unit: Unit, workload: Workload, footers: Footers, *, threads: bool = False
) -> Columns:
    """A row group's columns in use; `threads` lets pyarrow's own decode them side by side."""
    path, row_group = unit
    is_nested = workload.layout == "nested"
    names = [*workload.read_columns, *([COUNT_COLUMN] if is_nested else [])]
    with pq.ParquetFile(path, metadata=footers[path]) as file:
        table = file.read_row_group(row_group, names, use_threads=threads)
    if is_nested:
        return nested_columns(table, ONCE)
    return flat_columns(table, REQUEST_KEY if workload.is_deduplicated else None)


def make_piece(
    unit: Unit,
    workload: Workload,
    spam: pa.Array | None,
    footers: Footers,
    *,
    threads: bool = False,
) -> Arrays:
    """A row group's rows that are left, in their final form."""
    return process(read_unit(unit, workload, footers, threads=threads), workload, spam)
