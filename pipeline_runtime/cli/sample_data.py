"""`lastmile sample-data`: a recommender's impression log to try things on."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

from pipeline_runtime.cli.options import JsonOption, make_console
from pipeline_runtime.formatting import format_bytes, format_duration, plain_spaces
from pipeline_runtime.importing import importing

_DEFAULT_ROWS = 1_000_000
_FOLDER, _ICEBERG_FOLDER = Path("build/data"), Path("build/lake")


def sample_data(
    rows: Annotated[
        int, typer.Option(help="Impressions: 10 thousand to 100 million.")
    ] = _DEFAULT_ROWS,
    output: Annotated[
        Path | None,
        typer.Option(help=f"Folder to write to; {_FOLDER} or {_ICEBERG_FOLDER} if absent."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 17,
    iceberg: Annotated[
        bool,
        typer.Option(
            "--iceberg", help="Write Iceberg tables: impressions, user_features and user_actions."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the sample tables `impressions/` and `spam_users/`; a second call does nothing.

    With `--iceberg`, they are three tables of an Iceberg catalog of SQLite and local files.
    """
    with importing():
        from pipeline_runtime.sample_data import (
            MAX_ROWS,
            MIN_COMMAND_ROWS,
            SampleDataOptions,
            write_sample_data,
        )

        if iceberg:
            from pipeline_runtime.sample_data.lake import write_lake
    write = write_lake if iceberg else write_sample_data
    output = output or (_ICEBERG_FOLDER if iceberg else _FOLDER)
    if not MIN_COMMAND_ROWS <= rows <= MAX_ROWS:
        raise typer.BadParameter(
            f"must be from {MIN_COMMAND_ROWS:,} to {MAX_ROWS:,}, got {rows:,}", param_hint="--rows"
        )
    console = make_console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("rows", total=rows)
        summary = write(
            output,
            SampleDataOptions(rows=rows, seed=seed),
            lambda written: progress.update(task, completed=written),
        )
    _print({**asdict(summary), "directory": str(output)}, as_json=as_json)


def _print(summary: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        import json

        print(json.dumps(summary, default=str))
        return
    size, seconds = format_bytes(summary["file_bytes"]), format_duration(summary["elapsed_seconds"])
    print(
        f"{summary['directory']}: {summary['rows']:,} rows in {summary['files']} files, "
        f"{plain_spaces(size)}, {plain_spaces(seconds)}"
    )
