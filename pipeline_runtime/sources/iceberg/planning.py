"""Plans the data files of a snapshot: PyIceberg prunes manifests and files, and finds deletes.

It runs on the planner only. `table` opens the footers of the files that remain, prunes their row
groups, and makes units of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
from pyarrow import fs as pafs

from pipeline_runtime.errors import SourceError
from pipeline_runtime.iceberg.catalogs import asking_catalog
from pipeline_runtime.sources.base import Bucketing, PartitionField
from pipeline_runtime.sources.iceberg.deletes import DeleteFile
from pipeline_runtime.sources.iceberg.schemas import id_of

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

_EPOCH = date(1970, 1, 1)
_EPOCH_TIME = datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFile:
    """A data file of the snapshot.

    Attributes:
        uri: the file, as the table's metadata name it.
        place: its path relative to the table's folder, or its URI if it is elsewhere.
        store, path: the key of its file system among the table's, and the path on it.
        partition: the values of partition fields, without the bucket.
        constants: the values, by field id, of columns by whose own value the file is partitioned.
        bucket: the bucket of all rows; -1 if their key is null; None if the file has none.
    """

    uri: str
    place: str
    store: str
    path: str
    partition: Mapping[str, Any]
    constants: Mapping[int, Any]
    bucket: int | None
    deletes: tuple[DeleteFile, ...]


@dataclass(slots=True, kw_only=True)
class Planner:
    """The state of a table that a run reads, and access to its files. Not sent to workers.

    Attributes:
        metadata: those of the table, whose current schema is the one that the run reads.
        snapshot: None if the table has none.
        stores: file systems by scheme and authority; those that are found are added.
    """

    name: str
    columns: pa.Schema  # with field ids
    metadata: TableMetadata
    snapshot: Snapshot | None
    io: FileIO
    stores: dict[str, Any] = field(default_factory=dict)
    _bucket: tuple[tuple[int, str], Bucketing] | None = field(init=False)
    _kinds: dict[int, pa.DataType] = field(init=False)  # of columns, by field id

    def __post_init__(self) -> None:
        self._bucket = _find_bucket(self.metadata.spec(), self.schema)
        self._kinds = {id_of(column): column.type for column in self.columns}

    @property
    def schema(self) -> Schema:
        """The schema that the run reads."""
        return self.metadata.schema()

    def find_bucketing(self) -> Bucketing | None:
        """Return the first bucket field of the table's current partition spec, with the others."""
        if self._bucket is None:
            return None
        return replace(self._bucket[1], partitions=tuple(self._find_partitions()))

    def _find_partitions(self) -> Iterator[PartitionField]:
        """Yield the fields that have one meaning in all partition specs, except for the bucket."""
        names = {column.field_id: column.name for column in self.schema.fields}
        meanings = defaultdict[str, set[tuple[int, str]]](set)
        for spec in self.metadata.partition_specs:
            for part in spec.fields:
                meanings[part.name].add((part.source_id, str(part.transform)))
        for name, found in meanings.items():
            (source_id, transform), *others = found
            if not others and source_id in names and transform != "void":
                yield PartitionField(name=name, column=names[source_id], transform=transform)

    @property
    def is_clustered(self) -> bool:
        """True if the table is partitioned, bucketed or sorted, or was for some of its files."""
        from pyiceberg.table.sorting import UNSORTED_SORT_ORDER_ID

        is_partitioned = any(not spec.is_unpartitioned() for spec in self.metadata.partition_specs)
        return is_partitioned or self.metadata.default_sort_order_id != UNSORTED_SORT_ORDER_ID

    def plan_files(self, row_filter: BooleanExpression) -> list[PlannedFile]:
        """Return the files that may hold rows for a filter, by partition and path.

        Raises:
            SourceError: the snapshot has equality deletes, files of other formats, or names
                metadata that are gone.
            StoreError: the store does not answer.
        """
        from pyiceberg.table import DataScan

        if self.snapshot is None:
            return []
        scan = DataScan(
            table_metadata=self.metadata,
            io=self.io,
            row_filter=row_filter,
            snapshot_id=self.snapshot.snapshot_id,
        )
        with asking_catalog(f"{self.name}: cannot plan the files of the snapshot"):
            self._refuse_equality_deletes()
            tasks = sorted(scan.plan_files(), key=self._order)
        return [self.describe(task) for task in tasks]

    def _refuse_equality_deletes(self) -> None:
        """Raise SourceError with a file's name; PyIceberg's own error has none."""
        from pyiceberg.manifest import DataFileContent, ManifestContent

        assert self.snapshot is not None
        for manifest in self.snapshot.manifests(self.io):
            if manifest.content != ManifestContent.DELETES:
                continue
            for entry in manifest.fetch_manifest_entry(self.io):
                if entry.data_file.content == DataFileContent.EQUALITY_DELETES:
                    raise SourceError(
                        f"{self.name}: must not have equality deletes, but snapshot "
                        f"{self.snapshot.snapshot_id} has some, such as "
                        f"{entry.data_file.file_path}. Compact the table "
                        "(CALL system.rewrite_data_files with delete-file-threshold => 1), then "
                        "read the new snapshot"
                    )

    def _order(self, task: FileScanTask) -> tuple[Any, ...]:
        """Order files by their partition, and by their path within it."""
        values = (task.file.partition[i] for i in range(len(task.file.partition)))
        keys = tuple((value is not None, value) for value in values)
        return (task.file.spec_id, keys, task.file.file_path)

    def describe(self, task: FileScanTask) -> PlannedFile:
        """Return a file of the snapshot as units name it. Raises SourceError for other formats."""
        file = task.file
        if file.file_format.name != "PARQUET":
            raise SourceError(
                f"{self.name}: must have Parquet files alone, but {file.file_path} is "
                f"{file.file_format.name}. Rewrite the table with write.format.default=parquet"
            )
        spec = self.metadata.specs()[file.spec_id]
        store, path = self.open_store(file.file_path)
        partition, constants, bucket = self._read_partition(file, spec)
        return PlannedFile(
            uri=file.file_path,
            place=self._place(file.file_path),
            store=store,
            path=path,
            partition=partition,
            constants=constants,
            bucket=bucket,
            deletes=tuple(
                self._describe_delete(each)
                for each in sorted(task.delete_files, key=lambda each: each.file_path)
            ),
        )

    def _describe_delete(self, file: DataFile) -> DeleteFile:
        kind = file.file_format.name
        if kind not in ("PARQUET", "PUFFIN"):
            raise SourceError(
                f"{self.name}: delete files must be Parquet or deletion vectors, but "
                f"{file.file_path} is {kind}. Compact the table, then read the new snapshot"
            )
        store, path = self.open_store(file.file_path)
        return DeleteFile(uri=file.file_path, store=store, path=path, is_vectors=kind == "PUFFIN")

    def _place(self, uri: str) -> str:
        root = self.metadata.location.rstrip("/") + "/"
        return uri.removeprefix(root)

    def _read_partition(
        self, file: DataFile, spec: PartitionSpec
    ) -> tuple[dict[str, Any], dict[int, Any], int | None]:
        """Return the partition values for people, those of columns, and the bucket."""
        values: dict[str, Any] = {}
        constants: dict[int, Any] = {}
        bucket = None
        for index, part in enumerate(spec.fields):
            value, transform = file.partition[index], str(part.transform)
            if self._bucket and (part.source_id, transform) == self._bucket[0]:
                bucket = -1 if value is None else int(value)
            elif transform == "identity" and part.source_id in self._kinds:
                constants[part.source_id] = value.bytes if isinstance(value, UUID) else value
                kind = self._kinds[part.source_id]
                values[part.name] = pa.scalar(constants[part.source_id], kind).as_py()
            elif transform not in ("identity", "void"):
                values[part.name] = _to_value(transform, value)
        return values, constants, bucket

    def open_store(self, uri: str) -> tuple[str, str]:
        """Return the key of a file's file system in `stores`, and its path there."""
        from pyiceberg.io.pyarrow import PyArrowFileIO

        scheme, authority, path = PyArrowFileIO.parse_location(uri, self.io.properties)
        key = f"{scheme}://{authority}"
        if key not in self.stores:
            self.stores[key] = self._open_filesystem(scheme, authority, uri)
        return key, path

    def _open_filesystem(self, scheme: str, authority: str, uri: str) -> Any:
        from pyiceberg.io.pyarrow import PyArrowFileIO

        if scheme == "file":
            return pafs.LocalFileSystem()
        with asking_catalog(f"{uri}: cannot open the store"):
            if isinstance(self.io, PyArrowFileIO):
                return self.io.fs_by_scheme(scheme, authority)
            get = self.io.get_fs  # type: ignore[attr-defined]  # FsspecFileIO
            return pafs.PyFileSystem(pafs.FSSpecHandler(get(scheme, authority)))


def _find_bucket(spec: PartitionSpec, schema: Schema) -> tuple[tuple[int, str], Bucketing] | None:
    """Return the first bucket field of a spec: its source and transform, and as a value."""
    from pyiceberg.transforms import BucketTransform

    names = {column.field_id: column.name for column in schema.fields}
    for part in spec.fields:
        if isinstance(part.transform, BucketTransform) and part.source_id in names:
            found = Bucketing(column=names[part.source_id], num_buckets=part.transform.num_buckets)
            return (part.source_id, str(part.transform)), found
    return None


def _to_value(transform: str, value: Any) -> Any:
    """Return a partition value for people: a day as a date, an hour as a time, and so on."""
    if not isinstance(value, int):
        return value
    if transform == "day":
        return _EPOCH + timedelta(days=int(value))
    if transform == "hour":
        return _EPOCH_TIME + timedelta(hours=int(value))
    if transform == "month":
        return f"{1970 + value // 12}-{value % 12 + 1:02d}"
    return 1970 + value if transform == "year" else value


def find_totals(snapshot: Snapshot | None, num_files: int, num_rows: int) -> tuple[int, int]:
    """Return the files and the rows of a snapshot by its summary, at least those given."""

    def find(name: str, at_least: int) -> int:
        text = str(snapshot.summary[name] if snapshot and snapshot.summary else "")
        return max(int(text), at_least) if text.isdigit() else at_least

    return find("total-data-files", num_files), find("total-records", num_rows)
