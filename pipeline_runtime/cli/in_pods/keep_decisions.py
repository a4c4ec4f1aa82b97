"""`lastmile keep-decisions`: what the operator has run where the credentials are."""

from __future__ import annotations

from typing import Annotated

import typer


def keep_decisions(
    decisions: Annotated[str, typer.Argument(help="A JSON list of them.")],
    artifacts: Annotated[str, typer.Option(help="URI of the experiment's folder.")],
    run_id: Annotated[str, typer.Option(help="That the run's attempts share.")],
    storage_root: Annotated[str, typer.Option(help="Where a URI without a scheme starts.")] = "",
) -> None:
    """Write decisions of the autoscaler into a run's folder."""
    from pipeline_runtime.report.files.autoscaler_decisions import parse_decisions
    from pipeline_runtime.run.decisions import keep_decisions as keep
    from pipeline_runtime.sources.filesystem import resolve_uri

    for uri in keep(resolve_uri(artifacts, storage_root), run_id, parse_decisions(decisions)):
        print(uri)
