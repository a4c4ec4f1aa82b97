"""From a flat table to a nested one, file by file: each keeps its name and its partition folders.

Memory is bounded by one window whatever the files' sizes. Rows of one request share an entry if
they lie in one window of one file; see `windows` for where windows end.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline_runtime import hashing
from pipeline_runtime.convert.destination import open_output
from pipeline_runtime.convert.encoding import AUTO, Encoding, choose_codecs, choose_encoding
from pipeline_runtime.convert.grouping import Grouped, group_rows
from pipeline_runtime.convert.inputs import Input, describe_input
from pipeline_runtime.convert.windows import flat_types, read_windows
from pipeline_runtime.errors import ManifestError, Problem
from pipeline_runtime.sources import ROW_ID_COLUMN, Location, Source, Unit
from pipeline_runtime.sources.iceberg.table import IcebergTable
from pipeline_runtime.sources.parquet import ParquetTable
from pipeline_runtime.sources.parquet.listing import is_hidden
from pipeline_runtime.sources.parquet.nested import COUNT_COLUMN, NestedLayout, build_metadata
from pipeline_runtime.steps.checks import unknown_column

# About 6,500 requests of 20 rows: what a row group costs whatever its length is little then
# (benchmarks/README.md); and 8 units in a million rows, for readers to share.
DEFAULT_ROWS_PER_GROUP = 131_072
MAX_ROWS_PER_GROUP = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionOptions:
    """Options of a conversion: the columns to store once per request, and the format.

    Args:
        request_key: column by whose value rows belong together.
        request_columns: further columns that are equal in all rows of a request.
        rows_per_group: flat rows of a row group, at most; 1 to `MAX_ROWS_PER_GROUP`.
        codec: Parquet compression; `encoding.AUTO` or `AS_INPUT`, which is that of the flat table.
        has_row_key: whether declared columns identify a row; else the table gets `ROW_ID_COLUMN`.
        overwrite: whether an earlier conversion at the output is replaced.
        key_field: how a person gave `request_key`, for errors; `columns_field` likewise.
    """

    request_key: str
    request_columns: Sequence[str] = ()
    rows_per_group: int = DEFAULT_ROWS_PER_GROUP
    codec: str = AUTO
    has_row_key: bool = False
    overwrite: bool = False
    key_field: str = "--request-key"
    columns_field: str = "--request-columns"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionSummary:
    """Result of a conversion; bytes are those of the Parquet files."""

    files: int
    rows: int
    requests: int  # rows of the nested table
    mismatches: int  # rows that differ from the one before in their key's request columns
    null_keys: int  # rows without a key, each a request of its own
    input_bytes: int
    output_bytes: int
    elapsed_seconds: float

    @property
    def rows_per_request(self) -> float:
        """Rows per request: how often the request columns were stored before."""
        return self.rows / self.requests if self.requests else 1.0


def convert_table(
    table: ParquetTable | IcebergTable,
    output: Location,
    options: ConversionOptions,
    on_progress: Callable[[int], None] | None = None,
) -> ConversionSummary:
    """Write a table, as it was opened, to a folder in the nested layout.

    Args:
        table: flat, or nested and read as flat.
        output: a folder; it appears whole or not at all, see `destination`.
        on_progress: called with the number of flat rows written so far, after every row group.

    Raises:
        ManifestError: the options do not fit the table, or the output may not be written.
        SourceError: a file cannot be read.
    """
    started = time.monotonic()
    given = describe_input(table)
    stored = flat_types(given.stored)
    _check(options, stored, table)
    _check_places(given, output)
    has_row_id = options.has_row_key or ROW_ID_COLUMN in stored.names
    flat = stored if has_row_id else stored.append(pa.field(ROW_ID_COLUMN, pa.int64(), False))
    once = {options.request_key, *options.request_columns}
    layout = NestedLayout(
        request_key=options.request_key,
        request_columns=tuple(name for name in flat.names if name in once),
        columns=tuple(flat.names),
    )
    encoding = choose_encoding(given.footers, layout, options.codec)
    job = _Job(given, stored, flat, layout, encoding, options, on_progress or _ignore)
    with open_output(output, overwrite=options.overwrite) as (folder, finish):
        if options.codec == AUTO:
            job.choose_codecs()
        for name, units in given.files:
            job.convert_file(name, units, folder)
        summary = job.summarise(folder, started)
        finish({"rows": summary.rows, "requests": summary.requests, "files": summary.files})
    return summary


def _ignore(rows: int) -> None:
    del rows


def _check(options: ConversionOptions, stored: pa.Schema, table: Source) -> None:
    """Raises ManifestError with every problem of the options."""
    given = [(options.key_field, options.request_key)]
    given += [(options.columns_field, name) for name in options.request_columns]
    problems = [
        Problem(path=field, message=unknown_column(name, table.schema.names, "the table"))
        for field, name in given
        if name not in table.schema.names
    ]
    if not problems:
        problems += _key_problems(options, stored)
    if COUNT_COLUMN in stored.names:
        problems.append(
            Problem(
                path="--input",
                message=f"must have no column {COUNT_COLUMN!r}, which nested files keep for "
                "themselves; rename it",
            )
        )
    if problems:
        raise ManifestError(problems)


def _key_problems(options: ConversionOptions, stored: pa.Schema) -> list[Problem]:
    key, path = options.request_key, options.key_field
    if key not in stored.names:
        what = "must be a column within the files, is a partition folder; name another"
        return [Problem(path=path, message=f"{key!r} {what}")]
    try:
        hashing.check_hashable(stored.field(key).type)
    except TypeError as error:
        return [Problem(path=path, message=f"column {key!r}: {error}")]
    return []


def _check_places(given: Input, output: Location) -> None:
    """Refuse an output that holds source files, or whose name would hide them from a scan."""
    folder = output.path.rstrip("/") + "/"
    inside = next(
        (p for store, p in given.places if p.startswith(folder) and store == output.filesystem),
        None,
    )
    if inside is not None:
        message = f"must be apart from the input, got a folder that holds {inside}; name another"
        raise ManifestError([Problem(path="--output", message=message)])
    hidden = next((name for name, _ in given.files if is_hidden(name)), None)
    if hidden is not None:
        message = (
            f"must have names that readers see, got {hidden!r}; convert each of its uris to a "
            "folder of its own"
        )
        raise ManifestError([Problem(path="--input", message=message)])


@dataclass(slots=True)
class _Job:
    """A conversion while it runs."""

    given: Input
    stored: pa.Schema  # columns read
    flat: pa.Schema  # and written: a row id may be added
    layout: NestedLayout
    encoding: Encoding
    options: ConversionOptions
    report: Callable[[int], None]
    rows: int = 0
    requests: int = 0
    mismatches: int = 0
    null_keys: int = 0

    def choose_codecs(self) -> None:
        """Look at the first rows for how to compress the columns."""
        for _, units in self.given.files:
            for window in self._windows(units):
                rows = group_rows(window, self.layout).table
                self.encoding = choose_codecs(self.encoding, self.flat, rows)
                return

    def convert_file(self, name: str, units: Sequence[Unit], folder: Location) -> None:
        """Write one file where the input has it; one without rows too, for its schema."""
        target = folder.join(name)
        filesystem = target.filesystem
        filesystem.create_dir(posixpath.dirname(target.path), recursive=True)
        row_groups: list[tuple[int, int]] = []
        with (
            filesystem.open_output_stream(target.path) as sink,
            self.encoding.open_writer(sink, self.flat) as writer,
        ):
            for window in self._windows(units):
                grouped = group_rows(window, self.layout)
                writer.write_table(grouped.table, row_group_size=grouped.table.num_rows)
                row_groups.append((grouped.table.num_rows, grouped.num_rows))
                self._count(grouped)
            writer.add_key_value_metadata(build_metadata(self.layout, self.flat, row_groups))

    def _windows(self, units: Sequence[Unit]) -> Iterator[pa.Table]:
        first = self.rows
        for window in read_windows(
            self.given.source,
            units,
            self.stored.names,
            self.options.request_key,
            self.options.rows_per_group,
        ):
            yield self._with_row_id(window, first)
            first += window.num_rows

    def _with_row_id(self, window: pa.Table, first: int) -> pa.Table:
        """Number the rows in the order of the flat table, from 0."""
        if len(self.flat) == len(self.stored):
            return window
        numbers = pa.array(np.arange(first, first + window.num_rows))
        return window.append_column(self.flat.field(ROW_ID_COLUMN), numbers)

    def _count(self, grouped: Grouped) -> None:
        self.rows += grouped.num_rows
        self.requests += grouped.table.num_rows
        self.mismatches += grouped.mismatches
        self.null_keys += grouped.null_keys
        self.report(self.rows)

    def summarise(self, folder: Location, started: float) -> ConversionSummary:
        written = [folder.join(name).path for name, _ in self.given.files]
        return ConversionSummary(
            files=len(written),
            rows=self.rows,
            requests=self.requests,
            mismatches=self.mismatches,
            null_keys=self.null_keys,
            input_bytes=self.given.num_bytes,
            output_bytes=_total_bytes(folder.filesystem, written),
            elapsed_seconds=time.monotonic() - started,
        )


def _total_bytes(filesystem: object, paths: Sequence[str]) -> int:
    infos = filesystem.get_file_info(list(paths))  # type: ignore[attr-defined]
    return sum(info.size or 0 for info in infos)
