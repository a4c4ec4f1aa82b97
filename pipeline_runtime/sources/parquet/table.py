"""Parquet tables: files, directories with hive partitions, globs and lists, on any filesystem.

Discovery reads only the files' footers, in parallel. They hold the schema, which all files must
share, and the row groups with their statistics. pyarrow.dataset prunes: a predicate drops files by
their partition values and row groups by their statistics. `pages` reads the remaining row groups.

A file may be nested by request (see `nested`); a table may mix nested and flat files. The schema,
rows, bytes and units of a table always refer to flat rows.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs

from pipeline_runtime.config import ParquetSource
from pipeline_runtime.errors import SourceError
from pipeline_runtime.kernels import describe
from pipeline_runtime.sources.base import (
    Bucketing,
    ColumnSize,
    Identity,
    Predicate,
    Pruning,
    Scan,
    Unit,
    combine,
    find_identity,
)
from pipeline_runtime.sources.filesystem import Location, open_location
from pipeline_runtime.sources.gather import Int64s
from pipeline_runtime.sources.parquet.decoding.leaves import find_leaves
from pipeline_runtime.sources.parquet.decoding.pages import OpenFile
from pipeline_runtime.sources.parquet.footers import EncryptedColumn, Footer, digest_footer
from pipeline_runtime.sources.parquet.fragments import FOOTER_THREADS, read_fragments
from pipeline_runtime.sources.parquet.listing import find_files
from pipeline_runtime.sources.parquet.nested import (
    NestedLayout,
    cut_rows,
    parse_footer,
    read_nested,
    read_nested_rows,
)
from pipeline_runtime.sources.parquet.opening import Opener
from pipeline_runtime.sources.parquet.schemas import (
    cast_column,
    common_schema,
    discover_partitioning,
)
from pipeline_runtime.sources.parquet.statistics import (
    has_sound_statistics,
    leaf_path,
    surviving_row_groups,
)
from pipeline_runtime.sources.parquet.versions import file_version
from pipeline_runtime.sources.rows import RequestRows, SourceRows
from pipeline_runtime.sources.stores import asking

# The description of decoding names this many columns at most.
_MAX_NAMES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetUnit(Unit):
    """A row group of a file."""

    file: int  # index into ParquetTable.files


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetTable:
    """A Source over Parquet files of one schema."""

    description: str
    schema: pa.Schema
    files: tuple[str, ...]  # relative to the table
    paths: tuple[str, ...]  # on the filesystem
    filesystem: Any
    layouts: tuple[NestedLayout | None, ...]  # one per file; None: it is flat
    opener: Opener = field(default_factory=Opener, compare=False, repr=False)  # per process
    # Workers do not get the remaining fields.
    fragments: tuple[Any, ...] = ()  # built from the footers alone
    footers: tuple[Footer, ...] = field(default=(), repr=False)
    partition_values: tuple[dict[str, Any], ...] = ()  # one per file
    row_counts: tuple[tuple[int, ...], ...] = ()  # flat rows of each file's row groups

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.description, self.schema, self.files, self.paths, self.filesystem)
        opener = self.opener
        return _rebuild, (opener.kernels, opener.decodes_pages, *fields, self.layouts)

    @property
    def identity(self) -> Identity:
        """See Source."""
        return find_identity(self.schema)

    @property
    def bucketing(self) -> Bucketing | None:
        """See Source."""
        return None

    def scan(self, predicates: Sequence[Predicate], columns: Collection[str] = ()) -> Scan:
        """See Source; a predicate prunes by partition values and row-group statistics."""
        keep = combine(predicates)
        units = [
            self._unit(index, row_group)
            for index in range(len(self.fragments))
            for row_group in self._surviving(index, keep)
        ]
        units = [unit for unit in units if unit.num_rows > 0]
        notes = (self._describe_nesting(), self.describe_decoding(columns))
        return Scan(
            units=tuple(units),
            pruning=self._pruning(units),
            request_columns=self._request_columns(),
            is_remote=not isinstance(self.filesystem, pafs.LocalFileSystem),
            notes=tuple(note for note in notes if note),
        )

    def _request_columns(self) -> frozenset[str]:
        """Return the columns that every file stores once per request."""
        if None in self.layouts or not self.layouts:
            return frozenset()
        held = [layout.request_columns for layout in self.layouts if layout]
        return frozenset(held[0]).intersection(*held)

    def _describe_nesting(self) -> str:
        nested = [index for index, layout in enumerate(self.layouts) if layout]
        if not nested:
            return ""
        keys = sorted({layout.request_key for layout in self.layouts if layout})
        requests = sum(self.fragments[index].metadata.num_rows for index in nested)
        rows = sum(sum(self.row_counts[index]) for index in nested)
        some = "" if len(nested) == len(self.files) else f" in {len(nested)} of the files"
        return (
            f"nested by request (key {', '.join(keys)}), {requests:,} requests, {rows:,} rows{some}"
        )

    def describe_decoding(self, columns: Collection[str]) -> str:
        """Describe how the numbers and lists among these columns are decoded; empty if none.

        It reads the first file's footer, so it works on the planner only.
        """
        if not columns or not self.fragments:
            return ""
        first = self.fragments[0]
        leaves = find_leaves(first.metadata, first.physical_schema)
        names = [name for name in self.schema.names if name in columns and name in leaves]
        return describe_leaves(names, decodes_pages=self.opener.decodes_pages)

    def _surviving(self, index: int, keep: pads.Expression | None) -> list[int]:
        """Return the row groups of a file that remain after pruning by a predicate."""
        fragment, layout = self.fragments[index], self.layouts[index]
        if keep is None or not has_sound_statistics(self.footers[index], keep, self.schema):
            return list(range(fragment.num_row_groups))
        if layout is not None:
            paths = {name: leaf_path(layout, name) for name in layout.columns}
            return surviving_row_groups(fragment, paths, keep, self.schema)
        pieces = fragment.split_by_row_group(keep, self.schema)
        return [group.id for piece in pieces for group in piece.row_groups]

    def _unit(self, index: int, row_group: int) -> ParquetUnit:
        if self.layouts[index] is None:  # cheaper than a sum over thousands of chunks
            num_bytes = self.fragments[index].metadata.row_group(row_group).total_byte_size
        else:
            num_bytes = sum(size.num_bytes for _, size in self._chunk_sizes(index, row_group))
        return ParquetUnit(
            place=self.files[index],
            index=row_group,
            num_rows=self.row_counts[index][row_group],
            num_bytes=num_bytes,
            partition=self.partition_values[index],
            file=index,
        )

    def _chunk_sizes(self, index: int, row_group: int) -> Iterator[tuple[str, ColumnSize]]:
        """Yield the column and the size of each column chunk of a row group."""
        num_stored = self.fragments[index].metadata.row_group(row_group).num_rows
        layout, num_rows = self.layouts[index], self.row_counts[index][row_group]
        for path, chunk in self.footers[index].chunks(row_group):
            name, num_bytes = path.split(".")[0], chunk.total_uncompressed_size
            if layout is not None and layout.is_request_column(name):
                num_bytes = num_bytes * num_rows // num_stored
            yield name, ColumnSize(stored_bytes=chunk.total_compressed_size, num_bytes=num_bytes)

    def sizes(self, units: Sequence[Unit], columns: Sequence[str]) -> dict[str, ColumnSize]:
        """See Source; by the footers, so on the planner only."""
        stored, flat = Counter[str](), Counter[str]()
        for unit in units:
            for name, size in self._chunk_sizes(_file_of(unit), unit.index):
                stored[name] += size.stored_bytes
                flat[name] += size.num_bytes
        return {
            name: ColumnSize(stored_bytes=stored[name], num_bytes=flat[name]) for name in columns
        }

    def digest(self, units: Sequence[Unit]) -> str:
        """See Source; on the planner only. Footers include every column's statistics."""
        counted = [(_file_of(unit), unit.index, unit.num_rows) for unit in units]
        footers = self.footer_digests(sorted({file for file, _, _ in counted}))
        text = json.dumps([list(self.files), counted, footers])
        return hashlib.sha256(text.encode()).hexdigest()

    def footer_digests(self, files: Sequence[int]) -> list[str]:
        """Return digests of the files' footers, which are the same for a copied file."""
        return [digest_footer(self.footers[file]) for file in files]

    def version(self, units: Sequence[Unit]) -> str:
        """See Source; on the planner only."""
        counted = [(_file_of(unit), unit.index, unit.num_rows) for unit in units]
        files = sorted({file for file, _, _ in counted})
        paths = [self.paths[file] for file in files]
        text = repr((paths, counted, self.content_versions(files)))
        return hashlib.sha256(text.encode()).hexdigest()

    def content_versions(self, files: Sequence[int]) -> list[str]:
        """Return values that change whenever the content of these files changes.

        If a store reports no version of a file, each call returns a new one.
        """

        def version(file: int) -> str:
            path = self.paths[file]
            with asking(path, "look up the version of the file"):
                known = file_version(self.filesystem, path)
            return repr((known or uuid.uuid4(), digest_footer(self.footers[file])))

        with ThreadPoolExecutor(min(FOOTER_THREADS, max(1, len(files)))) as pool:
            return list(pool.map(version, files))

    def _pruning(self, units: Sequence[ParquetUnit]) -> Pruning:
        return Pruning(
            files_total=len(self.files),
            files_read=len({unit.file for unit in units}),
            row_groups_total=sum(fragment.num_row_groups for fragment in self.fragments),
            row_groups_read=len(units),
            rows_total=sum(sum(counts) for counts in self.row_counts),
            rows_read=sum(unit.num_rows for unit in units),
        )

    def read(
        self,
        unit: Unit,
        columns: Sequence[str],
        max_rows: int,
        *,
        rows: Int64s | None = None,
    ) -> Iterator[SourceRows]:
        """See Source. Raises SourceError if the file is gone, corrupt or changed."""
        layout, stored = self.layouts[_file_of(unit)], _stored(unit, columns)
        with self._opened(unit) as opened:
            if rows is not None:
                yield self._read_some(opened, unit, columns, stored, rows)
            elif layout is None:
                for table in _read_flat(opened, unit, stored, max_rows):
                    yield self._complete(table, columns, unit, table.num_rows)
            else:
                for part in _read_requests(opened, unit, layout, stored, max_rows):
                    yield self._complete_nested(part, columns, unit, layout)

    def _read_some(
        self,
        opened: OpenFile,
        unit: Unit,
        columns: Sequence[str],
        stored: Sequence[str],
        rows: Int64s,
    ) -> SourceRows:
        layout, kernels = self.layouts[_file_of(unit)], self.opener.kernels
        if layout is None:
            table = opened.read_rows(unit.index, stored, rows, kernels=kernels)
            return self._complete(table, columns, unit, len(rows))
        nested = read_nested_rows(opened, unit.index, layout, stored, rows, kernels=kernels)
        return self._complete_nested(nested, columns, unit, layout)

    @contextmanager
    def _opened(self, unit: Unit) -> Iterator[OpenFile]:
        """Open a unit's file, and raise errors while it is read as SourceError."""
        path = self.paths[_file_of(unit)]
        try:
            with self.opener.open(self.filesystem, path) as opened:
                yield opened
        except (OSError, pa.ArrowException, LookupError, ValueError) as error:
            raise SourceError(_explain_read_failure(path, unit, error)) from error

    def _complete_nested(
        self, rows: RequestRows, columns: Sequence[str], unit: Unit, layout: NestedLayout
    ) -> RequestRows:
        """Complete nested rows like `_complete`; the requests get the partition columns."""
        partitions = unit.partition
        once = [name for name in columns if name in partitions]
        once += [n for n in columns if n not in partitions and layout.is_request_column(n)]
        each = [name for name in columns if name not in once]
        return RequestRows(
            requests=self._complete(rows.requests, once, unit, len(rows.counts)),
            impressions=self._complete(rows.impressions, each, unit, rows.num_rows),
            counts=rows.counts,
        )

    def _complete(
        self,
        table: pa.Table,
        columns: Sequence[str],
        unit: Unit,
        num_rows: int,
    ) -> pa.Table:
        """Add the partition columns, and give every column the table's type.

        Args:
            num_rows: the number of rows, which a table without columns does not know.
        """
        if not columns:
            return table.select([])
        partitions = unit.partition
        wanted = pa.schema([self.schema.field(name) for name in columns])
        if table.schema.names == wanted.names and table.schema.types == wanted.types:
            return pa.Table.from_arrays(table.columns, schema=wanted)
        arrays, fields = [], []
        for name in columns:
            field = wanted.field(name)
            if name in partitions:
                scalar = pa.scalar(partitions[name], type=field.type)
                column = pa.chunked_array([pa.repeat(scalar, num_rows)], type=field.type)
            else:
                column = table.column(name)
                if column.type != field.type:
                    column = cast_column(column, field.type)
            arrays.append(column)
            fields.append(field)
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def describe_leaves(names: Sequence[str], *, decodes_pages: bool) -> str:
    """Describe how columns of numbers and lists are decoded; empty if there are none."""
    if not names:
        return ""
    some = ", ".join(names[:_MAX_NAMES])
    some += f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    if not decodes_pages:
        return f"numbers decoded by pyarrow, as pipelineOptions asks: {some}"
    return f"numbers decoded page by page, {describe(True, 'pyarrow')}: {some}"


def _rebuild(kernels: bool, decodes_pages: bool, *fields: Any) -> ParquetTable:
    names = ("description", "schema", "files", "paths", "filesystem", "layouts")
    opener = Opener(kernels=kernels, decodes_pages=decodes_pages)
    return ParquetTable(**dict(zip(names, fields, strict=True)), opener=opener)


def _file_of(unit: Unit) -> int:
    return cast(ParquetUnit, unit).file


def _stored(unit: Unit, columns: Sequence[str]) -> list[str]:
    """Return the requested columns that the unit's file stores."""
    return [name for name in columns if name not in unit.partition]


def _read_flat(
    opened: OpenFile, unit: Unit, stored: list[str], max_rows: int
) -> Iterator[pa.Table]:
    if unit.num_rows <= max_rows:
        yield opened.read_row_group(unit.index, stored)
    else:
        yield from opened.iter_row_group(unit.index, stored, max_rows)


def _read_requests(
    opened: OpenFile, unit: Unit, layout: NestedLayout, stored: list[str], max_rows: int
) -> Iterator[RequestRows]:
    """Yield a nested unit's rows, in parts if it has more than `max_rows`, to bound memory."""
    if unit.num_rows <= max_rows:
        return read_nested(opened, unit.index, layout, stored, None)
    requests = opened.file.metadata.row_group(unit.index).num_rows
    max_requests = max(1, requests * max_rows // unit.num_rows)
    return cut_rows(read_nested(opened, unit.index, layout, stored, max_requests), max_rows)


def _explain_read_failure(path: str, unit: Unit, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path}: the file is gone since the run was planned; restore it or run again"
    if isinstance(error, EncryptedColumn):
        return f"{path}: {error}, and there is no key to read it with; leave it out, or decrypt it"
    return (
        f"{path}: cannot read row group {unit.index} ({unit.num_rows} rows): {error}; the file "
        "is corrupt or was rewritten while it was read: replace it, or leave it out of the uri"
    )


def open_parquet(
    source: ParquetSource,
    storage_root: str,
    *,
    kernels: bool = True,
    decodes_pages: bool = False,
) -> ParquetTable:
    """Discover a table's files, read their footers and check that they share one schema.

    Args:
        kernels: False copies rows by Arrow's own ways; the rows are the same.
        decodes_pages: decode numbers and lists of numbers by `pages`; the rows are the same.

    Raises:
        SourceError: there is no file, or one is not Parquet or has another schema; names the file.
        StoreError: the store does not answer.
    """
    locations = [open_location(uri, storage_root, source.s3) for uri in source.locations]
    _check_one_filesystem(locations)
    found = [find_files(location) for location in locations]
    base = locations[0]
    # A file that two uris name is read once; its partitions are those below the first uri.
    roots = {path: files.root for files in reversed(found) for path in files.paths}
    listed = sorted(roots.items())
    paths = tuple(path for path, _ in listed)
    # Partition folders are below a file's own uri, but its name must be unique in the table.
    below = [path.removeprefix(root).lstrip("/") for path, root in listed]
    shared = posixpath.commonpath([root for _, root in listed])
    types = {name: kind for files in found for name, kind in files.partition_types.items()}
    partitioning = discover_partitioning(below, types)
    fragments, footers = read_fragments(base.filesystem, paths, below, partitioning)
    stored = [_parse_footer(*file) for file in zip(paths, fragments, strict=True)]
    partitions = tuple(
        pads.get_partition_keys(fragment.partition_expression) for fragment in fragments
    )
    return ParquetTable(
        description=", ".join(source.locations),
        schema=common_schema(
            paths,
            [schema for schema, _, _ in stored],
            partitions,
            partitioning.schema if partitioning else None,
        ),
        files=tuple(path.removeprefix(shared).lstrip("/") for path in paths),
        paths=paths,
        filesystem=base.filesystem,
        partition_values=partitions,
        layouts=tuple(layout for _, layout, _ in stored),
        opener=Opener(kernels=kernels, decodes_pages=decodes_pages),
        fragments=fragments,
        footers=footers,
        row_counts=tuple(counts for _, _, counts in stored),
    )


def _parse_footer(
    path: str, fragment: Any
) -> tuple[pa.Schema, NestedLayout | None, tuple[int, ...]]:
    """Return a file's flat schema, its layout, and the flat rows of each row group."""
    schema = fragment.physical_schema.remove_metadata()
    nested = parse_footer(fragment.metadata, schema, path)
    if nested is None:
        return schema, None, tuple(group.num_rows for group in fragment.row_groups)
    layout, counts = nested
    return layout.flat_schema(schema), layout, counts


def _check_one_filesystem(locations: Sequence[Location]) -> None:
    first = locations[0]
    for location in locations[1:]:
        if location.filesystem != first.filesystem:
            raise SourceError(
                f"{location.uri}: must be on the file system of the other uris ({first.uri}), is "
                "on another; copy the files to one place"
            )
