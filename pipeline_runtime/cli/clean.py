"""`lastmile clean`: deletes old runs, or their checkpoints."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline_runtime.cli.failures import EXIT_FAILED
from pipeline_runtime.cli.options import DEFAULT_STORAGE_ROOT, JsonOption, make_console
from pipeline_runtime.cli.runs import NameOption, RootArgument
from pipeline_runtime.cli.times import parse_age
from pipeline_runtime.importing import importing

if TYPE_CHECKING:
    from pipeline_runtime.runs.cleaning import CleaningPlan


def clean(
    root: RootArgument = DEFAULT_STORAGE_ROOT,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Runs that started longer ago than this: 12h, 30d, 8w."),
    ] = None,
    keep_last: Annotated[
        int | None, typer.Option(min=0, help="All but the newest N runs of each experiment.")
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only runs that failed or were killed.")
    ] = False,
    name: NameOption = None,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Delete checkpoints only; keep the reports.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be deleted.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete the runs that meet all given conditions; never one that is running or needed.

    A run that cannot be deleted is named, and the others are deleted.
    """
    with importing():
        from pipeline_runtime.runs.cleaning import CleaningRule, delete, plan_cleaning
        from pipeline_runtime.runs.listing import list_runs

    if older_than is None and keep_last is None and not failed:
        raise typer.BadParameter(
            "must be given to choose runs, got none",
            param_hint="--older-than, --keep-last, --failed",
        )
    rule = CleaningRule(
        name=name,
        older_than=parse_age(older_than),
        keep_last=keep_last,
        is_failed=failed,
        only_checkpoints=checkpoints,
    )
    plan = plan_cleaning(list_runs(root), rule, datetime.now(UTC))
    if not dry_run:
        plan = delete(plan)
    if as_json:
        _print_json(plan, dry_run=dry_run)
    else:
        _print(plan, dry_run=dry_run)
    if any(kept.is_failed for kept in plan.kept):
        raise typer.Exit(EXIT_FAILED)


def _print_json(plan: CleaningPlan, *, dry_run: bool) -> None:
    document = {
        "dryRun": dry_run,
        "bytes": plan.num_bytes,
        "deleted": [
            {
                "experiment": deletion.run.experiment,
                "run": deletion.run.name,
                "folders": [folder.uri for folder in deletion.folders],
                "files": deletion.num_files,
                "bytes": deletion.num_bytes,
            }
            for deletion in plan.deletions
        ],
        "kept": [
            {"experiment": kept.run.experiment, "run": kept.run.name, "reason": kept.reason}
            for kept in plan.kept
        ],
    }
    print(json.dumps(document, indent=2, ensure_ascii=False))


def _print(plan: CleaningPlan, *, dry_run: bool) -> None:
    from pipeline_runtime.formatting import format_bytes, plain_spaces
    from pipeline_runtime.report.drawing.painter import Painter

    painter = Painter(make_console(is_wide=True))
    table = painter.table(
        "Would be deleted" if dry_run else "Deleted",
        ("run", "left"),
        ("phase", "left"),
        ("files", "right"),
        ("size", "right"),
    )
    for column in table.columns:
        column.no_wrap = True
    for deletion in plan.deletions:
        run = deletion.run
        sizes = (f"{deletion.num_files:,}", format_bytes(deletion.num_bytes))
        cells = (f"{run.experiment}/{run.name}", run.phase, *sizes)
        table.add_row(*(painter.text(cell) for cell in cells))
    if plan.deletions:
        painter.print_table(table)
    for kept in plan.kept:
        painter.print_line("kept ", "", f"{kept.run.experiment}/{kept.run.name}: {kept.reason}")
    count, size = len(plan.deletions), plain_spaces(format_bytes(plan.num_bytes))
    verb = "would free" if dry_run else "freed"
    painter.print_line("", "", f"{verb} {size}: {count} {'run' if count == 1 else 'runs'}")
