"""Writes the autoscaler's decisions to the artifacts store, and reads them for the report.

The operator has no credentials for the store. So it submits `lastmile keep-decisions` to the head
as a job, which writes each decision below the folder of the current run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline_runtime.errors import SourceError, StoreError
from pipeline_runtime.files import write_atomically
from pipeline_runtime.report.files.autoscaler_decisions import DECISIONS_FOLDER, ScalingDecision
from pipeline_runtime.run.folders import parse_run_id
from pipeline_runtime.sources.filesystem import Location, open_location
from pipeline_runtime.sources.stores import asking, list_folder, write_files

# The driver creates the run's folder with its first checkpoint or copied log, after half a minute.
WAIT_SECONDS = 120.0
_LOOK_SECONDS = 5.0
# Files per run; a worker count that changes with every period gives 240 per hour.
MAX_FETCHED = 10_000


def keep_decisions(
    uri: str,
    run_id: str,
    decisions: Sequence[ScalingDecision],
    *,
    wait_seconds: float = WAIT_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> list[str]:
    """Write decisions into the newest folder of a run. Repeating it changes nothing.

    Args:
        uri: the experiment's folder, absolute or with a scheme.
        run_id: the id that the attempts of the run share.
        wait_seconds: time to wait for a folder that does not exist yet.

    Returns the URIs of the files.

    Raises:
        SourceError: there is no such run.
        StoreError: the store does not answer, or refuses.
    """
    experiment = open_location(uri)
    run = _wait_for_run(experiment, run_id, wait_seconds, sleep)
    folder = experiment.join(run, DECISIONS_FOLDER)
    files = {each.file_name: each.to_json().encode() for each in decisions}
    write_files(folder, files, "keep decisions there")
    return [folder.join(name).uri for name in files]


def _wait_for_run(
    experiment: Location, run_id: str, seconds: float, sleep: Callable[[float], None]
) -> str:
    while True:
        run = _find_run(experiment, run_id)
        if run is not None:
            return run
        if seconds <= 0.0:
            raise SourceError(
                f"{experiment.uri}: must have a folder of run {run_id}, but has none. The driver "
                "creates it when it first copies its log; try again later"
            )
        sleep(_LOOK_SECONDS)
        seconds -= _LOOK_SECONDS


def _find_run(experiment: Location, run_id: str) -> str | None:
    """Return the name of a run's newest folder; names begin with the time."""
    infos = list_folder(experiment, "look for the run's folder")
    names = [info.base_name for info in infos if parse_run_id(info.base_name) == run_id]
    return max(names, default=None)


def fetch_decisions(run: Location, directory: Path) -> str | None:
    """Copy a run's decisions into a folder, for its report.

    Returns a warning if decisions are missing.
    """
    folder = run.join(DECISIONS_FOLDER)
    for stale in (directory / DECISIONS_FOLDER).glob("*T*Z-*-*.json"):  # from an earlier run
        stale.unlink()
    try:
        infos = list_folder(folder, "read the autoscaler's decisions")
        files = sorted(info.path for info in infos if info.base_name.endswith(".json"))
        for path in files[-MAX_FETCHED:]:
            with (
                asking(folder.uri, "read the autoscaler's decisions"),
                folder.filesystem.open_input_stream(path) as stream,
            ):
                content = stream.read()
            write_atomically(directory / DECISIONS_FOLDER / path.rsplit("/", 1)[-1], content)
    except (StoreError, OSError) as error:
        return f"the report lacks decisions of the autoscaler: {error}"
    return None
