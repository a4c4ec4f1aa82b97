"""Data files of an Iceberg table: their columns, partitions and order, and what metadata needs.

`TableLayout` says how a table's files are laid out, `DataFileWriter` writes one of them, and a
`DataFileRecord` is all that a commit needs to know about it (`iceberg.commits`). Layouts pickle, so
that data workers write files; records are JSON, so that another attempt can commit them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from pipeline_runtime.bucketing import NO_BUCKET, bucket
from pipeline_runtime.files import sync_file, sync_folder

if TYPE_CHECKING:  # heavy, and only needed by runs that write Iceberg tables
    from pyiceberg.io import FileIO
    from pyiceberg.io.pyarrow import DataFileStatistics
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import CreateTableTransaction, Table
    from pyiceberg.table.locations import LocationProvider
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.sorting import SortOrder

# Longer values stay out of paths; a file system's names have at most 255 bytes.
_MAX_FOLDER_CHARS = 200
UNSORTED = 0  # the id that Iceberg reserves for "no order"


class DataFileRecord(BaseModel):
    """A data file that was written: what its entry in a manifest needs.

    Attributes:
        partition: Iceberg's binary form of each partition value, in the order of the spec.
        lower_bounds, upper_bounds: likewise, by field id; only where every row group has them.
    """

    model_config = ConfigDict(
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        ser_json_bytes="base64",
        val_json_bytes="base64",
    )

    path: str
    spec_id: int
    sort_order_id: int
    partition: tuple[bytes | None, ...]
    num_rows: int
    num_bytes: int
    column_sizes: dict[int, int]
    value_counts: dict[int, int]
    null_value_counts: dict[int, int]
    nan_value_counts: dict[int, int]
    lower_bounds: dict[int, bytes]
    upper_bounds: dict[int, bytes]
    split_offsets: tuple[int, ...]


class SortKey(NamedTuple):
    """A column that orders the rows of a file."""

    column: str
    is_ascending: bool
    is_null_first: bool


def find_order(rows: pa.Table, keys: Sequence[SortKey]) -> pa.Array:
    """Return the numbers of the rows in the order of the keys; equal rows keep theirs."""
    columns: dict[str, pa.ChunkedArray] = {}
    order: list[tuple[str, str]] = []
    for index, key in enumerate(keys):
        column = rows.column(key.column)
        if column.null_count:  # Arrow before 25 has one place for the nulls of all columns
            columns[f"{index} nulls"] = column.is_valid()
            order.append((f"{index} nulls", "ascending" if key.is_null_first else "descending"))
        columns[str(index)] = column
        order.append((str(index), "ascending" if key.is_ascending else "descending"))
    return pc.sort_indices(pa.table(columns), sort_keys=order)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayout:
    """The layout of a table's new data files; picklable.

    Attributes:
        schema: the columns, with their field ids.
        spec: the partitions of new files.
        sort_order: the table's order; see `find_sort`.
        location: the table's folder.
        properties: the table's properties.
        io: opens the table's files, with the credentials that the catalog gave.
    """

    schema: Schema
    spec: PartitionSpec
    sort_order: SortOrder
    location: str
    properties: dict[str, str]
    io: FileIO

    @classmethod
    def of(cls, table: Table) -> TableLayout:
        """Return the layout of a table."""
        return cls._build(table.metadata, table.io)

    @classmethod
    def of_new(cls, transaction: CreateTableTransaction) -> TableLayout:
        """Return the layout of a table that a transaction is about to create."""
        return cls._build(transaction.table_metadata, transaction._table.io)

    @classmethod
    def _build(cls, metadata: TableMetadata, io: FileIO) -> TableLayout:
        from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

        order = metadata.sort_order_by_id(metadata.default_sort_order_id)
        return cls(
            schema=metadata.schema(),
            spec=metadata.spec(),
            sort_order=order or UNSORTED_SORT_ORDER,
            location=metadata.location,
            properties=dict(metadata.properties),
            io=io,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the columns, partitions and order, as a table's metadata has them."""
        parts = {"schema": self.schema, "spec": self.spec, "order": self.sort_order}
        return {name: part.model_dump(mode="json", by_alias=True) for name, part in parts.items()}

    def build_arrow_schema(self) -> pa.Schema:
        """Return the Arrow types of rows for the files, with field ids in their metadata.

        All may be null, required ones too (`find_missing_value` looks for these): Arrow's casts
        take the parts of a null struct for nulls. UUIDs are 16 bytes, which Arrow can sort.
        """
        fields = self._build_required_schema()
        return pa.schema([_make_optional(field, has_uuids=False) for field in fields])

    def build_file_schema(self) -> pa.Schema:
        """Return the Arrow types of the files' columns: those of the rows, with UUIDs as such."""
        fields = self._build_required_schema()
        return pa.schema([_make_optional(field, has_uuids=True) for field in fields])

    def _build_required_schema(self) -> pa.Schema:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        return schema_to_pyarrow(self.schema, include_field_ids=True)

    def find_missing_value(self, rows: pa.Table) -> str | None:
        """Return the name of a required column, or of a part of one, that is null in some row."""
        for field in self._build_required_schema():
            if (name := _find_null(field, rows.column(field.name))) is not None:
                return name
        return None

    def find_sort(self) -> tuple[SortKey, ...]:
        """Return the order that the rows of a file can be put in; none if they need none.

        An order by a transform, by parts of structs, or by floats, of which Arrow sorts NaN
        elsewhere, is none: such files are recorded as unsorted.
        """
        from pyiceberg.table.sorting import NullOrder, SortDirection
        from pyiceberg.transforms import IdentityTransform
        from pyiceberg.types import DoubleType, FloatType

        keys = []
        for field in self.sort_order.fields:
            source = self.schema.find_field(field.source_id)
            is_column = self.schema.find_column_name(field.source_id) == source.name
            is_plain = isinstance(field.transform, IdentityTransform) and is_column
            if not is_plain or isinstance(source.field_type, FloatType | DoubleType):
                return ()
            keys.append(
                SortKey(
                    column=source.name,
                    is_ascending=field.direction == SortDirection.ASC,
                    is_null_first=field.null_order == NullOrder.NULLS_FIRST,
                )
            )
        return tuple(keys)

    def partition_columns(self, rows: pa.Table, *, kernels: bool = False) -> list[pa.Array]:
        """Return the value of each partition field in every row.

        Args:
            rows: rows with the types of `build_arrow_schema`.
            kernels: whether compiled kernels may hash buckets; worth it for many rows.
        """
        return [self._transform(field, rows, kernels) for field in self.spec.fields]

    def _transform(self, field: PartitionField, rows: pa.Table, kernels: bool) -> pa.Array:
        from pyiceberg.transforms import BucketTransform

        source = self.schema.find_field(field.source_id)
        column = rows.column(source.name).combine_chunks()
        if isinstance(field.transform, BucketTransform):
            buckets = bucket(column, field.transform.num_buckets, kernels=kernels)
            return pa.array(buckets, mask=buckets == NO_BUCKET)
        kind = column.type
        if pa.types.is_large_string(kind):  # pyiceberg-core takes plain ones only
            column = column.cast(pa.string())
        elif pa.types.is_large_binary(kind):
            column = column.cast(pa.binary())
        return field.transform.pyarrow_transform(source.field_type)(column)

    def partition_values(self, columns: Sequence[pa.Array], row: int) -> tuple[Any, ...]:
        """Return the partition of a row, as Iceberg represents it: dates as days, for example.

        Args:
            columns: what `partition_columns` returned.
        """
        from pyiceberg.partitioning import partition_record_value
        from pyiceberg.transforms import IdentityTransform

        values = []
        for field, column in zip(self.spec.fields, columns, strict=True):
            if pa.types.is_date32(column.type):
                column = column.cast(pa.int32())
            value = column[row].as_py()
            if isinstance(field.transform, IdentityTransform):
                value = partition_record_value(field, value, self.schema)
            values.append(value)
        return tuple(values)

    def name_partition(self, values: Sequence[Any]) -> str:
        """Return a text that no other partition has: its folder, and which values are null."""
        from pyiceberg.typedef import Record

        if not values:
            return ""
        folder = self.spec.partition_to_path(Record(*values), self.schema)
        nulls = [str(index) for index, value in enumerate(values) if value is None]
        return f"{folder}?null={','.join(nulls)}" if nulls else folder  # folders have no "?"

    def locate_metadata(self, name: str) -> str:
        """Return the URI of a file of the table's metadata."""
        return str(self._find_locations().new_metadata_location(name))

    def _find_locations(self) -> LocationProvider:
        from pyiceberg.table.locations import load_location_provider

        return load_location_provider(
            table_location=self.location, table_properties=self.properties
        )

    def locate(self, partition: str, name: str) -> str:
        """Return the URI of a new file.

        Args:
            partition: what `name_partition` returned.
            name: name of the file, which no other file has.
        """
        folder = re.sub(r"\?null=[\d,]*$", "", partition)
        if any(len(part) > _MAX_FOLDER_CHARS for part in folder.split("/")):
            folder = ""
        provider = self._find_locations()
        return str(provider.new_data_location(f"{folder}/{name}" if folder else name))

    def encode_partition(self, values: Sequence[Any]) -> tuple[bytes | None, ...]:
        """Return Iceberg's binary form of partition values."""
        from pyiceberg.conversions import to_bytes

        types = self.spec.partition_type(self.schema).fields
        return tuple(
            None if value is None else to_bytes(field.field_type, value)  # type: ignore[arg-type]
            for field, value in zip(types, values, strict=True)
        )

    def build_data_file(self, record: DataFileRecord) -> DataFile:
        """Return the entry of a file for a manifest."""
        from pyiceberg.conversions import from_bytes
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        types = self.spec.partition_type(self.schema).fields
        values = (
            None if raw is None else from_bytes(field.field_type, raw)  # type: ignore[arg-type]
            for field, raw in zip(types, record.partition, strict=True)
        )
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=record.path,
            file_format=FileFormat.PARQUET,
            partition=Record(*values),
            record_count=record.num_rows,
            file_size_in_bytes=record.num_bytes,
            column_sizes=record.column_sizes,
            value_counts=record.value_counts,
            null_value_counts=record.null_value_counts,
            nan_value_counts=record.nan_value_counts,
            lower_bounds=record.lower_bounds,
            upper_bounds=record.upper_bounds,
            split_offsets=list(record.split_offsets),
            sort_order_id=record.sort_order_id,
            equality_ids=None,
            key_metadata=None,
        )
        file.spec_id = record.spec_id
        return file


def _make_optional(field: pa.Field, *, has_uuids: bool) -> pa.Field:
    make = partial(_make_optional, has_uuids=has_uuids)
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([make(part) for part in kind])
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(make(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(make(kind.key_field).with_nullable(False), make(kind.item_field))
    elif isinstance(kind, pa.UuidType) and not has_uuids:
        kind = kind.storage_type
    return field.with_type(kind).with_nullable(True)


def _find_null(field: pa.Field, column: pa.ChunkedArray) -> str | None:
    """Return the name of a field that must not be null but is, of a column or in it."""
    if not field.nullable and column.null_count:
        return str(field.name)
    for part, values in _split(field.type, column):
        if (name := _find_null(part, values)) is not None:
            return f"{field.name}.{name}"
    return None


def _split(
    kind: pa.DataType, column: pa.ChunkedArray
) -> Iterator[tuple[pa.Field, pa.ChunkedArray]]:
    """Yield the parts of a nested column with their values in the rows in which it is not null."""
    if not pa.types.is_nested(kind):
        return
    there = column.drop_null()
    if pa.types.is_struct(kind):
        yield from ((part, pc.struct_field(there, [i])) for i, part in enumerate(kind))
    elif pa.types.is_map(kind):
        chunks = [_flatten(chunk) for chunk in there.chunks]
        yield kind.item_field, pa.chunked_array(chunks, type=column.type.item_type)
    else:
        yield kind.value_field, pc.list_flatten(there)


def _flatten(array: pa.MapArray) -> pa.Array:
    """Return the values of maps; Arrow's own way has those before and behind a slice too."""
    first, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return array.items.slice(first, end - first)


class DataFileWriter:
    """Writes one data file; use it by `writing_file`."""

    def __init__(self, layout: TableLayout, path: str, sink: Any, compression: str) -> None:
        self._layout = layout
        self._path = path
        self._sink = sink
        self._partition: tuple[bytes | None, ...] | None = None
        self._rows = 0
        self._schema = layout.build_file_schema()
        self._is_cast = self._schema.types != layout.build_arrow_schema().types
        self._writer = pq.ParquetWriter(
            sink,
            self._schema,
            compression=compression,
            store_decimal_as_integer=True,  # as Iceberg's specification has it
            store_schema=False,  # the field ids and Parquet's types say it all
        )

    def tell(self) -> int:
        """Return the bytes that were written so far."""
        return int(self._sink.tell())

    def write(self, rows: pa.Table) -> None:
        """Write rows of one partition as a row group, in the layout's types."""
        if self._partition is None:
            layout, first = self._layout, rows.slice(0, 1)
            values = layout.partition_values(layout.partition_columns(first), 0)
            self._partition = layout.encode_partition(values)
        stored = rows.cast(self._schema) if self._is_cast else rows
        self._writer.write_table(stored, row_group_size=max(1, rows.num_rows))
        self._rows += rows.num_rows

    def close(self) -> None:
        """Write the footer, unless it is written."""
        self._writer.close()

    def finish(self, *, is_sorted: bool) -> DataFileRecord:
        """Write the footer, and return what a commit needs.

        Args:
            is_sorted: whether all rows are in the order of `TableLayout.find_sort`.
        """
        from pyiceberg.io.pyarrow import (
            compute_statistics_plan,
            data_file_statistics_from_parquet_metadata,
            parquet_path_to_id_mapping,
        )

        self.close()
        layout, footer = self._layout, self._writer.writer.metadata
        fields = parquet_path_to_id_mapping(layout.schema)
        plan = compute_statistics_plan(layout.schema, layout.properties)
        statistics = data_file_statistics_from_parquet_metadata(footer, plan, fields)
        _drop_partial_bounds(footer, statistics, fields)
        found = statistics.to_serialized_dict()
        found["split_offsets"] = found["split_offsets"] or ()
        return DataFileRecord(
            path=self._path,
            spec_id=layout.spec.spec_id,
            sort_order_id=layout.sort_order.order_id if is_sorted else UNSORTED,
            partition=self._partition or (),
            num_rows=found.pop("record_count"),
            num_bytes=self.tell(),
            **found,
        )


@contextmanager
def writing_file(layout: TableLayout, path: str, compression: str) -> Iterator[DataFileWriter]:
    """Open a new data file; when the block has succeeded, a power failure does not lose it.

    Args:
        path: what `TableLayout.locate` returned.
        compression: a codec of Parquet, as pyarrow names it.
    """
    local = _find_local_path(layout, path)
    created = [each for each in local.parents if not each.exists()] if local else []
    with layout.io.new_output(path).create(overwrite=True) as sink:
        writer = DataFileWriter(layout, path, sink, compression)
        try:
            yield writer
        finally:
            writer.close()
    if local:
        sync_file(local)
        for each in (local, *created):
            sync_folder(each.parent)


def _find_local_path(layout: TableLayout, uri: str) -> Path | None:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    scheme, _, path = PyArrowFileIO.parse_location(uri, layout.io.properties)
    return Path(path) if scheme == "file" else None


def _drop_partial_bounds(
    footer: pq.FileMetaData, statistics: DataFileStatistics, fields: dict[str, int]
) -> None:
    """Drop the bounds of columns for which some row group has none.

    Parquet's writer leaves bounds of more than 4 KiB out of a row group. PyIceberg 0.12 then takes
    those of the other row groups for the whole file, and readers would skip rows that match.
    """
    for group in range(footer.num_row_groups):
        row_group = footer.row_group(group)
        for position in range(footer.num_columns):
            column = row_group.column(position)
            found = column.statistics
            if found is None or (not found.has_min_max and found.null_count != column.num_values):
                statistics.column_aggregates.pop(fields[column.path_in_schema], None)
