"""Writes a data file again: the same rows in the same order, with other columns."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from pipeline_runtime.iceberg.files import UNSORTED, DataFileRecord, TableLayout, writing_file
from pipeline_runtime.promotion.partitions import Fingerprint, fingerprint
from pipeline_runtime.sources.iceberg import IcebergTable, open_snapshot

if TYPE_CHECKING:  # pyiceberg takes a while to import
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table

# Rows that are read at once, and the most of a row group that is written.
_ROW_GROUP_ROWS = 1 << 17
_COMPRESSION = "zstd"


def open_newest(table: Table) -> IcebergTable:
    """Open a table's newest snapshot, with the table's current schema."""
    snapshot = table.current_snapshot()
    snapshot_id = snapshot.snapshot_id if snapshot else None
    return open_snapshot(table, snapshot_id, table.metadata.current_schema_id)


def read_rows(
    source: IcebergTable, tasks: Iterable[FileScanTask], columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield the rows of data files in their order, without deleted rows, some at a time.

    Args:
        tasks: files of the source's snapshot, as PyIceberg plans them.

    Raises SourceError if a file is gone or broken.
    """
    for task in tasks:
        for unit in source.list_units(task):
            yield from source.read(unit, columns, _ROW_GROUP_ROWS)


@dataclass(slots=True)
class FileRewriter:
    """Writes files again, each once as long as it, its delete files and the schema stay the same.

    Attributes:
        written: the new file by the old one and the new schema; None if all rows are deleted.
        paths: all files that were written or begun.
    """

    written: dict[tuple[Fingerprint, str], DataFileRecord | None] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)

    def rewrite(
        self,
        table: Table,
        source: IcebergTable,
        task: FileScanTask,
        *,
        reads: Sequence[str],
        writes: Schema,
        change: Callable[[pa.Table], pa.Table] = lambda rows: rows,
        replaces: Collection[str] = (),
    ) -> DataFile | None:
        """Return the new data file of an old one; None if it would be empty.

        Args:
            source: the table, as `open_newest` opens it.
            reads: the columns to read.
            writes: the columns of the new file.
            change: called with rows of `reads`; returns as many rows with the columns of `writes`.
            replaces: columns with other values; an order by them is lost.
        """
        layout = replace(
            TableLayout.of(table), schema=writes, spec=table.specs()[task.file.spec_id]
        )
        key = fingerprint(task), str(writes)
        if key not in self.written:
            rows = (change(part) for part in read_rows(source, [task], reads))
            order = _find_order(table, task.file, {writes.find_field(n).field_id for n in replaces})
            self.written[key] = self._write(layout, task.file, rows, order)
        record = self.written[key]
        return None if record is None else layout.build_data_file(record)

    def _write(
        self, layout: TableLayout, old: DataFile, parts: Iterator[pa.Table], order: int
    ) -> DataFileRecord | None:
        first = next(parts, None)
        if first is None:
            return None
        values = tuple(old.partition[index] for index in range(len(layout.spec.fields)))
        path = layout.locate(layout.name_partition(values), f"{uuid.uuid4()}.parquet")
        self.paths.append(path)
        arrow_schema = layout.build_arrow_schema()
        with writing_file(layout, path, _COMPRESSION) as writer:
            for part in itertools.chain([first], parts):
                writer.write(part.select(arrow_schema.names).cast(arrow_schema))
            # The rows keep the order that they had.
            record = writer.finish(is_sorted=False)
        return record.model_copy(
            update={
                "partition": layout.encode_partition(values),
                "sort_order_id": order,
            }
        )


def _find_order(table: Table, file: DataFile, replaced: Collection[int]) -> int:
    """Return the id of a file's sort order, unless it is by columns that are replaced."""
    order = table.metadata.sort_order_by_id(file.sort_order_id or UNSORTED)
    if order is None or any(part.source_id in replaced for part in order.fields):
        return UNSORTED
    return int(order.order_id)
