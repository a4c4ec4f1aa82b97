"""Writes the Iceberg sample: three tables in a catalog of SQLite and a warehouse of local files.

Owns the catalog, the tables' files and commits, and the decision that they are already there.
`lake_tables` runs before it and makes the rows; a manifest's `catalogs` names the catalog after it.

    DIRECTORY/_lastmile_lake.json                options, files and sizes; written last
    DIRECTORY/catalog.db                         the catalog `lake`
    DIRECTORY/warehouse/sample/impressions/...   the tables of the namespace `sample`

Iceberg's metadata has absolute paths, so a directory that was moved is written again.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError

from pipeline_runtime.bucketing import bucket
from pipeline_runtime.errors import SourceError
from pipeline_runtime.iceberg.files import DataFileRecord, TableLayout, writing_file
from pipeline_runtime.iceberg.schemas import WantedTable, build_order, build_spec, convert_schema
from pipeline_runtime.sample_data.file_layout import (
    DayPlan,
    ignore_progress,
    iter_chunks,
    name_part,
    plan_days,
    read_manifest,
    write_manifest,
)
from pipeline_runtime.sample_data.lake_tables import (
    DAY,
    IMPRESSIONS,
    KEY,
    LAYOUTS,
    USER_ACTIONS,
    USER_FEATURES,
    SampleTable,
    build_impressions,
    build_user_actions,
    build_user_features,
)
from pipeline_runtime.sample_data.options import SampleDataOptions, SampleDataSummary
from pipeline_runtime.sample_data.population import Int64Array, Population, build_population

# Raise it with any change to the rows or the layout: directories of another version are rewritten.
LAKE_VERSION: Final = 2
MANIFEST_NAME: Final = "_lastmile_lake.json"
CATALOG: Final = "lake"
CATALOG_FILE: Final = "catalog.db"
WAREHOUSE: Final = "warehouse"
NAMESPACE: Final = "sample"

_BUCKET_COLUMN: Final = "_bucket"


def write_lake(
    directory: Path,
    options: SampleDataOptions,
    on_progress: Callable[[int], None] | None = None,
) -> SampleDataSummary:
    """Write the three tables, or nothing if a call with equal options has already done so.

    The rows of one day, about 350 bytes each, are in memory at once.

    Args:
        directory: made if absent; tables that this function wrote there with other options are
            replaced, other tables of the catalog stay.
        options: what to write.
        on_progress: called with the number of impressions written so far.

    Raises:
        SourceError: the directory holds a catalog or a warehouse that this function did not write.
    """
    started = time.monotonic()
    directory = directory.resolve()
    description = {
        "version": LAKE_VERSION,
        "options": asdict(options),
        "location": str(directory),
    }
    sizes = _get_current_files(directory, description)
    was_current = sizes is not None
    report = on_progress or ignore_progress
    if sizes is None:
        sizes = _rewrite(directory, options, description, report)
    else:
        report(options.rows)
    return SampleDataSummary(
        rows=options.rows,
        files=len(sizes),
        file_bytes=sum(sizes.values()),
        elapsed_seconds=time.monotonic() - started,
        was_current=was_current,
    )


def _get_current_files(directory: Path, description: dict[str, Any]) -> dict[str, int] | None:
    """Return the sizes of the data files in bytes; None if any is missing or different.

    Files that are not listed do not matter: someone has committed to the tables since.
    """
    manifest = read_manifest(directory / MANIFEST_NAME)
    sizes = manifest.pop("files", None)
    if manifest != description or not isinstance(sizes, dict):
        return None
    if not (directory / CATALOG_FILE).is_file():
        return None
    paths = {name: directory / name for name in sizes}
    found = {name: path.stat().st_size for name, path in paths.items() if path.is_file()}
    return found if found == sizes else None


def _rewrite(
    directory: Path,
    options: SampleDataOptions,
    description: dict[str, Any],
    report: Callable[[int], None],
) -> dict[str, int]:
    manifest = directory / MANIFEST_NAME
    _refuse_foreign(directory)
    directory.mkdir(parents=True, exist_ok=True)
    # Without files: these tables are the sample's, and not complete.
    write_manifest(manifest, {**description, "files": None})
    population = build_population(options.seed)
    with _open_catalog(directory) as catalog:
        _drop_tables(catalog, directory)
        users = _write_impressions(catalog, population, options, report)
        features = build_user_features(population)
        _Writer(catalog, USER_FEATURES, features.schema, options).commit(features)
        _write_actions(catalog, population, users, options)
    sizes = {
        path.relative_to(directory).as_posix(): path.stat().st_size
        for layout in LAYOUTS
        for path in sorted(_folder(directory, layout).rglob("*.parquet"))
    }
    write_manifest(manifest, {**description, "files": sizes})
    return sizes


def _refuse_foreign(directory: Path) -> None:
    if (directory / MANIFEST_NAME).exists():
        return
    for name in (CATALOG_FILE, WAREHOUSE):
        if (directory / name).exists():
            raise SourceError(
                f"{directory / name}: the sample replaces only tables that it wrote itself, and "
                "this was not written by it; choose another directory"
            )


@contextmanager
def _open_catalog(directory: Path) -> Iterator[SqlCatalog]:
    catalog = SqlCatalog(
        CATALOG,
        uri=f"sqlite:///{directory / CATALOG_FILE}",
        warehouse=f"file://{directory / WAREHOUSE}",
    )
    try:
        yield catalog
    finally:
        catalog.close()


def _folder(directory: Path, layout: SampleTable) -> Path:
    return directory / WAREHOUSE / NAMESPACE / layout.name


def _drop_tables(catalog: SqlCatalog, directory: Path) -> None:
    catalog.create_namespace_if_not_exists(NAMESPACE)
    location = f"file://{directory / WAREHOUSE / NAMESPACE}"  # of tables that others create here
    catalog.update_namespace_properties(NAMESPACE, updates={"location": location})
    for layout in LAYOUTS:
        name = (NAMESPACE, layout.name)
        with suppress(NoSuchTableError):
            catalog.drop_table(name)
        shutil.rmtree(_folder(directory, layout), ignore_errors=True)


def _write_impressions(
    catalog: SqlCatalog,
    population: Population,
    options: SampleDataOptions,
    report: Callable[[int], None],
) -> Int64Array:
    """Write the impressions, one commit per day, and return the ids of their users."""
    users: list[Int64Array] = []
    writer: _Writer | None = None
    for plan in plan_days(options):
        rows = _build_day(population, plan)
        users.append(np.unique(rows[KEY]))
        writer = writer or _Writer(catalog, IMPRESSIONS, rows.schema, options)
        writer.commit(rows)
        report(plan.first_row + plan.rows)
    return np.unique(np.concatenate(users))


def _build_day(population: Population, plan: DayPlan) -> pa.Table:
    return pa.concat_tables(iter_chunks(plan, lambda key: build_impressions(population, key)))


def _write_actions(
    catalog: SqlCatalog, population: Population, users: Int64Array, options: SampleDataOptions
) -> None:
    tables = (build_user_actions(population, users, day) for day in range(options.days))
    writer: _Writer | None = None
    for rows in tables:
        writer = writer or _Writer(catalog, USER_ACTIONS, rows.schema, options)
        writer.commit(rows)


class _Writer:
    """Creates a table, and writes sorted files into its partitions.

    File names and contents depend on the options only, which `Table.append` would not give.
    """

    def __init__(
        self,
        catalog: SqlCatalog,
        layout: SampleTable,
        schema: pa.Schema,
        options: SampleDataOptions,
    ) -> None:
        self._num_buckets = layout.num_buckets
        self._options = options
        wanted = WantedTable(
            schema=schema,
            partition_by=(DAY,) if layout.has_days else (),
            bucket_by=KEY,
            num_buckets=layout.num_buckets,
            sort_by=layout.sort_by,
        )
        self._table = catalog.create_table(
            (NAMESPACE, layout.name),
            convert_schema(schema),
            partition_spec=build_spec(wanted),
            sort_order=build_order(wanted),
        )
        self._layout = TableLayout.of(self._table)

    def commit(self, rows: pa.Table) -> None:
        """Write one file, or more if it is large, for each bucket of a day, in one commit."""
        buckets = bucket(rows[KEY], self._num_buckets)
        rows = rows.append_column(_BUCKET_COLUMN, pa.array(buckets))
        order = [_BUCKET_COLUMN, *(key.column for key in self._layout.find_sort())]
        rows = rows.sort_by([(name, "ascending") for name in order])
        bounds = np.searchsorted(rows[_BUCKET_COLUMN], np.arange(self._num_buckets + 1)).tolist()
        rows = rows.drop_columns(_BUCKET_COLUMN).cast(self._layout.build_arrow_schema())
        update = self._table.transaction()
        with update.update_snapshot().fast_append() as append:
            for first, last in itertools.pairwise(bounds):
                for index, part in enumerate(_cut(rows, first, last, self._options.rows_per_file)):
                    record = self._write(part, name_part(index))
                    append.append_data_file(self._layout.build_data_file(record))
        update.commit_transaction()

    def _write(self, rows: pa.Table, name: str) -> DataFileRecord:
        """Write a file of one partition."""
        layout = self._layout
        values = layout.partition_values(layout.partition_columns(rows.slice(0, 1)), 0)
        path = layout.locate(layout.name_partition(values), name)
        with writing_file(layout, path, self._options.compression) as writer:
            for group in _cut(rows, 0, rows.num_rows, self._options.rows_per_group):
                writer.write(group)
            return writer.finish(is_sorted=True)


def _cut(rows: pa.Table, first: int, last: int, size: int) -> Iterator[pa.Table]:
    """Yield the rows from `first` to `last` in tables of at most the given size."""
    for start in range(first, last, size):
        yield rows.slice(start, min(size, last - start))
