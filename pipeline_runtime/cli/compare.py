"""`lastmile compare`: what differs between runs, and whether it is more than noise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline_runtime.cli.options import DEFAULT_STORAGE_ROOT, JsonOption, make_console
from pipeline_runtime.importing import importing


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN RUN…",
            help="Runs: a folder, a URI, or NAME or NAME/RUN below the root; NAME means its latest "
            "run. The others are compared with the first.",
        ),
    ],
    root: Annotated[
        str, typer.Option(metavar="ROOT", help="Folder or URI that names of runs are below.")
    ] = DEFAULT_STORAGE_ROOT,
    only: Annotated[
        bool,
        typer.Option("--only", help="Leave out the repeats of these runs with other seeds."),
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a page, with curves.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare runs: manifests, data, rows through the steps, metrics, time and cost."""
    if len(runs) < 2:
        raise typer.BadParameter(f"must be at least two, got {len(runs)}", param_hint="RUN")
    with importing():
        from pipeline_runtime.comparison.comparing import compare as compare_runs
        from pipeline_runtime.comparison.gathering import gather
        from pipeline_runtime.comparison.terminal import print_comparison

    gathered = gather(runs, root, only_named=only)
    comparison = compare_runs(gathered)
    if html is not None:
        from pipeline_runtime.comparison.page import write_page

        write_page(html, comparison, gathered)
    if as_json:
        print(comparison.model_dump_json(by_alias=True, indent=2))
        return
    print_comparison(make_console(is_wide=True), comparison)
    if html is not None:
        print(f"page: {html}")
