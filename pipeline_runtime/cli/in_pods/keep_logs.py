"""`lastmile keep-logs`: what the operator has run beside Ray in every pod."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def keep_logs(
    source: Annotated[Path, typer.Option("--from", help="Ray's folder, such as /tmp/ray.")],
    target: Annotated[str, typer.Option("--to", help="URI of the pod's folder in the store.")],
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between copies.")] = 10.0,
) -> None:
    """Copy the logs of Ray's processes to the store until told to stop."""
    import signal
    import threading

    from pipeline_runtime.history.pod_logs import LogCopier
    from pipeline_runtime.sources.filesystem import open_location

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    copier = LogCopier(source=source, target=open_location(target), every=every)
    copier.run(stop)
