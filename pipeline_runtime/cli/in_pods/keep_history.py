"""`lastmile keep-history`: what the operator has run before a cluster is given back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# The network lets a new pod out once its policies are in force, seconds after it began.
_TRIES = 4
_PAUSE_SECONDS = 5.0


def keep_history(
    payload: Annotated[Path, typer.Option(help="What the operator saw, as JSON.")],
    artifacts: Annotated[str, typer.Option(help="URI of the experiment's folder.")],
    run_id: Annotated[str, typer.Option(help="That the run's attempts share.")],
    keep_days: Annotated[int, typer.Option(min=0, help="Of older runs; 0: for ever.")] = 0,
) -> None:
    """Write events, decisions and the status of a run into the store."""
    import sys
    import time
    from datetime import UTC, datetime

    from pipeline_runtime.errors import SourceError
    from pipeline_runtime.history.closing import keep_history as keep
    from pipeline_runtime.history.closing import parse_payload, prune_history

    found, tries = parse_payload(payload.read_text()), _TRIES
    while True:
        try:
            written = keep(artifacts, run_id, found)
            break
        except SourceError:
            tries -= 1
            if tries == 0:
                raise
            time.sleep(_PAUSE_SECONDS)
    print(*written, sep="\n")
    try:
        for uri in prune_history(artifacts, run_id, keep_days, datetime.now(UTC)):
            print(f"{uri} was taken away, since it is older than {keep_days} days")
    except SourceError as error:  # the history is kept; the next run's pod tries again
        print(f"warning: {error}", file=sys.stderr)
