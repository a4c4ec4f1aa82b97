"""Judges manifests for `validate` and `explain`: what one of them refuses, the other refuses.

Both refuse what `run` would refuse on this machine before it starts, apart from what earlier runs
left: a table in the place of the output, or a folder that is in use. A manifest is judged in this
order: its fields, its expressions and types, its tables and their columns, and what its consumer
needs: rows, and the user's code. All problems of all manifests are found at once.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import typer

from pipeline_runtime.cli.failures import EXIT_INVALID, EXIT_OK, exit_code_of, placing
from pipeline_runtime.cli.options import code_paths, find_storage_root, working_dir
from pipeline_runtime.config import LoadedManifest, ManifestError, Problem, clean, load_manifests
from pipeline_runtime.errors import LastmileError, SourceError
from pipeline_runtime.grammar import check_expressions
from pipeline_runtime.importing import importing

if TYPE_CHECKING:  # it imports Arrow
    from pipeline_runtime.plan import Plan


@dataclass(slots=True, kw_only=True)
class Verdict:
    """The judgement of manifests.

    Attributes:
        plans: manifests that were planned, with their plans.
        problems: everything that is wrong. One of a table has no path.
        exit_code: of the command: 2 if a manifest is wrong, else that of the first other error.
    """

    manifests: list[LoadedManifest] = field(default_factory=list)
    plans: list[tuple[LoadedManifest, Plan]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    exit_code: int = EXIT_OK

    @property
    def warnings(self) -> list[Problem]:
        """Warnings of all manifests."""
        return [warning for manifest in self.manifests for warning in manifest.warnings]

    def add(self, problems: Sequence[Problem], exit_code: int = EXIT_INVALID) -> None:
        """Record problems that have this exit code."""
        self.problems += problems
        if problems and self.exit_code != EXIT_INVALID:
            self.exit_code = EXIT_INVALID if exit_code == EXIT_INVALID else self.exit_code
            self.exit_code = self.exit_code or exit_code


def judge(
    targets: Sequence[str], overrides: Sequence[str], storage_root: str, *, opens_tables: bool
) -> Verdict:
    """Judge the manifests of files and directories.

    Args:
        storage_root: base of URIs without a scheme, for manifests that name none.
        opens_tables: False judges only what needs no table.
    """
    verdict = Verdict()
    for target in targets:
        try:
            verdict.manifests += load_manifests(target, overrides=overrides)
        except ManifestError as error:
            verdict.add(error.problems)
    for manifest in verdict.manifests:
        found = _check_syntax(manifest)
        if opens_tables:
            _plan(manifest, storage_root, found, verdict)
        else:
            verdict.add(found)
    return verdict


def refuse(verdict: Verdict, *, prints: bool = True) -> None:
    """Print warnings and problems, and exit if there is a problem."""
    for warning in verdict.warnings if prints else ():
        print(f"warning: {warning}", file=sys.stderr)
    for problem in verdict.problems if prints else ():
        print(f"error: {clean(str(problem))}", file=sys.stderr)  # it may quote a table or a store
    if not verdict.problems:
        return
    if prints:
        count = len(verdict.problems)
        print(f"{count} problem{'s' if count > 1 else ''}", file=sys.stderr)
    raise typer.Exit(verdict.exit_code)


def _check_syntax(manifest: LoadedManifest) -> list[Problem]:
    """Return what no table could make right; without Arrow, types of columns are not checked."""
    spec = manifest.experiment.spec
    problems = [*check_expressions(spec)]
    has_types = any(True for step in spec.pipeline for _ in step.config.find_types())
    if has_types and importlib.util.find_spec("pyarrow"):
        from pipeline_runtime.plan.syntax import check_types

        problems = [*check_types(spec), *problems]
    return [manifest.place(problem) for problem in problems]


def _describe(manifest: LoadedManifest, error: LastmileError) -> Problem:
    if isinstance(error, SourceError) and error.field:
        return manifest.place(Problem(path=error.field, message=error.message))
    return Problem(path="", message=str(error), file=manifest.file)


def _plan(
    manifest: LoadedManifest, storage_root: str, syntax: list[Problem], verdict: Verdict
) -> None:
    """Plan a manifest, and record its plan or its problems.

    The plan finds problems of expressions too; those of `syntax` are added where it did not.
    """
    with importing():
        from pipeline_runtime.plan import build_plan
        from pipeline_runtime.run.code_paths import add_code_paths
        from pipeline_runtime.run.consumers import find_runner
        from pipeline_runtime.run.options import RunOptions, choose_output
        from pipeline_runtime.run.places import check_apart

    add_code_paths((*working_dir(manifest), *code_paths(manifest.file)))
    root, name = find_storage_root(manifest, storage_root), manifest.experiment.metadata.name
    output = choose_output(None, name).absolute()
    options = RunOptions(output=output, folder_per_run=True, storage_root=root)
    try:
        # The user's code prints where it is imported.
        with placing(manifest), contextlib.redirect_stdout(sys.stderr):
            check_apart(manifest.experiment, options)
            plan = build_plan(manifest.experiment, root)
            find_runner(plan.consumer).check(manifest.experiment, plan, root)
    except ManifestError as error:
        known = {problem.path for problem in error.problems}
        verdict.add([*error.problems, *(found for found in syntax if found.path not in known)])
    except LastmileError as error:
        verdict.add(syntax)
        verdict.add([_describe(manifest, error)], exit_code_of(type(error).__name__))
    else:
        verdict.add(syntax)
        verdict.plans.append((manifest, plan))
