"""A main table of two days, bucketed by user, and staging tables for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DateType, DoubleType, IcebergType, LongType, NestedField, StringType

from pipeline_runtime.iceberg.pins import Reference
from pipeline_runtime.promotion.partitions import PartitionChoice
from pipeline_runtime.promotion.promote import PromotionReport, promote
from pipeline_runtime.promotion.rollback import RolledBack, roll_back
from pipeline_runtime.promotion.staging import StagingTable, pin_staging

DAY_1, DAY_2 = date(2026, 1, 1), date(2026, 1, 2)
Row = dict[str, Any]


@dataclass
class PromotionLake:
    """A catalog with the table `db.main`, of 40 rows: (day, user, item, clicks)."""

    catalog: Any  # any of PyIceberg's

    @classmethod
    def make(cls, folder: Path) -> PromotionLake:
        """Fill a catalog on SQLite."""
        uri, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/lake"
        return cls.fill(SqlCatalog("lake", uri=uri, warehouse=warehouse))

    @classmethod
    def fill(cls, catalog: Catalog) -> PromotionLake:
        catalog.create_namespace("db")
        schema = Schema(
            NestedField(1, "day", DateType()),
            NestedField(2, "user", LongType()),
            NestedField(3, "item", StringType()),
            NestedField(4, "clicks", LongType()),
        )
        spec = PartitionSpec(
            PartitionField(1, 1000, IdentityTransform(), "day"),
            PartitionField(2, 1001, BucketTransform(2), "user_bucket"),
        )
        catalog.create_table("db.main", schema, partition_spec=spec)
        lake = cls(catalog)
        lake.append(main_rows())
        return lake

    def append(self, rows: Sequence[Mapping[str, Any]], table: str = "db.main") -> None:
        """Append rows; columns that they lack are null."""
        found = self.catalog.load_table(table)
        found.append(pa.Table.from_pylist(list(rows), schema=found.schema().as_arrow()))

    @property
    def main(self) -> Table:
        table: Table = self.catalog.load_table("db.main")
        return table

    def rows(self, table: str = "db.main", **options: Any) -> list[Row]:
        """Return all rows of a table, sorted."""
        found = self.catalog.load_table(table).scan(**options).to_arrow().to_pylist()
        return sorted(found, key=lambda row: [(v is not None, v) for v in row.values()])

    def files(self) -> set[str]:
        """Return the paths of the live data files of the main table."""
        return {task.file.file_path for task in self.main.scan().plan_files()}

    def stored(self) -> set[str]:
        """Return the data files in the store, of the main table."""
        folder = Path(self.main.location().removeprefix("file://")) / "data"
        return {f"file://{path}" for path in folder.rglob("*.parquet")}

    def create_staging(
        self,
        name: str,
        rows: Sequence[Mapping[str, Any]],
        *,
        column: str = "ctr",
        kind: IcebergType | None = None,
        buckets: int | None = None,
        by_day: bool = False,
    ) -> StagingTable:
        """Create a staging table of (day, user, item) and one column, partitioned as told."""
        schema = Schema(
            NestedField(1, "day", DateType()),
            NestedField(2, "user", LongType()),
            NestedField(3, "item", StringType()),
            NestedField(4, column, kind or DoubleType()),
        )
        fields = [PartitionField(1, 1000, IdentityTransform(), "day")] if by_day else []
        if buckets:
            fields.append(PartitionField(2, 1001, BucketTransform(buckets), "bucket"))
        self.catalog.create_table(name, schema, partition_spec=PartitionSpec(*fields))
        self.append(rows, name)
        return self.stage(name, column)

    def stage(self, name: str, column: str = "ctr", *, max_bytes: int = 1 << 30) -> StagingTable:
        """Return the newest snapshot of a staging table."""
        keys = ("day", "user", "item")
        table = self.catalog.load_table(name)
        return pin_staging(
            Reference("lake", name),
            table,
            left_keys=keys,
            right_keys=keys,
            columns=(column,),
            max_bytes=max_bytes,
        )

    def promote(
        self, *staging: StagingTable, days: Sequence[str] = (), **options: Any
    ) -> PromotionReport:
        """Promote staging tables into days of the main table."""
        choice = choose(*days)
        return promote(self.catalog, "db.main", choice, staging, **options)

    def roll_back(self, to: int | None, *days: str, **options: Any) -> RolledBack:
        """Roll days of the main table back."""
        assert to is not None
        return roll_back(self.catalog, "db.main", choose(*days), to, **options)

    def head(self) -> int:
        """Return the newest snapshot of the main table."""
        snapshot = self.main.current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id


def choose(*days: str) -> PartitionChoice:
    return PartitionChoice.parse([f"day={day}" for day in days])


def main_rows(days: Sequence[date] = (DAY_1, DAY_2), users: int = 20) -> list[Row]:
    """Return a row for each day and user; one user is null."""
    return [
        {"day": day, "user": user or None, "item": f"i{user % 3}", "clicks": user * day.day}
        for day in days
        for user in range(users)
    ]


def feature_rows(rows: Sequence[Row], value: float = 0.5) -> list[Row]:
    """Return a staging row for each row of the main table."""
    return [
        {"day": row["day"], "user": row["user"], "item": row["item"], "ctr": value + row["clicks"]}
        for row in rows
    ]
