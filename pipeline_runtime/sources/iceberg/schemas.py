"""Converts Iceberg's schemas to Arrow's, and reads columns of a file by their field ids.

A file has the names, types and order of its time. A column of the table is found in it by its field
id, whatever its name; ids are in the metadata of Arrow's fields. So a renamed column keeps its
rows, and one that was dropped and added again has none of the old ones. Parts of structs are found
in the same way. Files that were imported have no ids; the table's name mapping gives them some.

The planner converts schemas, which needs PyIceberg. Workers use `FileColumns` alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipeline_runtime.errors import SourceError
from pipeline_runtime.sources.parquet.schemas import cast_column

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.name_mapping import MappedField
    from pyiceberg.types import IcebergType, NestedField

_ID = b"PARQUET:field_id"
# Iceberg's promotions under which the statistics of a file bound the table's values too.
_WIDENED = {(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}

Names = Mapping[str, tuple[int | None, "Names"]]
"""Field ids by name, and those of the parts below: a name mapping without PyIceberg's classes."""


def to_arrow_schema(schema: Schema, table: str) -> pa.Schema:
    """Return a table's schema in Arrow's types, with field ids in the fields' metadata.

    Raises SourceError for a type that this release cannot read.
    """
    return pa.schema([_to_field(field, table) for field in schema.fields])


def _to_field(field: NestedField, table: str) -> pa.Field:
    kind = _to_type(field.field_type, f"{table}: column {field.name!r}", table)
    metadata = {_ID: str(field.field_id).encode()}
    return pa.field(field.name, kind, nullable=not field.required, metadata=metadata)


def _to_type(kind: IcebergType, what: str, table: str) -> pa.DataType:
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.types import ListType, MapType, StructType

    if isinstance(kind, StructType):
        return pa.struct([_to_field(field, table) for field in kind.fields])
    if isinstance(kind, ListType):
        return pa.list_(_to_field(kind.element_field, table))
    if isinstance(kind, MapType):
        return pa.map_(_to_field(kind.key_field, table), _to_field(kind.value_field, table))
    try:
        found = schema_to_pyarrow(kind)
    except (AttributeError, NotImplementedError, TypeError, ValueError) as error:
        raise SourceError(f"{what} has type {kind}, which this release cannot read") from error
    if isinstance(found, pa.BaseExtensionType):
        found = found.storage_type
    # Files hold as many bytes of text per row group as 32-bit offsets can count.
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(found, found)


def strip_ids(schema: pa.Schema) -> pa.Schema:
    """Return the schema without field ids."""
    return pa.schema([_strip(field) for field in schema])


def _strip(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_strip(each) for each in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(_strip(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(_strip(kind.key_field), _strip(kind.item_field))
    return pa.field(field.name, kind, nullable=field.nullable)


def to_names(mapping: Iterable[MappedField]) -> Names:
    """Return a table's name mapping (`schema.name-mapping.default`) in plain types."""
    return {
        name: (field.field_id, to_names(field.fields)) for field in mapping for name in field.names
    }


def read_defaults(schema: Schema) -> dict[int, Any]:
    """Return the values, by field id, of columns in files that were written without them."""
    return {
        field.field_id: field.initial_default
        for field in schema.fields
        if field.initial_default is not None
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class FileColumns:
    """The columns of one file, found by field id.

    Attributes:
        fields: the file's fields by id.
    """

    fields: Mapping[int, pa.Field]

    @classmethod
    def of(cls, stored: pa.Schema, names: Names | None, path: str) -> FileColumns:
        """Find a file's field ids.

        Args:
            stored: the schema with which pyarrow reads the file.
            names: the table's name mapping; None if it has none.

        Raises SourceError if the file has no ids, and the table no name mapping.
        """
        fields: list[pa.Field] = list(stored)
        if fields and not any(map(_has_id, fields)):
            if names is None:
                raise SourceError(
                    f"{path}: the file has no field ids, and the table has no name mapping that "
                    "gives them. Set the table's property schema.name-mapping.default"
                )
            fields = [_give_id(field, names) for field in fields]
        return cls(fields={each: field for field in fields if (each := _id_of(field)) is not None})

    def find(self, wanted: pa.Field) -> pa.Field | None:
        """Return the file's field of a column of the table; None if the file lacks it."""
        return self.fields.get(id_of(wanted))

    def has_comparable_statistics(self, wanted: pa.Field) -> bool:
        """Return whether the file's statistics bound the values of a column of the table."""
        stored = self.find(wanted)
        return stored is not None and (
            stored.type == wanted.type or (stored.type, wanted.type) in _WIDENED
        )


def _id_of(field: pa.Field) -> int | None:
    text = (field.metadata or {}).get(_ID)
    return None if text is None else int(text)


def id_of(field: pa.Field) -> int:
    """Return the field id of a field of the table."""
    found = _id_of(field)
    assert found is not None, "fields of the table have ids"
    return found


def _has_id(field: pa.Field) -> bool:
    return _id_of(field) is not None or any(map(_has_id, _parts(field.type)))


def _parts(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [kind.value_field]
    return list(kind) if pa.types.is_struct(kind) else []


def _give_id(field: pa.Field, names: Names, name: str | None = None) -> pa.Field:
    """Return a field with ids of the name mapping; a field without an entry gets none."""
    field_id, below = names.get(name or field.name, (None, {}))
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_give_id(each, below) for each in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(_give_id(kind.value_field, below, "element"))
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(_give_id(kind.value_field, below, "element"))
    elif pa.types.is_map(kind):
        key, item = (kind.key_field, "key"), (kind.item_field, "value")
        kind = pa.map_(*(_give_id(each, below, part) for each, part in (key, item)))
    metadata = None if field_id is None else {_ID: str(field_id).encode()}
    return pa.field(field.name, kind, nullable=field.nullable, metadata=metadata)


def project(column: pa.ChunkedArray, stored: pa.Field, wanted: pa.Field) -> pa.ChunkedArray:
    """Return a file's column with the type, and the parts of structs, that the table has.

    Args:
        stored: the file's field, with ids.
        wanted: the table's field, with ids.
    """
    if not pa.types.is_nested(wanted.type):
        return _cast(column, wanted.type)
    target = _strip(wanted).type
    chunks = [_project(chunk, stored, wanted) for chunk in column.chunks]
    return pa.chunked_array(chunks, type=target)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    if isinstance(column.type, pa.BaseExtensionType):
        chunks = [chunk.storage for chunk in column.chunks]
        column = pa.chunked_array(chunks, type=column.type.storage_type)
    if pa.types.is_timestamp(column.type) and pa.types.is_timestamp(kind):
        return column.cast(kind, safe=False)  # INT96 has nanoseconds, the table microseconds
    return cast_column(column, kind)


def _project(array: pa.Array, stored: pa.Field, wanted: pa.Field) -> pa.Array:
    kind, target = stored.type, _strip(wanted).type
    if pa.types.is_struct(target):
        return _project_struct(array, kind, wanted.type, target)
    if pa.types.is_list(target):
        if pa.types.is_large_list(array.type):
            array = array.cast(pa.list_(array.type.value_field))
        items = _project(array.values, kind.value_field, wanted.type.value_field)
        return _with_children(array, target, [items])
    if pa.types.is_map(target):
        keys = _project(array.keys, kind.key_field, wanted.type.key_field)
        items = _project(array.items, kind.item_field, wanted.type.item_field)
        entries = pa.StructArray.from_arrays(
            [keys, items], fields=[target.key_field, target.item_field]
        )
        return _with_children(array, target, [entries])
    # The cast of no items has no chunk.
    return _cast(pa.chunked_array([array]), target).combine_chunks()


def _project_struct(
    array: pa.Array, kind: pa.DataType, wanted: pa.DataType, target: pa.DataType
) -> pa.Array:
    if wanted.num_fields == 0:
        return pa.array([{}] * len(array), type=target)
    found = {_id_of(field): index for index, field in enumerate(kind)}
    parts = []
    for field in wanted:
        index = found.get(id_of(field))
        if index is None:
            parts.append(pa.nulls(len(array), type=_strip(field).type))
        else:
            parts.append(_project(array.field(index), kind.field(index), field))
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(parts, fields=list(target), mask=mask)


def _with_children(array: pa.Array, kind: pa.DataType, children: list[pa.Array]) -> pa.Array:
    """Return lists or maps with other items in the same places."""
    return pa.Array.from_buffers(
        kind, len(array), array.buffers()[:2], array.null_count, array.offset, children
    )
