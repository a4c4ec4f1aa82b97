"""`lastmile validate`: check manifests without reading a table or starting anything."""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Annotated, Any

import typer

from pipeline_runtime.cli.failures import EXIT_INVALID
from pipeline_runtime.cli.options import FilesOption, JsonOption, SetOption
from pipeline_runtime.config import LoadedManifest, ManifestError, Problem, load_manifests
from pipeline_runtime.grammar import check_expressions

_PathsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="FILE", help="More files or directories.")
]


def validate(
    paths: _PathsArgument = None,
    files: FilesOption = [],  # noqa: B006 - typer copies it
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check manifests: every broken rule of every file, each with its field, in one go."""
    targets = [*files, *(paths or [])]
    if not targets:
        raise typer.BadParameter("give at least one file or directory with -f")
    loaded, problems = _load(targets, overrides or [])
    problems += [problem for manifest in loaded for problem in _check_expressions(manifest)]
    warnings = [warning for manifest in loaded for warning in manifest.warnings]
    if as_json:
        print(json.dumps(_document(loaded, problems, warnings), indent=2))
    else:
        _print(loaded, problems, warnings)
    if problems:
        raise typer.Exit(EXIT_INVALID)


def _load(targets: list[str], overrides: list[str]) -> tuple[list[LoadedManifest], list[Problem]]:
    loaded: list[LoadedManifest] = []
    problems: list[Problem] = []
    for target in targets:
        try:
            loaded += load_manifests(target, overrides=overrides)
        except ManifestError as error:
            problems += error.problems
    return loaded, problems


def _check_expressions(manifest: LoadedManifest) -> list[Problem]:
    """Find what no table could make right; without Arrow, the types of columns are not known."""
    spec = manifest.experiment.spec
    problems = [*check_expressions(spec)]
    has_types = any(True for step in spec.pipeline for _ in step.config.find_types())
    if has_types and importlib.util.find_spec("pyarrow"):
        from pipeline_runtime.plan.syntax import check_types

        problems = [*check_types(spec), *problems]
    return [manifest.place(problem) for problem in problems]


def _document(
    loaded: list[LoadedManifest], problems: list[Problem], warnings: list[Problem]
) -> dict[str, Any]:
    def as_dict(problem: Problem) -> dict[str, Any]:
        return {name: getattr(problem, name) for name in problem.__slots__}

    return {
        "valid": not problems,
        "experiments": [{"file": m.file, "name": m.experiment.metadata.name} for m in loaded],
        "problems": [as_dict(problem) for problem in problems],
        "warnings": [as_dict(warning) for warning in warnings],
    }


def _print(loaded: list[LoadedManifest], problems: list[Problem], warnings: list[Problem]) -> None:
    broken = {problem.file for problem in problems}
    for manifest in loaded:
        if manifest.file not in broken:
            print(f"{manifest.file}: {manifest.experiment.metadata.name}: valid")
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        print(f"{len(problems)} problem{'s' if len(problems) > 1 else ''}", file=sys.stderr)
