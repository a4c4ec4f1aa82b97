"""`lastmile report`: builds the report of a finished run again, from its folder or the store."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from pipeline_runtime.cli.options import JsonOption, make_console
from pipeline_runtime.importing import importing


def report(
    place: Annotated[
        str,
        typer.Argument(
            metavar="RUN|URI",
            help="The run: its folder, or NAME or NAME/RUN below build/, where NAME is the latest "
            "run of an experiment; or the URI of an experiment's folder in the store.",
        ),
    ],
    run: Annotated[
        str | None, typer.Option(metavar="N", help="Run in the store; the last one by default.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for the store's files; by default, no page is kept.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print a run's summary and write its report.html again."""
    if "://" in place:
        with _fetched(place, run, output) as directory:
            _report(directory, as_json=as_json, is_kept=output is not None)
        return
    with importing():
        from pipeline_runtime.runs.locate import locate_run
    _report(Path(locate_run(place).folder.path), as_json=as_json, is_kept=True)


@contextmanager
def _fetched(uri: str, run: str | None, output: Path | None) -> Iterator[Path]:
    from pipeline_runtime.cli.for_clusters.fetch import fetch_run
    from pipeline_runtime.history.reading import find_last_report

    with tempfile.TemporaryDirectory() as temporary:
        directory = output or Path(temporary)
        fetch_run(uri, find_last_report(uri, run), directory, make_console(stderr=True).print)
        yield directory


def _report(directory: Path, *, as_json: bool, is_kept: bool) -> None:
    with importing():
        from pipeline_runtime import report as reports
        from pipeline_runtime.report.html import build_report
        from pipeline_runtime.report.terminal import print_summary

    summary = reports.load_summary(directory)
    page = build_report(directory)
    if as_json:
        print(summary.model_dump_json(by_alias=True, indent=2))
        return
    print_summary(make_console(), summary)
    if is_kept:
        print(f"report: {page}")
