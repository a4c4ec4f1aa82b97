"""The list of files of a table that Lastmile wrote, which decides what the table holds.

Object stores cannot rename a folder, so while an output is replaced its folder holds files of two
tables, or of half a table. The manifest is one object and is replaced as a whole: a reader that
follows it sees the old table or the new one. `output` writes it, `listing` follows it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Annotated, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic.alias_generators import to_camel

from pipeline_runtime.errors import SourceError
from pipeline_runtime.sources.filesystem import Location
from pipeline_runtime.sources.stores import read_file

MANIFEST_FILE = "_lastmile_output.json"  # readers skip it because of its underscore
# A file of the table takes about 200 bytes of it; no table has a million files (output.merge).
_MAX_BYTES = 256 << 20
_MAX_PATH_CHARS = 4096

_TYPES = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.bool_(), pa.string(), pa.date32()),
)
# The types that a folder's name can hold without loss, by the names that the manifest uses.
PARTITION_TYPES: Mapping[str, pa.DataType] = {str(kind): kind for kind in _TYPES}

Count = Annotated[int, Field(ge=0)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)


class OutputFile(_Model):
    """One Parquet file of the table."""

    path: Annotated[str, StringConstraints(min_length=1, max_length=_MAX_PATH_CHARS)]
    rows: Count
    bytes: Count


class PartitionColumn(_Model):
    """A column whose values are names of folders, and its Arrow type."""

    name: str
    type: str


class OutputManifest(_Model):
    """The content of `_lastmile_output.json`.

    Attributes:
        id: what tells this table from all others, even from those of the same run.
        run: name of the run that wrote the table.
        run_hash: hash of the settings that decide the table's rows.
        files: all files of the table; paths are relative to its folder.
    """

    version: Literal[1] = 1
    id: str
    run: str
    run_hash: str
    partition_by: tuple[PartitionColumn, ...] = ()
    files: tuple[OutputFile, ...]

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return sum(file.rows for file in self.files)

    @property
    def num_bytes(self) -> int:
        """Bytes of the table's files."""
        return sum(file.bytes for file in self.files)

    @property
    def partition_types(self) -> dict[str, pa.DataType]:
        """Types of the partition columns; a type that this release does not know reads as text."""
        return {c.name: PARTITION_TYPES.get(c.type, pa.string()) for c in self.partition_by}

    def to_json(self) -> bytes:
        """Return the file's content."""
        return self.model_dump_json(by_alias=True, indent=1).encode()


def read_output_manifest(folder: Location) -> OutputManifest | None:
    """Return the manifest of a table's folder; None if Lastmile did not write the table.

    Raises:
        SourceError: the manifest is damaged, or of a later version.
        StoreError: the store does not answer.
    """
    place = folder.join(MANIFEST_FILE)
    text = read_file(place, "read the list of the table's files", _MAX_BYTES)
    if text is None:
        return None
    try:
        manifest = OutputManifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise SourceError(
            f"{place.uri}: must be a table's list of files that this Lastmile reads, but {where}: "
            f"{first['msg']}; write the table again, or read it with the Lastmile that wrote it"
        ) from error
    for file in manifest.files:
        if not _is_inside(file.path):
            raise SourceError(
                f"{place.uri}: must list files of this folder, but lists {file.path!r}; write the "
                "table again"
            )
    return manifest


def _is_inside(path: str) -> bool:
    is_plain = posixpath.normpath(path) == path and not path.startswith(("/", ".."))
    return is_plain and "\0" not in path
