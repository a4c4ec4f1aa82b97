"""Fetches the files of a run from the artifacts store, for `lastmile artifacts --download`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pipeline_runtime.errors import SourceError
from pipeline_runtime.run.folders import parse_run_id

LOG_FOLDER = "logs"  # run.logs, which is not imported here: it needs ray and torch's neighbours
DECISIONS_FOLDER = "decisions"  # report.decisions, which is not imported for the same reason
_FOLDERS = (LOG_FOLDER, DECISIONS_FOLDER)


def fetch_run(uri: str, run_id: str, folder: Path) -> Sequence[Path]:
    """Copy the newest report of a run, and what lies beside it, into a folder.

    Args:
        uri: of the experiment's folder; a run's own lie below it.
        run_id: that its attempts share.
        folder: is made; checkpoints are not copied.

    Raises:
        SourceError: the store has no such run.
    """
    import pyarrow.fs as pafs

    from pipeline_runtime.sources.filesystem import open_location

    experiment = open_location(uri)
    store = experiment.filesystem
    try:
        runs = store.get_file_info(pafs.FileSelector(experiment.path.rstrip("/")))
        mine = [run.path for run in runs if parse_run_id(run.base_name) == run_id]
        # Names begin with the time, so the last is the newest.
        run = max(mine, default=None)
        infos = store.get_file_info(pafs.FileSelector(run)) if run else []
        below = [info.base_name for info in infos if info.base_name in _FOLDERS]
        for name in below:
            infos += store.get_file_info(pafs.FileSelector(f"{run}/{name}"))
    except OSError as error:
        raise SourceError(
            f"{uri}: must be a folder that can be read from here, got: {error}; check the "
            "credentials in the environment, or fetch it by the store's own tools"
        ) from error
    files = [info for info in infos if info.type == pafs.FileType.File]
    if not files:
        raise SourceError(f"{uri}: must have a finished run {run_id}, found none; try again later")
    copied = []
    for info in files:
        # Logs lie flat; decisions are looked for in their folder, by `lastmile report` too.
        is_decision = info.path.split("/")[-2] == DECISIONS_FOLDER
        target = folder / DECISIONS_FOLDER if is_decision else folder
        target.mkdir(parents=True, exist_ok=True)
        with store.open_input_stream(info.path) as stream:
            (target / info.base_name).write_bytes(stream.read())
        copied.append(target / info.base_name)
    return copied
