"""The columns, partitions and order of a table that Lastmile writes.

`find_writable` maps Arrow's types to those that Iceberg has; `build_layout` describes a new table;
`find_differences` compares an existing one with what a manifest asks for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat

from pipeline_runtime.bucketing import check_bucketable

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.sorting import SortOrder

_MICROSECONDS = "us"  # the unit of Iceberg's times before format version 3
# Types of which Iceberg has only a wider one.
_WIDENED = {
    pa.int8(): pa.int32(),
    pa.int16(): pa.int32(),
    pa.uint8(): pa.int32(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTable:
    """The table that a manifest asks for.

    Attributes:
        schema: the columns, of types that `find_writable` returned.
        partition_by: columns whose values are partitions.
        bucket_by: column whose hash is the last partition; None: there are no buckets.
        sort_by: columns that order the rows of each file, ascending and nulls first.
    """

    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    bucket_by: str | None = None
    num_buckets: int = 0
    sort_by: tuple[str, ...] = ()


def find_writable(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column in an Iceberg table of format version 2.

    Raises TypeError, with what to do, if Iceberg has none that holds the values.
    """
    if kind in _WIDENED:
        return _WIDENED[kind]
    if pat.is_dictionary(kind) or pat.is_run_end_encoded(kind):
        return find_writable(kind.value_type)
    if pat.is_timestamp(kind):  # a value that microseconds cannot hold fails the run
        return pa.timestamp(_MICROSECONDS, kind.tz and "UTC")
    if pat.is_time(kind):
        return pa.time64(_MICROSECONDS)
    if pat.is_struct(kind):
        return pa.struct([field.with_type(find_writable(field.type)) for field in kind])
    if pat.is_map(kind):
        return pa.map_(find_writable(kind.key_type), find_writable(kind.item_type))
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        return pa.list_(find_writable(kind.value_type))
    if kind == pa.uint64() or not _is_known(kind):
        raise TypeError(
            f"must have a type that Iceberg has, but is {kind}; cast or drop it in a step"
        )
    return kind


def _is_known(kind: pa.DataType) -> bool:
    from pyiceberg.exceptions import NotInstalledError
    from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException

    try:
        convert_schema(pa.schema([("c", kind)]))
    except (UnsupportedPyArrowTypeException, TypeError, ValueError, NotInstalledError):
        return False
    return not pat.is_null(kind)


def convert_schema(schema: pa.Schema) -> Schema:
    """Return the columns as Iceberg has them, with new field ids, all of them optional."""
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
    from pyiceberg.schema import assign_fresh_schema_ids

    return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(schema))


def find_faults(wanted: WantedTable) -> Iterator[tuple[str, str]]:
    """Yield each field of the manifest, in camelCase, whose columns cannot be what it says."""
    for name in wanted.partition_by:
        kind = wanted.schema.field(name).type
        if pat.is_nested(kind) or pat.is_floating(kind):
            yield (
                "partitionBy",
                f"column {name!r} must not hold lists, structs or floats, but is {kind}; name "
                "another column, or cast it in a step",
            )
    if wanted.bucket_by is not None:
        try:
            check_bucketable(wanted.schema.field(wanted.bucket_by).type)
        except TypeError as error:
            yield "iceberg.bucketBy", f"column {wanted.bucket_by!r} {error}"
    for name in wanted.sort_by:
        kind = wanted.schema.field(name).type
        # Arrow sorts NaN elsewhere than Iceberg does.
        if pat.is_nested(kind) or pat.is_floating(kind):
            yield (
                "iceberg.sortBy",
                f"column {name!r} must not hold lists, structs or floats, but is {kind}; name "
                "another column",
            )


def build_spec(wanted: WantedTable) -> PartitionSpec:
    """Return the partitions of a new table."""
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
    from pyiceberg.transforms import BucketTransform, IdentityTransform, Transform

    schema = convert_schema(wanted.schema)
    names = set(wanted.schema.names)
    found: list[tuple[str, str, Transform[Any, Any]]]
    found = [(name, name, IdentityTransform()) for name in wanted.partition_by]
    if wanted.bucket_by is not None:
        name = f"{wanted.bucket_by}_bucket"  # as Spark names it
        while name in names:
            name += "_"
        found.append((wanted.bucket_by, name, BucketTransform(wanted.num_buckets)))
    return PartitionSpec(
        *(
            PartitionField(
                source_id=schema.find_field(column).field_id,
                field_id=PARTITION_FIELD_ID_START + index,
                transform=transform,
                name=name,
            )
            for index, (column, name, transform) in enumerate(found)
        )
    )


def build_order(wanted: WantedTable) -> SortOrder:
    """Return the order of a new table."""
    from pyiceberg.table.sorting import (
        UNSORTED_SORT_ORDER,
        NullOrder,
        SortDirection,
        SortField,
        SortOrder,
    )
    from pyiceberg.transforms import IdentityTransform

    if not wanted.sort_by:
        return UNSORTED_SORT_ORDER
    schema = convert_schema(wanted.schema)
    return SortOrder(
        *(
            SortField(
                source_id=schema.find_field(name).field_id,
                transform=IdentityTransform(),
                direction=SortDirection.ASC,
                null_order=NullOrder.NULLS_FIRST,
            )
            for name in wanted.sort_by
        )
    )


def find_differences(table: Table, wanted: WantedTable) -> Iterator[str]:
    """Yield each reason why rows of the wanted table cannot be put into a table that exists."""
    if table.format_version > 2:
        yield f"its format version is {table.format_version}, and at most 2 can be written"
    schema, new = table.schema(), convert_schema(wanted.schema)
    columns = {field.name: _plain(field.field_type) for field in schema.fields}
    for field in new.fields:
        there, here = columns.pop(field.name, None), _plain(field.field_type)
        if there is None:
            yield f"it has no column {field.name!r}"
        elif not _is_taken(here, there):
            yield f"its column {field.name!r} is {there}, and that of the rows is {here}"
    if columns:
        yield f"it has other columns: {', '.join(columns)}"
    ours = [*((name, "identity") for name in wanted.partition_by)]
    if wanted.bucket_by:
        ours.append((wanted.bucket_by, f"bucket[{wanted.num_buckets}]"))
    spec = table.spec().fields
    theirs = [(schema.find_column_name(f.source_id) or "", str(f.transform)) for f in spec]
    if ours and ours != theirs:
        yield f"it is partitioned by {_list(theirs)}, and not by {_list(ours)}"
    order = table.sort_order().fields
    sorted_by = tuple(schema.find_column_name(f.source_id) or "" for f in order)
    if wanted.sort_by and wanted.sort_by != sorted_by:
        yield f"it is sorted by {', '.join(sorted_by) or 'nothing'}"
    nested = [name for name, _ in theirs if "." in name]
    if nested:
        yield f"it is partitioned by parts of structs ({', '.join(nested)})"


def _is_taken(here: str, there: str) -> bool:
    """Return whether a column of one type of Iceberg takes rows of another type."""
    # UUIDs are 16 bytes in Lastmile.
    here, there = (kind.replace("uuid", "fixed[16]") for kind in (here, there))
    return here == there or (here, there) in (("int", "long"), ("float", "double"))


def _plain(kind: object) -> str:
    """Return an Iceberg type without field ids, and without which values may be null."""
    return re.sub("optional |required ", "", without_ids(kind))


def without_ids(kind: object) -> str:
    """Return the text of an Iceberg type without field ids, which differ from table to table."""
    return re.sub(r"\d+: ", "", str(kind))


def _list(fields: list[tuple[str, str]]) -> str:
    return ", ".join(f"{transform} of {name}" for name, transform in fields) or "nothing"
