"""The names of partition folders: which columns can have them, and the name of a row's folder.

Names follow Hive, as Spark, DuckDB and pyarrow read them: `day=2026-01-01/country=DE`. A null is
`__HIVE_DEFAULT_PARTITION__`; characters that a path or a URI uses are percent-encoded, and other
Unicode is kept. `plan` checks the columns of an output by it, `output` names the folders, and
`schemas` reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pipeline_runtime.errors import OutputRefused
from pipeline_runtime.sources.output_manifest import PARTITION_TYPES

NULL_NAME = "__HIVE_DEFAULT_PARTITION__"
# The limit of names on Linux file systems. Stores allow 1,024 bytes for a whole path.
MAX_NAME_BYTES = 255
# As Spark and Hive escape them, with the space that pyarrow's URIs cannot have.
_ESCAPED = {chr(code) for code in (*range(0x20), 0x7F)} | set(" \"#%'*/:=?\\{}[]^<>|")


def find_partition_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of a partition column as a reader finds it; None if it cannot be one."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        kind = pa.string()
    return PARTITION_TYPES.get(str(kind))


def find_name_fault(column: str) -> str | None:
    """Return why readers would not find a partition column of this name; None if they do."""
    if column.startswith(("_", ".")):
        return "readers skip folders whose names begin with '_' or '.'"
    if len(_escape(column).encode()) > MAX_NAME_BYTES // 2:
        return f"its name takes more than {MAX_NAME_BYTES // 2} bytes of a folder's name"
    return None


def name_folder(columns: Sequence[str], values: Sequence[Any]) -> str:
    """Return the folder of rows with these values, relative to the table; "" without columns.

    Raises OutputRefused if a value has no folder's name.
    """
    return "/".join(
        _name_part(column, value) for column, value in zip(columns, values, strict=True)
    )


def _name_part(column: str, value: Any) -> str:
    text = _format(column, value)
    part = f"{_escape(column)}={text}"
    if len(part.encode()) > MAX_NAME_BYTES:
        raise OutputRefused(
            f"spec.output.partitionBy: column {column!r}: a value must fit a folder's name of "
            f"{MAX_NAME_BYTES} bytes, but {str(value)[:40]!r}… takes {len(part.encode())}; "
            "partition by a shorter column, such as a hashBucket of this one"
        )
    return part


def _format(column: str, value: Any) -> str:
    if value is None:
        return NULL_NAME
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)  # a date in ISO 8601
    if text == NULL_NAME:
        raise OutputRefused(
            f"spec.output.partitionBy: column {column!r}: the value {text!r} is the name of the "
            "folder for nulls, so readers would read it as null; replace it in a derive step"
        )
    return _escape(text)


def _escape(text: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)
