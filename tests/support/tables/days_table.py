"""An Iceberg table of a few days, and commits to it as other programs make them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.types import DateType, LongType, NestedField, TimestampType

SCHEMA = Schema(
    NestedField(1, "user_id", LongType()),
    NestedField(2, "day", DateType()),
    NestedField(3, "ts", TimestampType()),
    NestedField(4, "label", LongType()),
)


def make_rows(day: int, users: int = 4) -> pa.Table:
    """Return rows of one day of January 2026, one per hour."""
    hours = (day - 1) * 24
    start = 20_454 * 24  # hours until 2026-01-01
    times = [(start + hours + user % 24) * 3_600_000_000 for user in range(users)]
    return pa.table(
        {
            "user_id": pa.array(range(users), pa.int64()),
            "day": pa.array([20_454 + day - 1] * users, pa.int32()).cast(pa.date32()),
            "ts": pa.array(times, pa.int64()).cast(pa.timestamp("us")),
            "label": pa.array([0] * users, pa.int64()),
        }
    )


class _Replace(_OverwriteFiles):
    """Replaces files and says that no row changed, as a compaction by Spark does."""

    def _summary(self, *arguments: Any, **options: Any) -> Any:
        summary = super()._summary(*arguments, **options)
        return Summary(Operation.REPLACE, **summary.additional_properties)


def compact(table: Table) -> None:
    """Replace each data file by another one with the same rows."""
    old = [task.file for task in table.scan().plan_files()]
    rows = table.scan().to_arrow()
    with table.transaction() as transaction:
        files = _dataframe_to_data_files(transaction.table_metadata, rows, table.io)
        producer = _Replace(Operation.OVERWRITE, transaction, table.io)
        for file in old:
            producer.delete_data_file(file)
        for file in files:
            producer.append_data_file(file)
        producer.commit()
