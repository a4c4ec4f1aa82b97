"""The command line: `lastmile`, and `kubectl lastmile`, which is the same program.

Each command has a module; `failures` maps each kind of error to its output and exit code. Other
packages add commands by the entry-point group `lastmile.commands`, whose functions receive the app.
They import nothing from here; their context's `obj` is `LENT`.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from pipeline_runtime.allocator import keep_freed_memory
from pipeline_runtime.cli import (
    convert,
    explain,
    keep_decisions,
    keep_history,
    keep_logs,
    profile,
    report,
    run,
    sample_data,
    validate,
)
from pipeline_runtime.cli.failures import (
    EXIT_CODES_HELP,
    EXIT_INTERRUPTED,
    exiting,
    refuse_encoding,
)
from pipeline_runtime.cli.fetch import fetch_run
from pipeline_runtime.cli.history import look_back, open_history
from pipeline_runtime.cli.sheet import write_sheet
from pipeline_runtime.cli.upload import upload_code


@dataclass(frozen=True, slots=True)
class Lent:
    """Functions for commands of other packages: access to the store, and writing pages.

    They need the runtime extra.
    """

    fetch_run: Callable[[str, str, Path, Callable[[str], None]], Sequence[Path]]
    upload_code: Callable[[Path, str], str]
    write_sheet: Callable[[Path, Mapping[str, Any], Mapping[str, str]], Path]
    open_history: Callable[[str, str | None], Any]
    look_back: Callable[[str, str], tuple[list[Any], list[Any], str | None]]


LENT = Lent(fetch_run, upload_code, write_sheet, open_history, look_back)
app = typer.Typer(
    name="lastmile",
    help="One manifest, from raw table to trained model.\n\n" + EXIT_CODES_HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=True,
    pretty_exceptions_enable=False,
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"lastmile {importlib.metadata.version('lastmile')}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    context.obj = LENT


app.command("run")(run.run)
app.command("validate")(validate.validate)
app.command("explain")(explain.explain)
app.command("profile")(profile.profile)
app.command("sample-data")(sample_data.sample_data)
app.command("convert")(convert.convert)
app.command("report")(report.report)
app.command("keep-decisions", hidden=True)(keep_decisions.keep_decisions)
app.command("keep-history", hidden=True)(keep_history.keep_history)
app.command("keep-logs", hidden=True)(keep_logs.keep_logs)
for _point in importlib.metadata.entry_points(group="lastmile.commands"):
    _point.load()(app)


def main() -> None:
    """Run the console script."""
    paths = sys.argv[1:]
    with suppress(OSError):  # the folder may have been removed
        paths.append(os.getcwd())
    _check_encoding(paths)
    keep_freed_memory()
    try:
        with exiting():
            app(prog_name=sys.argv[0].rsplit("/", 1)[-1])
    except KeyboardInterrupt:  # before or after a run, which handles Ctrl-C itself
        sys.exit(EXIT_INTERRUPTED)


def _check_encoding(paths: Sequence[str]) -> None:
    """Refuse a path that is not UTF-8, before pyarrow or Ray fail on it after minutes.

    Python reads bytes that the locale's encoding cannot decode as lone surrogates.
    """
    for path in paths:
        try:
            path.encode()
        except UnicodeEncodeError:
            refuse_encoding(path)
