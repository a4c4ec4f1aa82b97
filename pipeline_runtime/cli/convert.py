"""The command `lastmile convert`: rewrite a table, with each request's columns stored once."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.progress import Progress

from pipeline_runtime.cli.failures import placing
from pipeline_runtime.cli.options import (
    DEFAULT_STORAGE_ROOT,
    JsonOption,
    StorageRootOption,
    find_storage_root,
    load_one,
    make_console,
)
from pipeline_runtime.config import LoadedManifest, ParquetSource, SourceChoice
from pipeline_runtime.formatting import format_bytes, format_duration, plain_spaces
from pipeline_runtime.importing import importing

if TYPE_CHECKING:  # these import pyarrow, which --help does without
    from pipeline_runtime.convert import ConversionOptions, ConversionSummary
    from pipeline_runtime.sources import Opening
    from pipeline_runtime.sources.iceberg.table import IcebergTable
    from pipeline_runtime.sources.parquet import ParquetTable

_DEFAULT_ROWS = 131_072  # convert.DEFAULT_ROWS_PER_GROUP
_MAX_ROWS = 1 << 24

OutputOption = Annotated[
    str, typer.Option(metavar="URI", help="Folder to write to; it appears when it is whole.")
]
InputOption = Annotated[
    str | None, typer.Option("--input", metavar="URI", help="The table: a file, folder or glob.")
]
ManifestOption = Annotated[
    str | None,
    typer.Option(
        "--filename",
        "-f",
        metavar="FILE",
        help="Manifest whose dataset is converted: its table, requestKey and requestColumns.",
    ),
]
KeyOption = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Rows with an equal value are one request.")
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,…", help="Columns that are equal in all rows of a request: stored once."
    ),
]
RowsOption = Annotated[
    int, typer.Option(min=1, max=_MAX_ROWS, help="Most impressions in a row group.")
]
CodecOption = Annotated[
    str,
    typer.Option(
        help="none, snappy, gzip, brotli, lz4, zstd, input (that of the input), or auto: for each "
        "column one that is fast to read."
    ),
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace the result of an earlier conversion.")
]


def convert(
    output: OutputOption,
    input_uri: InputOption = None,
    filename: ManifestOption = None,
    request_key: KeyOption = None,
    request_columns: ColumnsOption = None,
    row_group_rows: RowsOption = _DEFAULT_ROWS,
    compression: CodecOption = "auto",
    overwrite: OverwriteOption = False,
    storage_root: StorageRootOption = DEFAULT_STORAGE_ROOT,
    as_json: JsonOption = False,
) -> None:
    """Write a flat table with one row per request, and its impressions' columns as lists.

    Every command reads the result as the original flat table: the same rows, in fewer bytes.
    """
    manifest = load_one(filename) if filename is not None else None
    choice = _source(manifest, input_uri)
    dataset = manifest.experiment.spec.dataset if manifest else None
    key = request_key or (dataset.request_key if dataset else None)
    if not key:
        raise typer.BadParameter(
            "must name the column that identifies requests; give it, or spec.dataset.requestKey "
            "in the manifest",
            param_hint="--request-key",
        )
    columns: tuple[str, ...] = (dataset.request_columns or ()) if dataset else ()
    columns_field = "spec.dataset.requestColumns"
    if request_columns is not None:
        columns = tuple(name for part in request_columns.split(",") if (name := part.strip()))
        columns_field = "--request-columns"
    _check_codec(compression)
    with importing():
        from pipeline_runtime.convert import ConversionOptions
        from pipeline_runtime.sources import Opening

    options = ConversionOptions(
        request_key=key,
        request_columns=columns,
        rows_per_group=row_group_rows,
        codec=compression,
        has_row_key=bool(dataset and dataset.row_key),
        overwrite=overwrite,
        key_field="--request-key" if request_key else "spec.dataset.requestKey",
        columns_field=columns_field,
    )
    root = find_storage_root(manifest, storage_root) if manifest and not input_uri else ""
    catalogs = manifest.experiment.spec.catalogs if manifest else ()
    with placing(manifest) if manifest else contextlib.nullcontext():
        summary = _convert(choice, Opening(storage_root=root, catalogs=catalogs), output, options)
    _print(summary, output, as_json=as_json)


def _source(manifest: LoadedManifest | None, uri: str | None) -> SourceChoice:
    """Return the table to read: that of --input, with the access in the manifest, if any."""
    given = manifest.experiment.spec.dataset if manifest else None
    if uri is not None:
        s3 = given.parquet.s3 if given and given.parquet else None
        return SourceChoice(parquet=ParquetSource(uri=uri, s3=s3))
    if given is None or not (given.parquet or given.iceberg):
        why = "the manifest's dataset is neither" if manifest else "got neither"
        raise typer.BadParameter(
            f"must be given, or a manifest (-f) with dataset.parquet or dataset.iceberg; {why}",
            param_hint="--input",
        )
    return given


def _check_codec(codec: str) -> None:
    known = ("auto", "input", "none", "snappy", "gzip", "brotli", "lz4", "zstd")
    if codec not in known:
        raise typer.BadParameter(
            f"must be one of {', '.join(known)}, got {codec!r}", param_hint="--compression"
        )


def _convert(
    choice: SourceChoice, opening: Opening, output: str, options: ConversionOptions
) -> ConversionSummary:
    from pipeline_runtime.convert import convert_table
    from pipeline_runtime.sources import open_location, open_source

    table = cast("ParquetTable | IcebergTable", open_source(choice, opening))
    console = make_console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        total = table.scan(()).pruning.rows_total
        task = progress.add_task("rows", total=total)
        return convert_table(
            table,
            open_location(output, "", choice.parquet.s3 if choice.parquet else None),
            options,
            lambda written: progress.update(task, completed=written),
        )


def _print(summary: ConversionSummary, output: str, *, as_json: bool) -> None:
    if as_json:
        import json

        document = {**asdict(summary), "rows_per_request": summary.rows_per_request}
        print(json.dumps({**document, "directory": output}))
        return
    print(
        f"{output}: {summary.rows:,} rows in {summary.requests:,} requests "
        f"({summary.rows_per_request:.1f} each) of {summary.files} files, "
        + plain_spaces(
            f"{format_bytes(summary.input_bytes)} -> {format_bytes(summary.output_bytes)}, "
            f"{format_duration(summary.elapsed_seconds)}"
        )
    )
    if summary.mismatches:
        print(
            f"{summary.mismatches:,} rows differ from the previous row of their request in its "
            "columns; each began a new entry: check --request-columns"
        )
    if summary.null_keys:
        print(f"{summary.null_keys:,} rows have no request key; each is a request of its own")
