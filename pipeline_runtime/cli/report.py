"""`lastmile report`: the report of a finished run, made again from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline_runtime.cli.options import JsonOption, make_console


def report(
    directory: Annotated[
        Path, typer.Argument(help="The run's output folder.", exists=True, file_okay=False)
    ],
    as_json: JsonOption = False,
) -> None:
    """Print a run's summary and write its report.html again."""
    from pipeline_runtime import report as reports
    from pipeline_runtime.report.html import build_report
    from pipeline_runtime.report.terminal import print_summary

    summary = reports.load_summary(directory)
    page = build_report(directory)
    if as_json:
        print(summary.model_dump_json(by_alias=True, indent=2))
        return
    print_summary(make_console(), summary)
    print(f"report: {page}")
