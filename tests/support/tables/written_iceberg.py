"""Output jobs that write Iceberg tables, and a file system and a catalog that kill them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from written_tables import KillingStorage, Written

from pipeline_runtime.config import Catalog
from pipeline_runtime.iceberg.schemas import WantedTable, find_writable
from pipeline_runtime.output.iceberg import IcebergTable, SplitByPartition, open_iceberg
from pipeline_runtime.output.job import Target
from pipeline_runtime.output.storage import Storage
from pipeline_runtime.sources import open_location


def make_lake(folder: Path) -> SqlCatalog:
    """Create a catalog on SQLite with a namespace, and the warehouse beside it."""
    catalog = SqlCatalog(
        "lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/lake"
    )
    catalog.create_namespace("db")
    return catalog


@dataclass(frozen=True, kw_only=True)
class WrittenIceberg(Written):
    """The settings of a job; `uri` is the folder of `make_lake`, unless `model` is a catalog."""

    model: Catalog | None = None

    table: str = "db.t"
    bucket_by: str | None = None
    num_buckets: int = 0
    sort_by: tuple[str, ...] = ()
    max_sorted_bytes: int = 1 << 30
    wrap: Callable[[Any], None] | None = None

    def target(self) -> Target:
        schema = self.stream.output_schema
        lake = f"sqlite:///{self.uri}/catalog.db"
        found = open_iceberg(
            self.model
            or Catalog(name="lake", type="Sql", uri=lake, warehouse=f"file://{self.uri}/lake"),
            self.table,
            WantedTable(
                schema=pa.schema([(field.name, find_writable(field.type)) for field in schema]),
                partition_by=self.partition_by,
                bucket_by=self.bucket_by,
                num_buckets=self.num_buckets,
                sort_by=self.sort_by,
            ),
            self.mode,
            open_location(f"{self.uri}/artifacts"),
            compression="zstd",
            target_bytes=self.target_bytes,
        )
        table = replace(found, form=replace(found.form, max_sorted_bytes=self.max_sorted_bytes))
        if self.storage is KillingStorage:
            table = _make_killable(table)
        if self.wrap:
            self.wrap(table.catalog)
        return Target(
            name=self.table,
            destination=table,
            form=table.form,
            split=SplitByPartition(table.form.layout),
            layout=table.form.layout.to_json(),
        )


class _KillableTable(IcebergTable):
    __slots__ = ()

    def stage(self, run: str) -> Storage:
        return KillingStorage(super().stage(run).location)


def _make_killable(table: IcebergTable) -> IcebergTable:
    table.catalog.__class__ = KillingCatalog
    layout = replace(table.form.layout, io=KillingIO(table.form.layout.io.properties))
    return _KillableTable(
        catalog=table.catalog,
        name=table.name,
        wanted=table.wanted,
        mode=table.mode,
        artifacts=table.artifacts,
        form=replace(table.form, layout=layout),
    )


def list_orphans(table: Table) -> set[str]:
    """Return the data files and manifests in a table's folder that no snapshot names."""
    used = set()
    for snapshot in table.metadata.snapshots:
        used.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            used.add(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
            used |= {entry.data_file.file_path for entry in entries}
    folder = Path(table.location().removeprefix("file://"))
    found = {f"file://{p}" for p in folder.rglob("*") if p.suffix in (".parquet", ".avro")}
    return found - used


class KillingCatalog(SqlCatalog):
    """Dies before or after its commits, as `KillingStorage` does at changes of the store."""

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> Any:
        with KillingStorage.step("commit"):
            return super().commit_table(table, requirements, updates)


class KillingIO(PyArrowFileIO):
    """Dies before or after it opens or deletes a data file."""

    def new_output(self, location: str) -> Any:
        with KillingStorage.step("data file"):
            return super().new_output(location)

    def delete(self, location: Any) -> None:
        with KillingStorage.step("delete data file"):
            super().delete(location)
