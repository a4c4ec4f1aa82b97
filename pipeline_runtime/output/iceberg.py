"""An Iceberg table as the destination of an output.

Runs are staged in the folder of the run among the artifacts. Data files are written to the table's
own folder, under names that no other attempt has, and a file belongs to the table once a snapshot
names it. A new table is created by the same commit as its rows.

Files that no record names cannot be listed cheaply in a table of many files. So each attempt at a
merge task, and at a commit, records the names of its files before it writes them (`MergingRecord`,
`AttemptRecord`).
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pyarrow as pa

from pipeline_runtime.config import Catalog as CatalogModel
from pipeline_runtime.errors import OutputRefused
from pipeline_runtime.iceberg.catalogs import ask_catalog, asking_catalog, describe, open_catalog
from pipeline_runtime.iceberg.commits import (
    RUN_PROPERTY,
    TOKEN_PROPERTY,
    CommitKey,
    commit_change,
    find_commit,
    load_or_none,
    read_summary,
    remove_files,
)
from pipeline_runtime.iceberg.files import DataFileWriter, TableLayout, writing_file
from pipeline_runtime.iceberg.schemas import (
    WantedTable,
    build_order,
    build_spec,
    convert_schema,
    find_differences,
)
from pipeline_runtime.output import names
from pipeline_runtime.output.destination import Committed
from pipeline_runtime.output.merge import FileFormat, NewFile, Task
from pipeline_runtime.output.partitions import split_rows
from pipeline_runtime.output.place import Mode
from pipeline_runtime.output.records import (
    MergedRecord,
    MergingRecord,
    Record,
    RunRecord,
    StagedFile,
    read_record,
    read_records,
    write_record,
)
from pipeline_runtime.output.storage import Storage, storing
from pipeline_runtime.sources import Location
from pipeline_runtime.sources.stores import list_folder

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import CreateTableTransaction, Table, Transaction
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update.snapshot import _OverwriteFiles

_RUN_HASH_PROPERTY = "lastmile.run-hash"


class AttemptRecord(Record):
    """An attempt at a commit, stored before it writes anything.

    Attributes:
        uuid: part of the names of its manifests.
        head: the snapshot that it replaces; None if the table has none.
    """

    uuid: UUID
    snapshot_id: int
    head: int | None


@dataclass(frozen=True, slots=True)
class SplitByPartition:
    """Divides rows into the partitions of a table; see `partitions.Split`.

    Attributes:
        kernels: `pipelineOptions.debug.kernels`.
    """

    layout: TableLayout
    kernels: bool = True

    def __call__(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """Yield the name and the rows of each partition, in the types of the table's columns."""
        layout = self.layout
        rows = _cast(table, layout.build_arrow_schema())
        if (null := layout.find_missing_value(rows)) is not None:
            raise OutputRefused(
                f"spec.output: column {null!r}: must have a value in every row, since the table "
                "requires it, but is null in some. Fill or filter it in a step"
            )
        columns = layout.partition_columns(rows, kernels=self.kernels)

        def name(row: int) -> str:
            return layout.name_partition(layout.partition_values(columns, row))

        yield from split_rows(rows, columns, name)


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = []
    for field in schema:
        try:
            columns.append(table.column(field.name).cast(field.type))
        except pa.ArrowInvalid as error:
            raise OutputRefused(
                f"spec.output: column {field.name!r}: must hold values that the table's type "
                f"{field.type} can hold, but: {error}. Cast it in a step"
            ) from error
    return pa.table(columns, schema=schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergFormat(FileFormat):
    """Writes data files into a table's folder; see `merge.FileFormat`."""

    layout: TableLayout

    def announce(self, storage: Storage, task: Task, token: str) -> None:
        """Record an attempt at a task, since its files lie where no one can look for them."""
        parts = tuple((part.folder, part.number) for part in task.parts)
        name = f"{names.MERGING_FOLDER}/{token}.json"
        write_record(storage, name, MergingRecord(token=token, parts=parts))

    @contextmanager
    def create(self, storage: Storage, folder: str, name: str) -> Iterator[NewFile]:
        """Open a new data file of a partition."""
        path = self.locate(folder, name)
        with storing(path), writing_file(self.layout, path, self.compression) as writer:
            yield _IcebergFile(writer, is_sorted=bool(self.sort))

    def write_empty(self, storage: Storage) -> tuple[StagedFile, ...]:
        """Write nothing: the columns of a table without rows are in its metadata."""
        return ()

    def locate(self, partition: str, name: str) -> str:
        """Return the URI of a file; it is unique where folders are not those of partitions too."""
        digest = hashlib.blake2b(partition.encode(), digest_size=4).hexdigest()
        return self.layout.locate(partition, f"{digest}-{name}")


@dataclass(frozen=True, slots=True)
class _IcebergFile:
    """A data file that is being written; see `merge.NewFile`."""

    writer: DataFileWriter
    is_sorted: bool

    def tell(self) -> int:
        return self.writer.tell()

    def write(self, rows: pa.Table) -> None:
        self.writer.write(rows)

    def finish(self) -> StagedFile:
        record = self.writer.finish(is_sorted=self.is_sorted)
        return StagedFile(
            path=record.path, rows=record.num_rows, bytes=record.num_bytes, data_file=record
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergTable:
    """A table of a catalog; see `destination.Destination`.

    Attributes:
        name: the table, with its namespace.
        artifacts: folder of the experiment's runs.
        form: writes the table's files; its layout is the table's.
    """

    catalog: Catalog
    name: str
    wanted: WantedTable
    mode: Mode
    artifacts: Location
    form: IcebergFormat

    def list_runs(self) -> list[str]:
        infos = list_folder(self.artifacts, "look for staged runs")
        return sorted((info.base_name for info in infos), reverse=True)

    def stage(self, run: str) -> Storage:
        return Storage(self.artifacts.join(run, names.STAGING_FOLDER))

    def check(self, staged: tuple[str, str] | None = None) -> None:
        table = self._load()
        if staged is None or table is None or find_commit(table, staged[1]) is None:
            self._check(table)

    def _check(self, table: Table | None) -> None:
        """Raise OutputRefused if the table's present state forbids the commit."""
        if table is None:
            check_namespace(self.catalog, self.name)
            return
        check_table_form(table, self.wanted)
        from pipeline_runtime.iceberg.replacing import list_data_files

        with self._asking("list its files"):
            files = list_data_files(table)
        if files and self.mode == "Fail":
            raise OutputRefused(
                f"{self.name}: must be new or without rows, but has "
                f"{describe_files(files)}. Set spec.output.mode to Overwrite to replace them, or "
                "name another table"
            )

    def find(self, is_mine: Callable[[str], bool]) -> Committed | None:
        table = self._load()
        for snapshot in reversed(table.metadata.snapshots if table else []):
            if is_mine(read_summary(snapshot).get(RUN_PROPERTY, "")):
                return _describe(snapshot)
        return None

    def read(self, own_id: str) -> Committed | None:
        table = self._load()
        snapshot = find_commit(table, own_id) if table else None
        return _describe(snapshot) if snapshot else None

    def describe_other(self) -> str:
        return f"{self.name}: must have its snapshot, but has none or is gone"

    def commit(
        self,
        run: str,
        record: RunRecord,
        files: Sequence[StagedFile],
        check_claim: Callable[[], None],
    ) -> int:
        properties = {_RUN_HASH_PROPERTY: record.run_hash}
        key = CommitKey(run=run, token=record.id, properties=properties)
        stage = partial(self._stage, run, key, files)
        try:
            landed = commit_change(self.catalog, self.name, key, stage, before=check_claim)
        except OutputRefused:  # it is not in the table and never will be
            self._remove_files(run, is_committed=False)
            for folder in (names.MERGED_FOLDER, names.MERGING_FOLDER, names.COMMITS_FOLDER):
                self.stage(run).below(folder).remove()
            raise
        return landed.num_retries

    def _stage(
        self, run: str, key: CommitKey, files: Sequence[StagedFile], table: Table | None
    ) -> Transaction:
        """Stage the commit on the table's newest state; see `commits.Stage`."""
        self._check(table)
        layout = self.form.layout
        with self._asking("prepare the commit"):
            transaction: Transaction
            if table is None:
                new = create_table(self.catalog, self.name, self.wanted, layout.location)
                transaction, now = new, TableLayout.of_new(new)
            else:
                transaction, now = table.transaction(), TableLayout.of(table)
            if now.to_json() != layout.to_json():
                raise OutputRefused(
                    f"{self.name}: must keep its columns, partitions and order while rows for it "
                    "are written, but they were changed. Run again without --resume"
                )
            producer = self._replace(transaction, table, key.to_properties())
            attempt = AttemptRecord(
                uuid=producer.commit_uuid, snapshot_id=producer.snapshot_id, head=_find_head(table)
            )
            name = f"{names.COMMITS_FOLDER}/{attempt.uuid}.json"
            write_record(self.stage(run), name, attempt)
            for file in files:
                assert file.data_file is not None
                producer.append_data_file(layout.build_data_file(file.data_file))
            producer.commit()
        return transaction

    def _replace(
        self, transaction: Transaction, table: Table | None, properties: dict[str, str]
    ) -> _OverwriteFiles:
        """Return a snapshot that replaces the table's rows by files that are added to it."""
        from pipeline_runtime.iceberg.replacing import ReplaceAll

        return ReplaceAll(transaction, properties, uuid4())

    def clean_up(self, run: str) -> None:
        self._remove_files(run, is_committed=True)
        self.stage(run).remove()

    def abandon(self, run: str) -> bool:
        staged = self.stage(run)
        record = read_record(staged, names.RUN_FILE, RunRecord)
        if record is None:
            return True
        table = self._load()
        is_committed = table is not None and find_commit(table, record.id) is not None
        heads = [attempt.head for attempt in self._list_attempts(run)]
        if not is_committed and _find_head(table) in heads:
            return False  # the catalog may yet carry the commit out
        self._remove_files(run, is_committed=is_committed)
        staged.remove()
        return True

    def _list_attempts(self, run: str) -> list[AttemptRecord]:
        return list(read_records(self.stage(run), names.COMMITS_FOLDER, AttemptRecord).values())

    def _remove_files(self, run: str, *, is_committed: bool) -> None:
        """Delete the files of a run that its snapshot does not name, also those of lost workers."""
        merged_records = read_records(self.stage(run), names.MERGED_FOLDER, MergedRecord).values()
        merged = [file.path for record in merged_records for file in record.files]
        tokens = {path.rpartition("-")[2].removesuffix(".parquet") for path in merged}
        tasks = read_records(self.stage(run), names.MERGING_FOLDER, MergingRecord).values()
        table = self._load()
        snapshots = {s.snapshot_id for s in table.metadata.snapshots} if table else set()
        with self._asking("delete files of an attempt"):
            lost = [p for task in tasks if task.token not in tokens for p in self._find_data(task)]
            for attempt in self._list_attempts(run):
                if attempt.snapshot_id not in snapshots:
                    lost += self._find_metadata(attempt)
            remove_files(self.form.layout.io, lost + ([] if is_committed else merged))

    def _find_data(self, task: MergingRecord) -> Iterator[str]:
        """Yield the data files that an attempt at a merge task has written."""
        for partition, number in task.parts:
            names_of_part = (names.name_file(number, i, task.token) for i in itertools.count())
            yield from self._take_existing(self.form.locate(partition, n) for n in names_of_part)

    def _find_metadata(self, attempt: AttemptRecord) -> Iterator[str]:
        """Yield the manifests and the manifest list that an attempt at a commit has written."""
        from pipeline_runtime.iceberg.replacing import name_metadata

        manifest_list, manifests = name_metadata(attempt.uuid, attempt.snapshot_id)
        locate = self.form.layout.locate_metadata
        yield from self._take_existing([locate(manifest_list)])
        yield from self._take_existing(locate(name) for name in manifests)

    def _take_existing(self, paths: Iterable[str]) -> Iterator[str]:
        """Return the paths up to the first at which there is no file."""
        io = self.form.layout.io
        return itertools.takewhile(lambda path: io.new_input(path).exists(), paths)

    def _load(self) -> Table | None:
        what = describe(self.catalog.name, f"load the table {self.name!r}")
        return ask_catalog(what, lambda: load_or_none(self.catalog, self.name))

    def _asking(self, what: str) -> AbstractContextManager[None]:
        return asking_catalog(describe(self.catalog.name, f"{what} ({self.name})"))


def open_iceberg(
    catalog: CatalogModel,
    name: str,
    wanted: WantedTable,
    mode: Mode,
    artifacts: Location,
    *,
    compression: str,
    target_bytes: int,
) -> IcebergTable:
    """Open a table to write, or prepare to create it.

    Args:
        name: the table, with its namespace.
        artifacts: folder of the experiment's runs.

    Raises OutputRefused if the table's columns, partitions or order are others, or its namespace
    does not exist; SourceError or StoreError if the catalog does not answer.
    """
    client = open_catalog(catalog)
    what = describe(catalog.name, f"load the table {name!r}")
    table = ask_catalog(what, lambda: load_or_none(client, name))
    if table is None:
        check_namespace(client, name)
        layout = TableLayout.of_new(
            ask_catalog(what, lambda: create_table(client, name, wanted, None))
        )
    else:
        check_table_form(table, wanted)
        layout = TableLayout.of(table)
    form = build_form(layout, compression, target_bytes)
    return IcebergTable(
        catalog=client, name=name, wanted=wanted, mode=mode, artifacts=artifacts, form=form
    )


def build_form(layout: TableLayout, compression: str, target_bytes: int) -> IcebergFormat:
    """Return what writes the files of a table."""
    schema = layout.build_arrow_schema()
    return IcebergFormat(
        layout=layout,
        schema=schema,
        full_schema=schema,
        compression=compression,
        target_bytes=target_bytes,
        sort=layout.find_sort(),
    )


def create_table(
    catalog: Catalog, name: str, wanted: WantedTable, location: str | None
) -> CreateTableTransaction:
    """Begin to create a table; the transaction's commit creates it with its rows.

    Args:
        location: its folder; None leaves it to the catalog.

    Raises OutputRefused if the catalog knows no folder for it.
    """
    try:
        return catalog.create_table_transaction(
            name,
            convert_schema(wanted.schema),
            location=location,
            partition_spec=build_spec(wanted),
            sort_order=build_order(wanted),
        )
    except ValueError as error:
        if "No default path" not in str(error):
            raise
        raise OutputRefused(
            f"spec.catalogs[{catalog.name}].warehouse: must be set to create {name}, since its "
            "namespace has no location either, but is absent. Set it to the URI of a folder"
        ) from error


def check_namespace(catalog: Catalog, name: str) -> None:
    """Raise OutputRefused if the namespace of a table does not exist."""
    namespace = name.rpartition(".")[0]
    what = describe(catalog.name, f"look for the namespace {namespace!r}")
    if not ask_catalog(what, lambda: catalog.namespace_exists(namespace)):
        raise OutputRefused(
            f"spec.output.iceberg.table: the namespace {namespace!r} must exist in catalog "
            f"{catalog.name!r}, but does not. Correct it, or create it: pyiceberg --catalog "
            f"{catalog.name} create namespace {namespace}"
        )


def check_table_form(table: Table, wanted: WantedTable) -> None:
    """Raise OutputRefused if the rows do not fit the columns, partitions and order of a table."""
    if differences := list(find_differences(table, wanted)):
        raise OutputRefused(
            f"{'.'.join(table.name())}: must have the columns and layout that the manifest writes, "
            f"but {'; '.join(differences)}. Name another table, or change spec.output"
        )


def describe_files(files: Sequence[DataFile]) -> str:
    """Return the rows and files of a table, for people."""
    rows = sum(file.record_count for file in files)
    return f"{rows:,} rows in {len(files):,} files"


def _find_head(table: Table | None) -> int | None:
    snapshot = table.current_snapshot() if table else None
    return snapshot.snapshot_id if snapshot else None


def _describe(snapshot: Snapshot) -> Committed:
    summary = read_summary(snapshot)
    rows, files = (int(summary.get(f"deleted-{w}", 0)) for w in ("records", "data-files"))
    return Committed(
        run=summary[RUN_PROPERTY],
        id=summary[TOKEN_PROPERTY],
        rows=int(summary.get("added-records", 0)),
        files=int(summary.get("added-data-files", 0)),
        num_bytes=int(summary.get("added-files-size", 0)),
        snapshot_id=str(snapshot.snapshot_id),
        replaced=f"{rows:,} rows in {files:,} files" if files else "",
    )
