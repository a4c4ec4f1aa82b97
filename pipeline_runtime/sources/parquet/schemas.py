"""Builds the schema of a table from its files' schemas, which must agree, and partition folders.

`table` passes the files' flat schemas, so that a table may mix nested and flat files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from pipeline_runtime.errors import SourceError
from pipeline_runtime.sources.partition_names import NULL_NAME


def discover_partitioning(
    below: Sequence[str], known: Mapping[str, pa.DataType] = MappingProxyType({})
) -> Any:
    """Return the hive partitioning of the folders below the uri.

    Args:
        known: types of columns; others get theirs from their values.
    """
    names: dict[str, list[str]] = {}
    for path in below:
        for part in path.split("/")[:-1]:
            if "=" in part:
                name, value = part.split("=", 1)
                names.setdefault(unquote(name), []).append(unquote(value))
    if not names:
        return None
    fields = [
        pa.field(name, known.get(name) or _partition_type(values)) for name, values in names.items()
    ]
    return pads.partitioning(pa.schema(fields), flavor="hive")


def _partition_type(values: Sequence[str]) -> pa.DataType:
    """Return int64 if every value is a plain integer, else string (dates stay text)."""
    known = [value for value in values if value != NULL_NAME]
    return pa.int64() if known and all(map(_is_plain_integer, known)) else pa.string()


def _is_plain_integer(value: str) -> bool:
    """Return whether a value is an int64 in its usual form: no plus sign, no leading zero."""
    is_number = re.fullmatch(r"0|-?[1-9][0-9]{0,18}", value) is not None
    return is_number and -(2**63) <= int(value) < 2**63


def common_schema(
    paths: Sequence[str],
    stored: Sequence[pa.Schema],
    partitions: Sequence[dict[str, Any]],
    partition_schema: pa.Schema | None,
) -> pa.Schema:
    """Return the schema of all files, whose columns must match by name and type.

    A column gets one type that holds the values of every file (`_merge_types`), and is nullable if
    it is nullable in any file. The columns have the first file's order.

    Args:
        paths: the files, for errors; `stored` and `partitions` have one entry for each.
        stored: the columns in each file, flat.
        partitions: the values of each file's partition folders.
        partition_schema: the schema of the partition folders; None if there are none.
    """
    schema = _merge_schemas(stored)
    repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if repeated:
        raise SourceError(f"{paths[0]}: two columns are called {repeated[0]!r}; rename one")
    folders = partition_schema.names if partition_schema else []
    for path, other, values in zip(paths, stored, partitions, strict=True):
        _check_views(path, other)
        _check_same_schema(path, other, schema, paths[0])
        if set(values) != set(folders):
            raise SourceError(
                f"{path}: partition folders differ: got {sorted(values)}, other files "
                f"have {sorted(folders)}; keep one layout below the uri"
            )
    return pa.schema(
        [field for field in schema if field.name not in folders] + list(partition_schema or [])
    )


def _merge_schemas(stored: Sequence[pa.Schema]) -> pa.Schema:
    """Merge the columns of all files by name; the first file's columns decide which there are."""
    first = stored[0]
    if len(set(first.names)) < len(first.names):
        return first
    distinct = [first]
    for other in stored[1:]:  # comparing equal schemas is fast, and most are equal
        if not any(other.equals(known) for known in distinct):
            distinct.append(other)
    fields = []
    for column in first:
        others = [other.field(column.name) for other in distinct if column.name in other.names]
        fields.append(_merge_fields(others, has_many=len(stored) > 1))
    return pa.schema(fields)


def _merge_fields(fields: Sequence[pa.Field], *, has_many: bool) -> pa.Field:
    """Return the first field, with a type and nullability that fit all fields."""
    kind = _merge_types([field.type for field in fields], has_many=has_many)
    return fields[0].with_type(kind).with_nullable(any(field.nullable for field in fields))


def _merge_types(types: Sequence[pa.DataType], *, has_many: bool) -> pa.DataType:
    """Return a type that holds the values of all types, which should differ in encoding only.

    If they differ in more, return the first; `_check_same_schema` then refuses the other file.

    Args:
        has_many: True if there are several files. Their dictionaries may differ, so the index type
            must be wide enough for all their values together.
    """
    types = [kind for kind in types if not pa.types.is_null(kind)] or types
    first = types[0]
    if any(_plain(kind) != _plain(first) for kind in types):
        return first
    dictionaries = [kind for kind in types if pa.types.is_dictionary(kind)]
    if dictionaries and len(dictionaries) == len(types):
        return _merge_dictionaries(dictionaries, has_many=has_many)
    if dictionaries:
        values = [kind.value_type if kind in dictionaries else kind for kind in types]
        return _merge_types(values, has_many=has_many)
    merge = partial(_merge_children, types, has_many=has_many)
    if _is_list(first):
        is_large = any(map(_is_large_list, types))
        return (pa.large_list if is_large else pa.list_)(merge("value_field"))
    if pa.types.is_fixed_size_list(first):
        return pa.list_(merge("value_field"), first.list_size)
    if pa.types.is_map(first):
        return pa.map_(merge("key_field"), merge("item_field"), first.keys_sorted)
    if pa.types.is_struct(first):
        columns = [[kind.field(place) for kind in types] for place in range(first.num_fields)]
        return pa.struct([_merge_fields(fields, has_many=has_many) for fields in columns])
    if any(map(_is_large_text, types)):
        return pa.large_string() if _plain(first) == pa.string() else pa.large_binary()
    return first


def _merge_children(types: Sequence[pa.DataType], name: str, *, has_many: bool) -> pa.Field:
    return _merge_fields([getattr(kind, name) for kind in types], has_many=has_many)


def _merge_dictionaries(types: Sequence[pa.DictionaryType], *, has_many: bool) -> pa.DictionaryType:
    widths = [_signed_width(kind.index_type) for kind in types]
    index = types[0].index_type
    if has_many:
        index = pa.int32() if max(widths) <= pa.int32().bit_width else pa.int64()
    values = _merge_types([kind.value_type for kind in types], has_many=has_many)
    return pa.dictionary(index, values, ordered=all(kind.ordered for kind in types))


def _signed_width(index: pa.DataType) -> int:
    """Return the bits that a signed type needs for the values of an index type."""
    return int(index.bit_width + pa.types.is_unsigned_integer(index))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or _is_list_view(kind))


def _is_list_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def _is_large_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind))


def _is_large_text(kind: pa.DataType) -> bool:
    """Return whether text needs large offsets.

    Views are read as large text, because many functions of Arrow do not support them.
    """
    large = (pa.large_string(), pa.large_binary(), pa.string_view(), pa.binary_view())
    return kind in large


def cast_column(column: pa.ChunkedArray, data_type: pa.DataType) -> pa.ChunkedArray:
    """Cast a file's column to the type that `common_schema` chose for the table."""
    if _is_list_view(column.type):
        # Arrow's own cast uses the offsets of a view as those of a list, which has one more.
        item = column.type.value_field
        is_large = pa.types.is_large_list_view(column.type)
        kind = pa.large_list(item) if is_large else pa.list_(item)
        column = pa.chunked_array([_as_lists(chunk, kind) for chunk in column.chunks], kind)
    return column.cast(data_type)


def _as_lists(array: pa.Array, kind: pa.DataType) -> pa.Array:
    lengths = np.asarray(pc.list_value_length(array).fill_null(0))
    offsets = np.zeros(len(array) + 1, dtype=lengths.dtype)
    np.cumsum(lengths, out=offsets[1:])
    make = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    mask = array.is_null() if array.null_count else None
    return make.from_arrays(pa.array(offsets), array.flatten(), type=kind, mask=mask)


def _check_views(path: str, schema: pa.Schema) -> None:
    """Refuse list views within other types, which cannot be read as lists."""
    for field in schema:
        if any(map(_has_list_view, _children(field.type))):
            raise SourceError(
                f"{path}: column {field.name!r} has list views within other types "
                f"({field.type}), which cannot be read; rewrite the file with lists"
            )


def _has_list_view(kind: pa.DataType) -> bool:
    return _is_list_view(kind) or any(map(_has_list_view, _children(kind)))


def _children(kind: pa.DataType) -> list[pa.DataType]:
    is_nested = pa.types.is_nested(kind) and not pa.types.is_union(kind)
    return [kind.field(place).type for place in range(kind.num_fields)] if is_nested else []


def _check_same_schema(path: str, other: pa.Schema, schema: pa.Schema, first: str) -> None:
    missing = sorted(set(schema.names) - set(other.names))
    extra = sorted(set(other.names) - set(schema.names))
    if missing or extra:
        what = f"lacks column {missing[0]!r}" if missing else f"has an extra column {extra[0]!r}"
        raise SourceError(f"{path}: mixed schemas: it {what}, unlike {first}; rewrite the file")
    for field in schema:
        got = other.field(field.name).type
        if not pa.types.is_null(got) and _plain(got) != _plain(field.type):
            raise SourceError(
                f"{path}: mixed schemas: column {field.name!r} is {got}, but "
                f"{field.type} in {first}; rewrite the file with one type"
            )


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type with dictionaries, large offsets and views replaced by the plain type."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if _is_list(kind):
        return pa.list_(pa.field("item", _plain(kind.value_type)))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(pa.field("item", _plain(kind.value_type)), kind.list_size)
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in kind])
    return kind
