"""Parquet tables: files, directories with hive partitions, globs and lists, on any filesystem.

Discovery reads every file's footer (in parallel) and nothing else: from them come the one schema
that all files must share, the row groups and their statistics. Pruning is pyarrow.dataset's: a
predicate drops files by their partition values and row groups by their statistics. Reading is done
by `read_row_group`, the fastest flat reader there is in Python (see benchmarks/).
"""

from __future__ import annotations

import fnmatch
import hashlib
import posixpath
import re
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from pipeline_runtime.config import ParquetSource
from pipeline_runtime.errors import SourceError
from pipeline_runtime.sources.base import Pruning, Scan, Unit
from pipeline_runtime.sources.filesystem import Location, open_location

# Footers are small and far away on an object store: latency, not CPU, bounds reading them.
FOOTER_THREADS = 16
_SUFFIXES = (".parquet", ".parq", ".pq")
_GLOB_CHARACTERS = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetTable:
    """A RawTable over Parquet files of one schema."""

    description: str
    schema: pa.Schema
    files: tuple[str, ...]  # relative to the table
    paths: tuple[str, ...]  # on the filesystem
    filesystem: Any
    partition_values: tuple[dict[str, Any], ...]  # a file each
    fragments: tuple[Any, ...] = ()  # with footers; stays on the planner's side

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.description, self.schema, self.files, self.paths, self.filesystem)
        return _rebuild, (*fields, self.partition_values)

    def scan(self, predicates: Sequence[pads.Expression]) -> Scan:
        """See RawTable; a predicate prunes by partition values and row-group statistics."""
        keep = None
        for predicate in predicates:
            keep = predicate if keep is None else keep & predicate
        units = [
            unit
            for index, fragment in enumerate(self.fragments)
            for unit in _units_of(index, fragment, keep, self.schema)
        ]
        return Scan(units=tuple(units), pruning=self._pruning(units))

    def footer_digests(self, files: Sequence[int]) -> list[str]:
        """See RawTable; on the planner's side only. A footer has every column's statistics."""
        return [_digest_footer(self.fragments[file].metadata) for file in files]

    def column_bytes(self, units: Sequence[Unit], columns: Collection[str]) -> int:
        """See RawTable; by the footers, so on the planner's side only."""
        return sum(
            chunk.total_uncompressed_size
            for unit in units
            for chunk in _chunks(self.fragments[unit.file].metadata.row_group(unit.row_group))
            if chunk.path_in_schema.split(".")[0] in columns
        )

    def _pruning(self, units: Sequence[Unit]) -> Pruning:
        return Pruning(
            files_total=len(self.files),
            files_read=len({unit.file for unit in units}),
            row_groups_total=sum(fragment.num_row_groups for fragment in self.fragments),
            row_groups_read=len(units),
            rows_total=sum(fragment.metadata.num_rows for fragment in self.fragments),
            rows_read=sum(unit.num_rows for unit in units),
        )

    def read(self, unit: Unit, columns: Sequence[str], max_rows: int) -> Iterator[pa.Table]:
        """See RawTable. Raises SourceError naming the file if it is gone, corrupt or changed."""
        path = self.paths[unit.file]
        partitions = self.partition_values[unit.file]
        stored = [name for name in columns if name not in partitions]
        try:
            for table in _read_stored(self.filesystem, path, unit, stored, max_rows):
                yield self._complete(table, columns, partitions)
        except (OSError, pa.ArrowException, IndexError) as error:
            raise SourceError(_explain_read_failure(path, unit, error)) from error

    def _complete(
        self, table: pa.Table, columns: Sequence[str], partitions: dict[str, Any]
    ) -> pa.Table:
        """Add partition columns, and give every column the table's type."""
        arrays = []
        for name in columns:
            kind = self.schema.field(name).type
            if name in partitions:
                scalar = pa.scalar(partitions[name], type=kind)
                arrays.append(pa.chunked_array([pa.repeat(scalar, table.num_rows)], type=kind))
            else:
                column = table.column(name)
                arrays.append(column if column.type == kind else column.cast(kind))
        schema = pa.schema([self.schema.field(name) for name in columns])
        if not columns:
            return table.select([])
        return pa.Table.from_arrays(arrays, schema=schema)


def _digest_footer(metadata: pq.FileMetaData) -> str:
    sink = pa.BufferOutputStream()
    metadata.write_metadata_file(sink)
    return hashlib.sha256(sink.getvalue()).hexdigest()


def _chunks(row_group: Any) -> Iterator[Any]:
    return (row_group.column(index) for index in range(row_group.num_columns))


def _rebuild(*fields: Any) -> ParquetTable:
    names = ("description", "schema", "files", "paths", "filesystem", "partition_values")
    return ParquetTable(**dict(zip(names, fields, strict=True)))


def _read_stored(
    filesystem: Any, path: str, unit: Unit, stored: list[str], max_rows: int
) -> Iterator[pa.Table]:
    with (
        filesystem.open_input_file(path) as stream,
        pq.ParquetFile(stream, pre_buffer=True) as file,
    ):
        if unit.num_rows <= max_rows:
            yield file.read_row_group(unit.row_group, columns=stored, use_threads=False)
            return
        batches = file.iter_batches(
            batch_size=max_rows, row_groups=[unit.row_group], columns=stored, use_threads=False
        )
        for batch in batches:
            yield pa.Table.from_batches([batch])


def _explain_read_failure(path: str, unit: Unit, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path}: the file is gone since the run was planned; restore it or run again"
    return (
        f"{path}: cannot read row group {unit.row_group} ({unit.num_rows} rows): {error}; the file "
        "is corrupt or was rewritten while it was read: replace it, or leave it out of the uri"
    )


def _units_of(index: int, fragment: Any, keep: Any, schema: pa.Schema) -> list[Unit]:
    pieces = fragment.split_by_row_group(keep, schema) if keep is not None else [fragment]
    return [
        Unit(
            file=index,
            row_group=group.id,
            num_rows=group.num_rows,
            num_bytes=group.total_byte_size,
        )
        for piece in pieces
        for group in piece.row_groups
        if group.num_rows > 0
    ]


def open_parquet(source: ParquetSource, storage_root: str) -> ParquetTable:
    """Discover a table's files, read their footers and check that they share one schema.

    Raises SourceError: nothing there, a file that is not Parquet, or a schema that differs, each
    naming the file.
    """
    locations = [open_location(uri, storage_root, source.s3) for uri in source.locations]
    _check_one_filesystem(locations)
    found = [_look_for_files(location) for location in locations]
    base = locations[0]
    # A file that two uris name is one file; its partitions are those below the first of them.
    roots = {path: root for paths, root in reversed(found) for path in paths}
    listed = sorted(roots.items())
    paths = tuple(path for path, _ in listed)
    # Partition folders are those below a file's own uri; a file's name must be unique in the table.
    below = [path.removeprefix(root).lstrip("/") for path, root in listed]
    shared = posixpath.commonpath([root for _, root in listed])
    partitioning = _discover_partitioning(below)
    fragments = _make_fragments(base.filesystem, paths, below, partitioning)
    _read_footers(fragments)
    partitions = tuple(
        pads.get_partition_keys(fragment.partition_expression) for fragment in fragments
    )
    return ParquetTable(
        description=", ".join(source.locations),
        schema=_common_schema(fragments, partitions, partitioning.schema if partitioning else None),
        files=tuple(path.removeprefix(shared).lstrip("/") for path in paths),
        paths=paths,
        filesystem=base.filesystem,
        partition_values=partitions,
        fragments=tuple(fragments),
    )


def _check_one_filesystem(locations: Sequence[Location]) -> None:
    first = locations[0]
    for location in locations[1:]:
        if location.filesystem != first.filesystem:
            raise SourceError(
                f"{location.uri}: must be on the file system of the other uris ({first.uri}), is "
                "on another; copy the files to one place"
            )


def _look_for_files(location: Location) -> tuple[list[str], str]:
    """What `_list_files` finds. Raises SourceError if the store refuses."""
    try:
        return _list_files(location)
    except (OSError, pa.ArrowException) as error:
        raise SourceError(
            f"{location.uri}: cannot list the files: {error}; check the uri, and that the store's "
            "address and credentials are in the environment"
        ) from error


def _list_files(location: Location) -> tuple[list[str], str]:
    """The Parquet files of one URI, and the folder that their partition folders are below."""
    info = location.filesystem.get_file_info(location.path.rstrip("/"))
    # A folder whose own name has such a character is not a pattern.
    if info.type == pafs.FileType.NotFound and _GLOB_CHARACTERS & set(location.path):
        return _glob_files(location)
    if info.type == pafs.FileType.NotFound:
        raise SourceError(
            f"{location.uri}: nothing is there; check the uri and the storage root "
            f"(looked at {location.path})"
        )
    if info.type == pafs.FileType.File:
        return [info.path], info.path.rsplit("/", 1)[0]
    root = location.path.rstrip("/")
    files = _data_files(location, root)
    if not files:
        raise SourceError(f"{location.uri}: the folder holds no Parquet files; check the uri")
    return files, root


def _data_files(location: Location, root: str) -> list[str]:
    """Files below a folder: hidden ones left out, and other formats where Parquet names itself."""
    selector = pafs.FileSelector(root, recursive=True, allow_not_found=True)
    infos = location.filesystem.get_file_info(selector)
    files = [info.path for info in infos if info.type == pafs.FileType.File]
    visible = [path for path in files if not _is_hidden(path.removeprefix(root))]
    named = [path for path in visible if path.endswith(_SUFFIXES)]
    return sorted(named or visible)


def _is_hidden(relative: str) -> bool:
    return any(part.startswith(("_", ".")) for part in relative.strip("/").split("/"))


def _glob_files(location: Location) -> tuple[list[str], str]:
    parts = location.path.split("/")
    fixed = next(i for i, part in enumerate(parts) if _GLOB_CHARACTERS & set(part))
    root = "/".join(parts[:fixed]) or "/"
    pattern = location.path.rstrip("/")
    candidates = _data_files(location, root)
    files = [path for path in candidates if _matches(path, pattern)]
    if not files:
        raise SourceError(
            f"{location.uri}: no file matches the pattern; {len(candidates)} files are below {root}"
        )
    return files, root


def _matches(path: str, pattern: str) -> bool:
    """Glob by path parts, so that '*' stays within one folder; a matched folder means its files."""
    parts, wanted = path.split("/"), pattern.split("/")
    if "**" in wanted:
        return fnmatch.fnmatchcase(path, pattern.replace("**/", "*"))
    return len(parts) >= len(wanted) and all(
        fnmatch.fnmatchcase(part, want) for part, want in zip(parts, wanted, strict=False)
    )


def _discover_partitioning(below: Sequence[str]) -> Any:
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


def _make_fragments(
    filesystem: Any, paths: Sequence[str], below: Sequence[str], partitioning: Any
) -> list[Any]:
    form = pads.ParquetFileFormat()
    everywhere = pads.scalar(True)
    return [
        form.make_fragment(
            path,
            filesystem,
            partition_expression=partitioning.parse(relative) if partitioning else everywhere,
        )
        for path, relative in zip(paths, below, strict=True)
    ]


def _read_footers(fragments: Sequence[Any]) -> None:
    def read(fragment: Any) -> None:
        try:
            fragment.ensure_complete_metadata()
        except (OSError, pa.ArrowException) as error:
            raise SourceError(
                f"{fragment.path}: cannot read the Parquet footer: {error}; replace the file, or "
                "leave it out of the uri"
            ) from error

    with ThreadPoolExecutor(min(FOOTER_THREADS, max(1, len(fragments)))) as pool:
        list(pool.map(read, fragments))


def _common_schema(
    fragments: Sequence[Any], partitions: Sequence[dict[str, Any]], partition_schema: Any
) -> pa.Schema:
    """The schema of the first file, which every other must match by name and type."""
    first = fragments[0]
    schema = _with_types_of_others(first.physical_schema.remove_metadata(), fragments[1:])
    repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if repeated:
        raise SourceError(f"{first.path}: two columns are called {repeated[0]!r}; rename one")
    for fragment, values in zip(fragments, partitions, strict=True):
        _check_same_schema(fragment, schema, first.path)
        if set(values) != set(partition_schema.names if partition_schema else ()):
            raise SourceError(
                f"{fragment.path}: partition folders differ: got {sorted(values)}, other files "
                f"have {sorted(partition_schema.names)}; keep one layout below the uri"
            )
    stored = [
        field for field in schema if not (partition_schema and field.name in partition_schema.names)
    ]
    return pa.schema(stored + list(partition_schema or []))


def _with_types_of_others(schema: pa.Schema, others: Sequence[Any]) -> pa.Schema:
    """A column of nulls alone, as of a file without rows, has the type that it has elsewhere."""
    for index, field in enumerate(schema):
        if pa.types.is_null(field.type):
            known = (other.physical_schema for other in others)
            types = (s.field(field.name).type for s in known if field.name in s.names)
            found = next((kind for kind in types if not pa.types.is_null(kind)), field.type)
            schema = schema.set(index, field.with_type(found))
    return schema


def _check_same_schema(fragment: Any, schema: pa.Schema, first: str) -> None:
    other = fragment.physical_schema
    missing = sorted(set(schema.names) - set(other.names))
    extra = sorted(set(other.names) - set(schema.names))
    if missing or extra:
        what = f"lacks column {missing[0]!r}" if missing else f"has an extra column {extra[0]!r}"
        raise SourceError(
            f"{fragment.path}: mixed schemas: it {what}, unlike {first}; rewrite the file"
        )
    for field in schema:
        got = other.field(field.name).type
        if not pa.types.is_null(got) and _plain(got) != _plain(field.type):
            raise SourceError(
                f"{fragment.path}: mixed schemas: column {field.name!r} is {got}, but "
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
