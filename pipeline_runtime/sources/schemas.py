"""The one schema of a table: what its files store, which must agree, and its partition folders.

`parquet` calls it with the files' flat schemas, so that nested files and flat ones may be mixed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as pads

from pipeline_runtime.errors import SourceError


def discover_partitioning(below: Sequence[str]) -> Any:
    """Hive partitioning of the folders below the uri, its types from their values."""
    names: dict[str, list[str]] = {}
    for path in below:
        for part in path.split("/")[:-1]:
            if "=" in part:
                name, value = part.split("=", 1)
                names.setdefault(unquote(name), []).append(unquote(value))
    if not names:
        return None
    fields = [pa.field(name, _partition_type(values)) for name, values in names.items()]
    return pads.partitioning(pa.schema(fields), flavor="hive")


def _partition_type(values: Sequence[str]) -> pa.DataType:
    """int64 if every value is a plain integer, else string (a date stays the text it is)."""
    known = [value for value in values if value != "__HIVE_DEFAULT_PARTITION__"]
    return pa.int64() if known and all(map(_is_plain_integer, known)) else pa.string()


def _is_plain_integer(value: str) -> bool:
    """Whether a value is an int64 as it would be written: no sign but minus, no leading zero."""
    is_number = re.fullmatch(r"0|-?[1-9][0-9]{0,18}", value) is not None
    return is_number and -(2**63) <= int(value) < 2**63


def common_schema(
    paths: Sequence[str],
    stored: Sequence[pa.Schema],
    partitions: Sequence[dict[str, Any]],
    partition_schema: pa.Schema | None,
) -> pa.Schema:
    """The schema of the first file, which every other must match by name and type.

    Args:
        paths: the files, for errors; `stored` and `partitions` have one entry for each.
        stored: the columns in each file, flat.
        partitions: the values of each file's partition folders.
        partition_schema: of the partition folders; None: there are none.
    """
    schema = _with_types_of_others(stored[0], stored[1:])
    repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if repeated:
        raise SourceError(f"{paths[0]}: two columns are called {repeated[0]!r}; rename one")
    folders = partition_schema.names if partition_schema else []
    for path, other, values in zip(paths, stored, partitions, strict=True):
        _check_same_schema(path, other, schema, paths[0])
        if set(values) != set(folders):
            raise SourceError(
                f"{path}: partition folders differ: got {sorted(values)}, other files "
                f"have {sorted(folders)}; keep one layout below the uri"
            )
    return pa.schema(
        [field for field in schema if field.name not in folders] + list(partition_schema or [])
    )


def _with_types_of_others(schema: pa.Schema, others: Sequence[pa.Schema]) -> pa.Schema:
    """A column of nulls alone, as of a file without rows, has the type that it has elsewhere."""
    for index, field in enumerate(schema):
        if pa.types.is_null(field.type):
            types = (other.field(field.name).type for other in others if field.name in other.names)
            found = next((kind for kind in types if not pa.types.is_null(kind)), field.type)
            schema = schema.set(index, field.with_type(found))
    return schema


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
    """The type with encodings that do not change values taken off."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(pa.field("item", _plain(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in kind])
    return kind
