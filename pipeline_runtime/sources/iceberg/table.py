"""A Source over one snapshot of an Iceberg table.

The planner asks `planning` for the data files, reads their footers, and makes a unit of each row
group that may hold a row. A unit has all that a worker needs to read it, so that the table itself
is small. Data files never change, so their paths and the snapshot are the version of the rows.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyarrow import fs as pafs

from pipeline_runtime.config.dataset import SampleBuckets
from pipeline_runtime.errors import SourceError, StoreError
from pipeline_runtime.iceberg.catalogs import asking_catalog
from pipeline_runtime.iceberg.pins import Pin
from pipeline_runtime.sources.base import (
    Bucketing,
    ColumnSize,
    Identity,
    Predicate,
    Pruning,
    Scan,
    Unit,
    combine,
    find_identity,
)
from pipeline_runtime.sources.filesystem import Location
from pipeline_runtime.sources.gather import Int64s
from pipeline_runtime.sources.iceberg.deletes import DeleteReader, digest_positions, live_rows
from pipeline_runtime.sources.iceberg.planning import PlannedFile, Planner, find_totals
from pipeline_runtime.sources.iceberg.reading import (
    IcebergUnit,
    LatestReading,
    Reading,
    read_windows,
    within,
)
from pipeline_runtime.sources.iceberg.sampling import choose_sample
from pipeline_runtime.sources.iceberg.schemas import (
    FileColumns,
    Names,
    id_of,
    read_defaults,
    strip_ids,
    to_arrow_schema,
    to_names,
)
from pipeline_runtime.sources.parquet.decoding.leaves import find_leaves
from pipeline_runtime.sources.parquet.decoding.pages import OpenFile
from pipeline_runtime.sources.parquet.footers import EncryptedColumn, Footer, digest_footer
from pipeline_runtime.sources.parquet.fragments import read_fragments
from pipeline_runtime.sources.parquet.opening import Opener
from pipeline_runtime.sources.parquet.statistics import surviving_row_groups
from pipeline_runtime.sources.parquet.table import describe_leaves
from pipeline_runtime.sources.stores import find_info

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenedFooter:
    fragment: Any
    footer: Footer
    columns: FileColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergTable:
    """A Source over the rows of one snapshot.

    Attributes:
        columns: the schema with field ids.
        defaults: values, by field id, of columns that older files lack.
        names: field ids for files that have none; None if there is no such mapping.
        sampled: the buckets to read; None for all.
        stores: file systems by scheme and authority.
        footers: footers of the files that were planned, by path; on the planner only.
    """

    pin: Pin
    columns: pa.Schema
    schema: pa.Schema
    bucketing: Bucketing | None
    defaults: Mapping[int, Any]
    names: Names | None
    sampled: frozenset[int] | None
    stores: dict[str, Any]
    opener: Opener = field(compare=False, repr=False)  # per process, as the next two are
    deletes: DeleteReader = field(default_factory=DeleteReader, compare=False, repr=False)
    latest: LatestReading = field(default_factory=LatestReading, compare=False, repr=False)
    planner: Planner | None = field(default=None, compare=False, repr=False)
    footers: dict[str, _OpenedFooter] = field(default_factory=dict, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        names = ("pin", "columns", "schema", "bucketing", "defaults", "names", "sampled", "stores")
        opener = self.opener
        fields = {name: getattr(self, name) for name in names}
        return _rebuild, (opener.kernels, opener.decodes_pages, fields)

    @property
    def description(self) -> str:
        """See Source."""
        return self.pin.describe()

    @property
    def identity(self) -> Identity:
        """See Source."""
        return find_identity(self.schema)

    def scan(self, predicates: Sequence[Predicate], columns: Collection[str] = ()) -> Scan:
        """See Source; a predicate prunes manifests, files and row groups."""
        from pipeline_runtime.sources.iceberg.pruning import build_row_filter

        files = self._planner.plan_files(build_row_filter(predicates, self.schema))
        files = [file for file in files if self._is_sampled(file)]
        self._read_footers(files)
        keep = combine(predicates)
        units = [unit for file in files for unit in self._units(file, keep)]
        opened = [self.footers[file.path].footer.metadata for file in files]
        num_files, num_rows = find_totals(
            self._planner.snapshot, len(files), sum(each.num_rows for each in opened)
        )
        return Scan(
            units=tuple(units),
            pruning=Pruning(
                files_total=num_files,
                files_read=len({unit.place for unit in units}),
                row_groups_total=sum(each.num_row_groups for each in opened),
                row_groups_read=len(units),
                rows_total=num_rows,
                rows_read=sum(unit.num_rows for unit in units),
            ),
            is_remote=any(
                not isinstance(self.stores[file.store], pafs.LocalFileSystem) for file in files
            ),
            is_clustered=self._planner.is_clustered,
            notes=tuple(self._describe(files, units, columns)),
        )

    def _is_sampled(self, file: PlannedFile) -> bool:
        """Return whether a file is of the sample of buckets. Raises SourceError if it has none."""
        if self.sampled is None:
            return True
        if file.bucket is None:
            assert self.bucketing is not None
            raise SourceError(
                f"{self.pin.reference}: sampleBuckets: every file must be in one of "
                f"{self.bucketing.num_buckets} buckets by {self.bucketing.column}, but {file.uri} "
                "was written before the table had them. Rewrite it (CALL "
                "system.rewrite_data_files with rewrite-all => true)"
            )
        return file.bucket in self.sampled

    def list_units(self, task: FileScanTask) -> tuple[IcebergUnit, ...]:
        """Return the row groups of one data file, in their order; on the planner only.

        Args:
            task: a file of the snapshot with its delete files, as PyIceberg plans them.
        """
        file = self._planner.describe(task)
        self._read_footers([file])
        return tuple(self._units(file, None))

    @property
    def _planner(self) -> Planner:
        assert self.planner is not None, "workers read units; they plan none"
        return self.planner

    def _read_footers(self, files: Sequence[PlannedFile]) -> None:
        """Read the footers that are not known yet, those of a store at a time."""
        for store in sorted({file.store for file in files}):
            new = [f for f in files if f.store == store and f.path not in self.footers]
            paths = [file.path for file in new]
            with self._missing_files(new):
                found = read_fragments(self.stores[store], paths, paths, None)
            schema, columns = None, None
            for file, fragment, footer in zip(new, *found, strict=True):
                stored = fragment.physical_schema
                if columns is None or not stored.equals(schema, check_metadata=True):
                    schema, columns = stored, FileColumns.of(stored, self.names, file.uri)
                self.footers[file.path] = _OpenedFooter(
                    fragment=fragment, footer=footer, columns=columns
                )

    @contextmanager
    def _missing_files(self, files: Sequence[PlannedFile]) -> Iterator[None]:
        """Raise SourceError, not StoreError, if a store says that a file does not exist."""
        try:
            yield
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                for file in files:
                    place = Location(
                        uri=file.uri, filesystem=self.stores[file.store], path=file.path
                    )
                    if find_info(place, "look for the file").type == pafs.FileType.NotFound:
                        raise SourceError(self._explain_missing(file.uri)) from error
            raise

    def _explain_missing(self, uri: str) -> str:
        return (
            f"{uri}: the data file is gone, although {self.description} names it: the snapshot "
            "expired, or somebody removed the file. Restore the file, or start a new run, which "
            "reads a newer snapshot; keepDays of the table keeps a run's snapshot from expiring"
        )

    def _units(self, file: PlannedFile, keep: Any) -> Iterator[IcebergUnit]:
        """Yield the row groups of a file that may hold a row, without those that have none left."""
        opened = self.footers[file.path]
        metadata = opened.footer.metadata
        # Those of a whole partition apply to few of its files.
        deletes = tuple(
            each for each in file.deletes if len(self.deletes.find(file.uri, [each], self.stores))
        )
        deleted = self.deletes.find(file.uri, deletes, self.stores)
        surviving = set(self._surviving(opened, keep))
        first_row = 0
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            positions = within(deleted, first_row, group.num_rows)
            if index in surviving and len(positions) < group.num_rows:
                yield IcebergUnit(
                    place=file.place,
                    index=index,
                    num_rows=group.num_rows - len(positions),
                    num_bytes=group.total_byte_size,
                    partition=file.partition,
                    bucket=file.bucket,
                    uri=file.uri,
                    store=file.store,
                    path=file.path,
                    first_row=first_row,
                    num_stored=group.num_rows,
                    constants=file.constants,
                    deletes=deletes if len(positions) else (),
                    deleted=digest_positions(positions),
                )
            first_row += group.num_rows

    def _surviving(self, opened: _OpenedFooter, keep: Any) -> Sequence[int]:
        """Return the row groups of a file that may hold a row for a predicate."""
        every = range(opened.footer.metadata.num_row_groups)
        if keep is None:
            return every
        text, paths = str(keep), {}
        for column in self.columns:
            if column.name in text and opened.columns.has_comparable_statistics(column):
                stored = opened.columns.find(column)
                assert stored is not None
                paths[column.name] = stored.name
        leaves = [leaf for path in paths.values() for leaf in opened.footer.leaves(path)]
        if not opened.footer.has_sound_statistics(leaves):
            return every
        return surviving_row_groups(opened.fragment, paths, keep, self.schema)

    def _describe(
        self, files: Sequence[PlannedFile], units: Sequence[IcebergUnit], columns: Collection[str]
    ) -> Iterator[str]:
        version = self._planner.metadata.format_version
        buckets = self.bucketing
        layout = (
            f", {buckets.num_buckets} buckets by {buckets.column}" if buckets else ", no buckets"
        )
        yield f"Iceberg v{version}, {self.pin.describe()}{layout}"
        if self.sampled is not None and buckets:
            yield (
                f"sample of {len(self.sampled)} of {buckets.num_buckets} buckets; rows without a "
                f"{buckets.column} are left out"
            )
        num_deletes = len({delete.uri for file in files for delete in file.deletes})
        if num_deletes:
            num_rows = sum(unit.num_stored - unit.num_rows for unit in units)
            yield f"{num_rows:,} deleted rows are skipped, by {num_deletes:,} delete files"
        if files and columns:
            opened = self.footers[files[0].path]
            leaves = find_leaves(opened.footer.metadata, opened.fragment.physical_schema)
            names = [
                column.name
                for column in self.columns
                if column.name in columns
                and (stored := opened.columns.find(column)) is not None
                and stored.name in leaves
            ]
            if note := describe_leaves(names, decodes_pages=self.opener.decodes_pages):
                yield note

    def sizes(self, units: Sequence[Unit], columns: Sequence[str]) -> dict[str, ColumnSize]:
        """See Source; by the footers, so on the planner only. Deleted rows count."""
        stored, flat = Counter[str](), Counter[str]()
        for unit in map(_cast, units):
            opened = self.footers[unit.path]
            names = {
                found.name: column.name
                for column in self.columns
                if (found := opened.columns.find(column)) is not None
            }
            for path, chunk in opened.footer.chunks(unit.index):
                if (name := names.get(path.split(".")[0])) is not None:
                    stored[name] += chunk.total_compressed_size
                    flat[name] += chunk.total_uncompressed_size
        return {n: ColumnSize(stored_bytes=stored[n], num_bytes=flat[n]) for n in columns}

    def digest(self, units: Sequence[Unit]) -> str:
        """See Source; on the planner only. It covers footers, deleted rows and constants."""
        given = list(map(_cast, units))
        counted = [(unit.place, unit.index, unit.num_rows, unit.deleted) for unit in given]
        files = {unit.place: unit for unit in given}
        footers = [
            (place, digest_footer(self.footers[unit.path].footer), repr(unit.constants))
            for place, unit in sorted(files.items())
        ]
        columns = [(id_of(column), str(column.type)) for column in self.columns]
        text = json.dumps([columns, counted, footers])
        return hashlib.sha256(text.encode()).hexdigest()

    def version(self, units: Sequence[Unit]) -> str:
        """See Source."""
        counted = [(u.uri, u.index, u.num_rows, u.deleted) for u in map(_cast, units)]
        text = repr((self.pin.table_uuid, self.pin.schema_id, counted))
        return hashlib.sha256(text.encode()).hexdigest()

    def read(
        self,
        unit: Unit,
        columns: Sequence[str],
        max_rows: int,
        *,
        rows: Int64s | None = None,
    ) -> Iterator[pa.Table]:
        """See Source. Raises SourceError if a file is gone, corrupt or changed."""
        unit = _cast(unit)
        live = self._find_live(unit)
        if rows is not None:
            places = rows if live is None else live[rows]
            with self._opened(unit) as opened:
                reading = self._map_columns(opened, unit, columns)
                table = opened.read_rows(
                    unit.index, reading.names, places, kernels=self.opener.kernels
                )
                yield reading.complete(table, len(rows))
            return
        with self._opened(unit) as opened:
            reading = self._map_columns(opened, unit, columns)
            if not reading.names:
                for first in range(0, unit.num_rows, max_rows):
                    yield reading.complete(None, min(max_rows, unit.num_rows - first))
            elif unit.num_stored > max_rows:
                yield from read_windows(opened, unit, reading, max_rows, live)
            elif live is None:
                table = opened.read_row_group(unit.index, reading.names)
                yield reading.complete(table, table.num_rows)
            else:
                table = opened.read_rows(
                    unit.index, reading.names, live, kernels=self.opener.kernels
                )
                yield reading.complete(table, len(live))

    def _map_columns(self, opened: OpenFile, unit: IcebergUnit, columns: Sequence[str]) -> Reading:
        def build() -> Reading:
            found = FileColumns.of(opened.schema, self.names, unit.uri)
            wanted = [self.columns.field(name) for name in columns]
            schema = pa.schema([self.schema.field(name) for name in columns])
            return Reading.of(wanted, [found.find(column) for column in wanted], schema)

        reading = self.latest.find(opened.schema, columns, build)
        return replace(reading, constants={**self.defaults, **unit.constants})

    def _find_live(self, unit: IcebergUnit) -> Int64s | None:
        """Return the positions of the unit's rows that are not deleted; None if all are there."""
        if not unit.deletes:
            return None
        deleted = self.deletes.find(unit.uri, unit.deletes, self.stores)
        live = live_rows(unit.num_stored, within(deleted, unit.first_row, unit.num_stored))
        if len(live) != unit.num_rows:
            raise SourceError(
                f"{unit.uri}: row group {unit.index} must have {unit.num_rows} rows left, as when "
                f"the run was planned, but has {len(live)}: a delete file changed. Run again"
            )
        return live

    @contextmanager
    def _opened(self, unit: IcebergUnit) -> Iterator[OpenFile]:
        """Open a unit's file, and raise errors while it is read as SourceError."""
        try:
            with self.opener.open(self.stores[unit.store], unit.path) as opened:
                yield opened
        except FileNotFoundError as error:
            raise SourceError(self._explain_missing(unit.uri)) from error
        except EncryptedColumn as error:
            raise SourceError(
                f"{unit.uri}: {error}, and there is no key to read it with; leave the column out"
            ) from error
        except (OSError, pa.ArrowException, LookupError, ValueError) as error:
            raise SourceError(
                f"{unit.uri}: cannot read row group {unit.index} ({unit.num_stored} rows): "
                f"{error}. The file is corrupt; restore it"
            ) from error


def _cast(unit: Unit) -> IcebergUnit:
    return cast(IcebergUnit, unit)


def _rebuild(kernels: bool, decodes_pages: bool, fields: dict[str, Any]) -> IcebergTable:
    return IcebergTable(**fields, opener=Opener(kernels=kernels, decodes_pages=decodes_pages))


def build_table(
    found: Table, pin: Pin, opener: Opener, sample: SampleBuckets | None
) -> IcebergTable:
    """Return the source of a table at its pinned state.

    Raises SourceError for a type that this release cannot read, or if the buckets of a table that
    has none are to be sampled.
    """
    name = str(pin.reference)
    # PyIceberg plans by the current schema. A pinned run has that of its snapshot.
    metadata = found.metadata.model_copy(update={"current_schema_id": pin.schema_id})
    columns = to_arrow_schema(metadata.schema(), name)
    snapshot = metadata.snapshot_by_id(int(pin.snapshot_id)) if pin.snapshot_id else None
    with asking_catalog(f"{name}: cannot read the property schema.name-mapping.default"):
        mapping = found.name_mapping()
    planner = Planner(name=name, columns=columns, metadata=metadata, snapshot=snapshot, io=found.io)
    planner.open_store(metadata.location)  # so that a copy of the table can read at once
    return IcebergTable(
        pin=pin,
        columns=columns,
        schema=strip_ids(columns),
        bucketing=planner.find_bucketing(),
        sampled=choose_sample(name, planner.find_bucketing(), sample),
        defaults=read_defaults(metadata.schema()),
        names=to_names(mapping.root) if mapping is not None else None,
        stores=planner.stores,
        opener=opener,
        planner=planner,
    )
