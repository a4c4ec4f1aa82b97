"""The command line: `lastmile`, and `kubectl lastmile`, which is the same program.

Each command has a module, which is imported when the command is called (`lazy`); `failures` maps
each kind of error to its output and exit code. Other packages add commands by the entry-point group
`lastmile.commands`, whose functions receive `lazy.LazyGroup`. They import nothing from here; their
context's `obj` is `LENT`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from pipeline_runtime.allocator import keep_freed_memory
from pipeline_runtime.cli.failures import (
    EXIT_CODES_HELP,
    EXIT_INTERRUPTED,
    exiting,
    refuse_encoding,
)
from pipeline_runtime.cli.lazy import LazyGroup


class Lent:
    """Functions for commands of other packages: access to the store, and writing pages.

    They are imported when they are asked for, and need the runtime extra.
    """

    @property
    def fetch_run(self) -> Callable[[str, str, Path, Callable[[str], None]], Sequence[Path]]:
        """See `for_clusters.fetch`."""
        from pipeline_runtime.cli.for_clusters.fetch import fetch_run

        return fetch_run

    @property
    def upload_code(self) -> Callable[[Path, str], str]:
        """See `for_clusters.upload`."""
        from pipeline_runtime.cli.for_clusters.upload import upload_code

        return upload_code

    @property
    def list_runs(self) -> Callable[[str], Sequence[dict[str, Any]]]:
        """See `for_clusters.stored_runs`."""
        from pipeline_runtime.cli.for_clusters.stored_runs import list_runs

        return list_runs

    @property
    def write_sheet(self) -> Callable[[Path, Mapping[str, Any], Mapping[str, str]], Path]:
        """See `for_clusters.drawn_sheets`."""
        from pipeline_runtime.cli.for_clusters.drawn_sheets import write_sheet

        return write_sheet

    @property
    def open_history(self) -> Callable[[str, str | None], Any]:
        """See `for_clusters.stored_runs`."""
        from pipeline_runtime.cli.for_clusters.stored_runs import open_history

        return open_history

    @property
    def look_back(self) -> Callable[[str, str], tuple[list[Any], list[Any], str | None]]:
        """See `for_clusters.stored_runs`."""
        from pipeline_runtime.cli.for_clusters.stored_runs import look_back

        return look_back


LENT = Lent()
app = typer.Typer(
    cls=LazyGroup,
    name="lastmile",
    help="One manifest, from raw table to trained model.\n\n" + EXIT_CODES_HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=True,
    pretty_exceptions_enable=False,
)


def _print_version(value: bool) -> None:
    if value:
        import importlib.metadata

        from pipeline_runtime.config.texts.distribution import DISTRIBUTION

        typer.echo(f"lastmile {importlib.metadata.version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    context.obj = LENT


for _name, _summary in {
    "run": "Run a manifest: from a table to a trained model and a report.",
    "validate": "Check manifests, and print every broken rule with its field.",
    "explain": "Show the plan: what is read, pushed down, fused, run where.",
    "profile": "Measure model, storage and steps on a sample.",
    "sample-data": "Write sample tables to try things on.",
    "convert": "Rewrite a flat table with each request's columns stored once.",
    "backfill": "Write the partitions that a staging table lacks.",
    "promote": "Add the columns of staging tables to an Iceberg table.",
    "rollback": "Undo promotions of partitions of an Iceberg table.",
    "runs": "List runs, of this machine or of a store.",
    "compare": "Compare runs: what differs, and whether it is more than noise.",
    "clean": "Delete old runs or their checkpoints.",
    "materializations": "List, show and delete tables of kept rows.",
    "export": "Write the trained model of a run to a file.",
    "report": "Print a run's summary, and build its report.html again.",
}.items():
    _module = _name.replace("-", "_")
    LazyGroup.add(_name, f"pipeline_runtime.cli.{_module}:{_module}", _summary)
for _name in ("keep-decisions", "keep-history", "keep-logs"):
    _module = _name.replace("-", "_")
    LazyGroup.add(_name, f"pipeline_runtime.cli.in_pods.{_module}:{_module}", "")


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
