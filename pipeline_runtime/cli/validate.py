"""`lastmile validate`: check manifests and the tables that they name, without starting anything."""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Annotated, Any

import typer

from pipeline_runtime.cli.judging import Verdict, judge, refuse
from pipeline_runtime.cli.options import (
    DEFAULT_STORAGE_ROOT,
    FilesOption,
    JsonOption,
    SetOption,
    StorageRootOption,
)
from pipeline_runtime.config import Problem

_PathsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="FILE", help="More files or directories.")
]
_TablesOption = Annotated[
    bool,
    typer.Option(
        "--tables/--no-tables",
        help="Open the tables and import the user's code, as explain does; or check only the "
        "manifests, for tables or code that cannot be reached from here.",
    ),
]


def validate(
    paths: _PathsArgument = None,
    files: FilesOption = [],  # noqa: B006 - typer copies it
    overrides: SetOption = None,
    storage_root: StorageRootOption = DEFAULT_STORAGE_ROOT,
    tables: _TablesOption = True,
    as_json: JsonOption = False,
) -> None:
    """Check manifests: every broken rule of every file, each with its field, in one go.

    Refuses what run would refuse on this machine before it starts. Reads footers of tables and, for
    an evaluation, the columns of its condition and of the rows' identity, until the first row that
    matches; with maxRows, all of them.
    """
    targets = [*files, *(paths or [])]
    if not targets:
        raise typer.BadParameter("give at least one file or directory with -f")
    if tables and importlib.util.find_spec("pyarrow") is None:
        print("warning: no table is opened, because pyarrow is missing", file=sys.stderr)
        tables = False
    verdict = judge(targets, overrides or [], storage_root, opens_tables=tables)
    if as_json:
        print(json.dumps(_document(verdict), indent=2))
    else:
        broken = {problem.file for problem in verdict.problems}
        for manifest in verdict.manifests:
            if manifest.file not in broken:
                print(f"{manifest.file}: {manifest.experiment.metadata.name}: valid")
    refuse(verdict, prints=not as_json)


def _document(verdict: Verdict) -> dict[str, Any]:
    def as_dict(problem: Problem) -> dict[str, Any]:
        return {name: getattr(problem, name) for name in problem.__slots__}

    return {
        "valid": not verdict.problems,
        "experiments": [
            {"file": m.file, "name": m.experiment.metadata.name} for m in verdict.manifests
        ],
        "problems": [as_dict(problem) for problem in verdict.problems],
        "warnings": [as_dict(warning) for warning in verdict.warnings],
    }
