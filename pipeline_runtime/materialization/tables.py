"""Cache tables: their names, their content, and deleting them.

One table holds the rows of one recipe. Its name is the base name of the manifest and the hash of
the recipe; its properties have the recipe. `coverage` describes its rows.

A table is deleted in steps that may be repeated after a crash: a property marks it, so that no run
reads it; then its data files go, its entry in the catalog, and its metadata files.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from pyarrow import fs as pafs

from pipeline_runtime.errors import SourceError
from pipeline_runtime.iceberg.catalogs import ask_catalog, asking_catalog
from pipeline_runtime.materialization.coverage import Covered, read_coverage
from pipeline_runtime.materialization.recipe import Recipe
from pipeline_runtime.steps.base import INTERNAL_PREFIX

if TYPE_CHECKING:  # pyiceberg takes a while to import
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

RECIPE_PROPERTY = "lastmile.recipe"
# The partition of the source that a row comes from; no column of the user's has such a name.
PARTITION_COLUMN = f"{INTERNAL_PREFIX}partition"
DELETING_PROPERTY = "lastmile.deleting"
# Catalogs that keep metadata on a file system read it.
_VERSION_HINT = "version-hint.text"
# A writer may need this long between its first file and its commit.
ORPHAN_AGE = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTable:
    """A cache table.

    Attributes:
        name: with its namespace.
        coverage: the complete partitions.
        snapshot_id: of the newest commit; None before the first.
        num_files, rows, num_bytes: of the newest snapshot.
        is_deleting: True if it was to be deleted, and is there still.
    """

    name: str
    recipe: Recipe
    coverage: Mapping[str, Covered]
    snapshot_id: int | None
    committed_at: datetime
    num_files: int
    rows: int
    num_bytes: int
    is_deleting: bool

    @classmethod
    def of(cls, name: str, table: Table) -> CacheTable | None:
        """Describe a table; None if it is no cache table."""
        recipe = Recipe.from_json(table.properties.get(RECIPE_PROPERTY, ""))
        if recipe is None:
            return None
        snapshot = table.current_snapshot()
        summary = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
        moment_ms = snapshot.timestamp_ms if snapshot else table.metadata.last_updated_ms
        return cls(
            name=name,
            recipe=recipe,
            coverage=read_coverage(table),
            snapshot_id=snapshot.snapshot_id if snapshot else None,
            committed_at=datetime.fromtimestamp(moment_ms / 1000, UTC),
            num_files=int(summary.get("total-data-files", 0)),
            rows=int(summary.get("total-records", 0)),
            num_bytes=int(summary.get("total-files-size", 0)),
            is_deleting=DELETING_PROPERTY in table.properties,
        )


def name_table(base: str, recipe: Recipe) -> str:
    """Return the name of the cache table of a recipe."""
    return f"{base}_{recipe.hash}"


def load_cache(catalog: Catalog, name: str) -> Table | None:
    """Load a cache table; None if there is none, or it is being deleted.

    Raises SourceError if another kind of table has its name, StoreError if there is no answer.
    """
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    missing = (NoSuchTableError, NoSuchNamespaceError)
    try:
        table = ask_catalog(
            f"{name}: cannot load the cache table",
            lambda: catalog.load_table(name),
            passes=missing,
        )
    except missing:
        return None
    if RECIPE_PROPERTY not in table.properties:
        raise SourceError(
            f"{name}: must be a cache table of Lastmile or not exist, but is another table. Give "
            "materialize.iceberg.table another name"
        )
    return None if DELETING_PROPERTY in table.properties else table


def list_tables(catalog: Catalog, base: str) -> list[CacheTable]:
    """Return the cache tables of a base name, the newest commit first.

    Raises SourceError or StoreError as `ask_catalog` does.
    """
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    namespace, _, prefix = base.rpartition(".")
    what = f"{base}: cannot list cache tables"
    with asking_catalog(what, passes=(NoSuchNamespaceError,)):
        try:
            names = [".".join(each) for each in catalog.list_tables(namespace)]
        except NoSuchNamespaceError:
            return []
    found = []
    for name in names:
        if not name.rpartition(".")[2].startswith(f"{prefix}_"):
            continue
        try:
            load = partial(catalog.load_table, name)
            table = ask_catalog(what, load, passes=(NoSuchTableError,))
        except NoSuchTableError:  # deleted meanwhile
            continue
        with asking_catalog(what):
            described = CacheTable.of(name, table)
        if described is not None and name == name_table(base, described.recipe):
            found.append(described)
    return sorted(found, key=lambda each: each.committed_at, reverse=True)


def find_nearest(tables: Sequence[CacheTable], recipe: Recipe) -> tuple[CacheTable, list[str]]:
    """Return the table whose recipe differs in the fewest places, and these. Needs a table."""
    compared = [(table, table.recipe.diff(recipe)) for table in tables]
    return min(compared, key=lambda pair: len(pair[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Files in a store.

    Attributes:
        paths: on the file system.
    """

    filesystem: pafs.FileSystem
    paths: tuple[str, ...]
    num_bytes: int

    def delete(self) -> None:
        """Delete the files; one that does not exist is left out."""
        for path in self.paths:
            try:
                self.filesystem.delete_file(path)
            except FileNotFoundError:
                continue


def delete_table(catalog: Catalog, name: str) -> Files:
    """Delete a cache table and all files in its folder; return the files.

    Raises SourceError or StoreError; the table is then marked, and may be deleted again.
    """
    what = f"{name}: cannot delete the cache table"
    with asking_catalog(what):
        table = catalog.load_table(name)
        if DELETING_PROPERTY not in table.properties:
            with table.transaction() as transaction:
                transaction.set_properties({DELETING_PROPERTY: "true"})
        files = _list_files(table, timedelta(0))
        metadata = _parse(table, f"{table.location().rstrip('/')}/metadata/")
        apart = [path for path in files.paths if not path.startswith(metadata)]
        Files(filesystem=files.filesystem, paths=tuple(apart), num_bytes=0).delete()
        catalog.drop_table(name)
        files.delete()
        folder = _parse(table, table.location())
        if isinstance(files.filesystem, pafs.LocalFileSystem):  # a store has no folders
            files.filesystem.delete_dir(folder)
    return files


def expire_snapshots(catalog: Catalog, name: str, min_age: timedelta) -> int:
    """Drop old snapshots of a table, so that files of replaced rows are orphans; return how many.

    The newest snapshot stays, and so do those of tags and branches. A run that is pinned at a
    dropped one cannot be resumed.
    """
    with asking_catalog(f"{name}: cannot expire snapshots"):
        table = catalog.load_table(name)
        moment = datetime.now(UTC) - min_age
        kept = {ref.snapshot_id for ref in table.metadata.refs.values()}  # the newest is main's
        limit_ms = moment.timestamp() * 1000
        old = [
            snapshot.snapshot_id
            for snapshot in table.metadata.snapshots
            if snapshot.timestamp_ms <= limit_ms and snapshot.snapshot_id not in kept
        ]
        if old:
            table.maintenance.expire_snapshots().by_ids(old).commit()
    return len(old)


def find_orphans(catalog: Catalog, name: str, min_age: timedelta = ORPHAN_AGE) -> Files:
    """Return the files in a table's folder that no snapshot names.

    Args:
        min_age: younger files may belong to a writer that has yet to commit.
    """
    with asking_catalog(f"{name}: cannot look for orphan files"):
        found = catalog.load_table(name)
        files = _list_files(found, min_age)
        # Loaded after the files were listed: what was committed meanwhile is in use.
        table = catalog.load_table(name)
        # By their names, which are unique: a folder has several URIs, such as that of a link.
        used = {path.rpartition("/")[2] for path in _list_used(table)}
        sizes = {
            info.path: info.size
            for info in files.filesystem.get_file_info(
                [path for path in files.paths if path.rpartition("/")[2] not in used]
            )
            if info.type == pafs.FileType.File
        }
    return Files(filesystem=files.filesystem, paths=tuple(sizes), num_bytes=sum(sizes.values()))


def _list_used(table: Table) -> Iterator[str]:
    """Yield the files that the table's metadata names, those of old snapshots included."""
    metadata = table.metadata
    yield table.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    for statistics in (*metadata.statistics, *metadata.partition_statistics):
        yield statistics.statistics_path
    seen: set[str] = set()
    for snapshot in metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                yield manifest.manifest_path
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
                yield from (entry.data_file.file_path for entry in entries)


def _list_files(table: Table, min_age: timedelta) -> Files:
    filesystem, folder = _open_folder(table)
    selector = pafs.FileSelector(folder, recursive=True, allow_not_found=True)
    limit_ns = time.time_ns() - int(min_age.total_seconds() * 1e9)
    infos: Iterable[pafs.FileInfo] = filesystem.get_file_info(selector)
    files = [
        info
        for info in infos
        if info.type == pafs.FileType.File
        and (info.mtime_ns or 0) <= limit_ns
        and info.base_name != _VERSION_HINT
    ]
    return Files(
        filesystem=filesystem,
        paths=tuple(info.path for info in files),
        num_bytes=sum(info.size or 0 for info in files),
    )


def _open_folder(table: Table) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a table's folder, and its path there."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    io = PyArrowFileIO(table.io.properties)
    scheme, netloc, path = PyArrowFileIO.parse_location(table.location(), table.io.properties)
    return io.fs_by_scheme(scheme, netloc), path


def _parse(table: Table, uri: str) -> str:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    return PyArrowFileIO.parse_location(uri, table.io.properties)[2]
