"""`lastmile runs`: lists the runs below a folder or a URI."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline_runtime.cli.options import DEFAULT_STORAGE_ROOT, JsonOption, make_console
from pipeline_runtime.cli.times import parse_moment
from pipeline_runtime.importing import importing

if TYPE_CHECKING:  # these import Arrow, which --help does without
    from pipeline_runtime.runs.listing import ListedRun

RootArgument = Annotated[
    str,
    typer.Argument(
        metavar="[ROOT]", help="Folder or URI with runs below it, or an experiment's folder there."
    ),
]
NameOption = Annotated[str | None, typer.Option(help="Only runs of this experiment.")]
LabelOption = Annotated[
    list[str] | None,
    typer.Option("--label", "-l", metavar="KEY=VALUE", help="Only runs with this label."),
]


def runs(
    root: RootArgument = DEFAULT_STORAGE_ROOT,
    name: NameOption = None,
    phase: Annotated[
        str | None,
        typer.Option(help="Only Complete, Failed, Interrupted or Unfinished runs."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Only runs that started since a date, or an age ago: 7d."
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only runs that started before.")
    ] = None,
    labels: LabelOption = None,
    as_json: JsonOption = False,
) -> None:
    """List runs, the newest first."""
    with importing():
        from pipeline_runtime.runs.listing import RunFilter, list_runs

    choice = RunFilter(
        name=name,
        phase=_check_phase(phase),
        since=parse_moment(since),
        until=parse_moment(until),
        labels=parse_labels(labels),
    )
    found = list_runs(root, choice)
    if as_json:
        print(json.dumps([describe(run) for run in found], indent=2, ensure_ascii=False))
    elif found:
        _print(found)
    else:
        print(f"no runs below {root}")


def parse_labels(labels: Sequence[str] | None) -> Mapping[str, str]:
    """Parse KEY=VALUE texts. Raises BadParameter."""
    pairs = {}
    for text in labels or ():
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"must be KEY=VALUE, got {text!r}", param_hint="--label")
        pairs[key] = value
    return pairs


def _check_phase(phase: str | None) -> str | None:
    from pipeline_runtime.runs.listing import ENDED_PHASES, UNFINISHED

    known = {each.lower(): each for each in (*ENDED_PHASES, UNFINISHED)}
    if phase is None or phase.lower() in known:
        return phase and known[phase.lower()]
    rule = f"must be {', '.join(known.values())}, got {phase!r}"
    raise typer.BadParameter(rule, param_hint="--phase")


def describe(run: ListedRun) -> dict[str, Any]:
    """Return a run as JSON values; its summary as `summary.json` has it, or null."""
    return {
        "experiment": run.experiment,
        "run": run.name,
        "phase": run.phase,
        "startedAt": run.started_at.isoformat() if run.started_at else None,
        "folders": [folder.uri for folder in run.folders],
        "labels": dict(run.labels),
        "problem": run.problem,
        "summary": run.summary and run.summary.model_dump(mode="json", by_alias=True),
    }


def _print(found: Sequence[ListedRun]) -> None:
    from pipeline_runtime.report.drawing.painter import Painter
    from pipeline_runtime.runs.variants import describe_variants

    painter = Painter(make_console(is_wide=True))
    table = painter.table(
        "Runs",
        ("run", "left"),
        ("phase", "left"),
        ("took", "right"),
        ("seed", "right"),
        ("quality", "left"),
        ("differs in", "left"),
    )
    for column in table.columns:  # names are copied into other commands
        column.no_wrap = True
    for run, variant in zip(found, describe_variants(found), strict=True):
        table.add_row(*(painter.text(cell) for cell in (*_list_cells(run), variant)))
    painter.print_table(table)
    for run in found:
        if run.problem:
            painter.print_line("warning: ", "yellow", run.problem)


def _list_cells(run: ListedRun) -> list[str]:
    from pipeline_runtime.formatting import NOTHING, format_duration, format_metric
    from pipeline_runtime.report.view import rank_metric

    start = [f"{run.experiment}/{run.name}", run.phase]
    if run.summary is None:
        return [*start, NOTHING, NOTHING, NOTHING]
    metrics = run.summary.training.metrics
    names = sorted(metrics, key=lambda name: (not name.startswith("eval_"), rank_metric(name)))
    seed = run.summary.seeds.training
    return [
        *start,
        format_duration(run.summary.run.seconds),
        NOTHING if seed is None else str(seed),
        f"{names[0].removeprefix('eval_')} {format_metric(metrics[names[0]])}"
        if names
        else NOTHING,
    ]
