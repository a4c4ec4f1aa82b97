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
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    pyarrow_to_schema,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import (
    PartitionField,
    PartitionFieldValue,
    PartitionKey,
    PartitionSpec,
)
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform, Transform
from pyiceberg.types import LongType

from pipeline_runtime.errors import SourceError
from pipeline_runtime.files import replacing
from pipeline_runtime.sample_data.file_layout import (
    DICTIONARY_COLUMNS,
    DayPlan,
    cut,
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
    TableLayout,
    build_impressions,
    build_user_actions,
    build_user_features,
    to_date,
)
from pipeline_runtime.sample_data.options import SampleDataOptions, SampleDataSummary
from pipeline_runtime.sample_data.population import Int64Array, Population, build_population

# Raise it with any change to the rows or the layout: directories of another version are rewritten.
LAKE_VERSION: Final = 1
MANIFEST_NAME: Final = "_lastmile_lake.json"
CATALOG: Final = "lake"
CATALOG_FILE: Final = "catalog.db"
WAREHOUSE: Final = "warehouse"
NAMESPACE: Final = "sample"

_FIRST_PARTITION_FIELD_ID: Final = 1000  # as the specification of Iceberg counts them
_FIELD_ID: Final = "PARQUET:field_id"  # pyarrow's name of a field id
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


def _folder(directory: Path, layout: TableLayout) -> Path:
    return directory / WAREHOUSE / NAMESPACE / layout.name


def _drop_tables(catalog: SqlCatalog, directory: Path) -> None:
    catalog.create_namespace_if_not_exists(NAMESPACE)
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
        writer.commit(rows, plan.day)
        report(plan.first_row + plan.rows)
    return np.unique(np.concatenate(users))


def _build_day(population: Population, plan: DayPlan) -> pa.Table:
    return pa.concat_tables(iter_chunks(plan, lambda key: build_impressions(population, key)))


def _write_actions(
    catalog: SqlCatalog, population: Population, users: Int64Array, options: SampleDataOptions
) -> None:
    tables = ((day, build_user_actions(population, users, day)) for day in range(options.days))
    writer: _Writer | None = None
    for day, rows in tables:
        writer = writer or _Writer(catalog, USER_ACTIONS, rows.schema, options)
        writer.commit(rows, day)


class _Writer:
    """Creates a table, and writes sorted files into its partitions.

    File names and contents depend on the options only, which `Table.append` would not give.
    """

    def __init__(
        self,
        catalog: SqlCatalog,
        layout: TableLayout,
        schema: pa.Schema,
        options: SampleDataOptions,
    ) -> None:
        self._layout = layout
        self._options = options
        self._table = _create_table(catalog, layout, schema)
        self._schema = schema_to_pyarrow(self._table.schema())

    def commit(self, rows: pa.Table, day: int | None = None) -> None:
        """Write one file, or more if it is large, for each bucket of the rows, in one commit."""
        buckets = BucketTransform(self._layout.num_buckets).pyarrow_transform(LongType())(
            rows[KEY].combine_chunks()
        )
        order = [_BUCKET_COLUMN, *self._layout.sort_by]
        rows = rows.append_column(_BUCKET_COLUMN, buckets)
        rows = rows.sort_by([(name, "ascending") for name in order])
        bounds = np.searchsorted(rows[_BUCKET_COLUMN], np.arange(self._layout.num_buckets + 1))
        rows = rows.drop_columns(_BUCKET_COLUMN).cast(self._schema)
        update = self._table.transaction()
        with update.update_snapshot().fast_append() as append:
            for bucket, (first, last) in enumerate(itertools.pairwise(bounds.tolist())):
                sizes = cut(last - first, self._options.rows_per_file)
                for index, size in enumerate(sizes):
                    part = rows.slice(first + index * self._options.rows_per_file, size)
                    append.append_data_file(self._write(part, name_part(index), bucket, day))
        update.commit_transaction()

    def _write(self, rows: pa.Table, name: str, bucket: int, day: int | None) -> DataFile:
        table, metadata = self._table, self._table.metadata
        values = [bucket] if day is None else [to_date(day), bucket]
        key = PartitionKey(
            field_values=[
                PartitionFieldValue(field=field, value=value)
                for field, value in zip(table.spec().fields, values, strict=True)
            ],
            partition_spec=table.spec(),
            schema=table.schema(),
        )
        location = table.location_provider().new_data_location(name, key)
        path = Path(location.removeprefix("file://"))
        statistics = data_file_statistics_from_parquet_metadata(
            self._write_parquet(rows, path),
            compute_statistics_plan(table.schema(), metadata.properties),
            parquet_path_to_id_mapping(table.schema()),
        )
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=location,
            file_format=FileFormat.PARQUET,
            partition=key.partition,
            file_size_in_bytes=path.stat().st_size,
            sort_order_id=table.sort_order().order_id,
            spec_id=table.spec().spec_id,
            **statistics.to_serialized_dict(),
        )

    def _write_parquet(self, rows: pa.Table, path: Path) -> pq.FileMetaData:
        collected: list[pq.FileMetaData] = []
        with replacing(path) as file:
            pq.write_table(
                rows,
                file,
                row_group_size=self._options.rows_per_group,
                compression=self._options.compression,
                use_dictionary=[name for name in DICTIONARY_COLUMNS if name in rows.schema.names],
                metadata_collector=collected,
            )
        return collected[0]


def _create_table(catalog: SqlCatalog, layout: TableLayout, rows: pa.Schema) -> Table:
    schema = pyarrow_to_schema(_number_fields(rows))
    bucket: Transform[Any, Any] = BucketTransform(layout.num_buckets)
    fields = [(KEY, f"{KEY}_bucket", bucket)]
    if layout.has_days:
        fields.insert(0, (DAY, DAY, IdentityTransform()))
    partition_fields = (
        PartitionField(
            source_id=schema.find_field(column).field_id,
            field_id=_FIRST_PARTITION_FIELD_ID + index,
            transform=transform,
            name=name,
        )
        for index, (column, name, transform) in enumerate(fields)
    )
    sort_fields = (
        SortField(source_id=schema.find_field(name).field_id, transform=IdentityTransform())
        for name in layout.sort_by
    )
    return catalog.create_table(
        (NAMESPACE, layout.name),
        schema,
        partition_spec=PartitionSpec(*partition_fields),
        sort_order=SortOrder(*sort_fields),
    )


def _number_fields(schema: pa.Schema) -> pa.Schema:
    """Return the schema with Iceberg's field ids: of columns first, then of the items of lists."""
    ids = itertools.count(1)
    fields = [field.with_metadata({_FIELD_ID: str(next(ids))}) for field in schema]
    for index, field in enumerate(fields):
        if pa.types.is_list(field.type):
            item = pa.field("element", field.type.value_type, metadata={_FIELD_ID: str(next(ids))})
            fields[index] = field.with_type(pa.list_(item))
    return pa.schema(fields)
