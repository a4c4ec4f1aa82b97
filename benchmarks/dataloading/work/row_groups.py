"""The unit of work of peers that read by themselves: one row group, read and processed."""

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

Unit = tuple[str, int]  # a file, and the index of its row group


class Footers(dict[str, pq.FileMetaData]):
    """Footers of files, each parsed once, since that of a file with many row groups is long."""

    def __missing__(self, path: str) -> pq.FileMetaData:
        footer = self[path] = pq.read_metadata(path)
        return footer


def list_units(workload: Workload, footers: Footers) -> list[Unit]:
    """List the row groups of the table in the order of its files."""
    return [
        (path, index)
        for path in list_files(workload)
        for index in range(footers[path].num_row_groups)
    ]


def list_files(workload: Workload) -> list[str]:
    """List the files of the table."""
    files: list[str] = pads.dataset(f"{workload.root}/impressions", format="parquet").files
    return files


def read_spam(workload: Workload) -> pa.Array | None:
    """Read the ids of spam users; None at the level that keeps their rows."""
    if workload.level == "none":
        return None
    table = pq.read_table(f"{workload.root}/spam_users", columns=[SPAM_KEY])
    return table.column(SPAM_KEY).combine_chunks()


def read_unit(
    unit: Unit, workload: Workload, footers: Footers, *, threads: bool = False
) -> Columns:
    """Read the columns in use of a row group; with `threads`, pyarrow decodes them in parallel."""
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
    """Return the remaining rows of a row group in their final form."""
    return process(read_unit(unit, workload, footers, threads=threads), workload, spam)
