"""Reads the logs and history that a run's pods left in the store, for the CLI's commands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow.fs as pafs
from pydantic_core import from_json

from pipeline_runtime.errors import SourceError
from pipeline_runtime.history.closing import EVENTS_FILE, EXPERIMENT_FILE, FOLDER, PODS_FILE
from pipeline_runtime.run.driver_log import FOLDER as DRIVER_LOGS
from pipeline_runtime.run.folders import parse_run_id
from pipeline_runtime.sources.filesystem import Location, open_location
from pipeline_runtime.sources.stores import asking, list_folder

_LOGS = "logs"
_CHUNK_BYTES = 1 << 20
_PURPOSE = "read the stored runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """A log of a process in a pod.

    Attributes:
        name: Ray's session, which differs between heads, and the file's name.
    """

    pod: str
    name: str
    num_bytes: int
    path: str


class StoredRun:
    """The stored history of one run. Methods raise SourceError if the store refuses."""

    def __init__(self, experiment: Location, run_id: str) -> None:
        self.run_id = run_id
        self._experiment = experiment
        self._folder = experiment.join(FOLDER, run_id)
        self.uri = self._folder.uri

    def experiment(self) -> dict[str, Any]:
        """Return the last manifest and status."""
        found = self._load(EXPERIMENT_FILE)
        if not isinstance(found, dict):
            raise SourceError(
                f"{self.uri}: must hold {EXPERIMENT_FILE}, which is written when the run's cluster "
                "is deleted; see `status.history` of the experiment"
            )
        return found

    def events(self) -> list[dict[str, Any]]:
        """Return the events, oldest first."""
        return self._load(EVENTS_FILE) or []

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods as they were when their cluster was deleted."""
        return self._load(PODS_FILE) or []

    @cached_property
    def files(self) -> list[LogFile]:
        """Logs of all pods, by pod and name."""
        root = self._folder.join(_LOGS)
        with asking(root.uri, _PURPOSE):
            infos = root.filesystem.get_file_info(
                pafs.FileSelector(root.path, allow_not_found=True, recursive=True)
            )
        files = []
        for info in infos:
            pod, _, name = info.path.removeprefix(root.path).lstrip("/").partition("/")
            if info.type == pafs.FileType.File and name:
                files.append(LogFile(pod=pod, name=name, num_bytes=info.size, path=info.path))
        return sorted(files, key=lambda file: (file.pod, file.name))

    def read(self, file: LogFile) -> Iterator[bytes]:
        """Yield a log's bytes."""
        yield from self._read(file.path)

    def read_driver(self, submission_id: str) -> Iterator[bytes]:
        """Yield the log of an attempt's driver, from its pod's copy or else the driver's own."""
        name = f"job-driver-{submission_id}.log"
        mine = [file for file in self.files if file.name.rsplit("/", 1)[-1] == name]
        path = max(mine, key=lambda file: file.num_bytes).path if mine else self._find_copy(name)
        if path is None:
            raise SourceError(
                f"{self._experiment.uri}: must hold {name}, found none: the attempt's pods and its "
                "driver left no log"
            )
        yield from self._read(path)

    def _find_copy(self, name: str) -> str | None:
        """Return the newest copy in the run's own folders; None if there is none."""
        root = self._experiment
        infos = list_folder(root, _PURPOSE)
        mine = [info.path for info in infos if parse_run_id(info.base_name) == self.run_id]
        paths = [f"{run}/{DRIVER_LOGS}/{name}" for run in sorted(mine, reverse=True)]
        with asking(root.uri, _PURPOSE):
            found = root.filesystem.get_file_info(paths) if paths else []
        return next((info.path for info in found if info.type == pafs.FileType.File), None)

    def _load(self, name: str) -> Any:
        place = self._folder.join(name)
        with asking(place.uri, _PURPOSE):
            if place.filesystem.get_file_info(place.path).type != pafs.FileType.File:
                return None
            with place.filesystem.open_input_stream(place.path) as stream:
                content = stream.read()
        try:
            return from_json(content)
        except ValueError as error:
            raise SourceError(f"{place.uri}: must be JSON: {error}") from error

    def _read(self, path: str) -> Iterator[bytes]:
        with (
            asking(self._experiment.uri, _PURPOSE),
            self._experiment.filesystem.open_input_stream(path) as stream,
        ):
            while chunk := stream.read(_CHUNK_BYTES):
                yield chunk


def look_back(
    uri: str, run_id: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str | None]:
    """Return a run's pods and events, and the reason if they cannot be read."""
    try:
        stored = open_history(uri, run_id)
        return stored.pods(), stored.events(), None
    except SourceError as error:
        return [], [], str(error)


def find_last_report(uri: str, run: str | None) -> str:
    """Return the id of the run with the newest folder, of those with the id or number `run`."""
    experiment = open_location(uri)
    names = [info.base_name for info in list_folder(experiment, _PURPOSE)]
    ids = [run_id for name in sorted(names) if (run_id := parse_run_id(name)) is not None]
    mine = [each for each in ids if run in (None, each, each.rpartition("-")[2])]
    if not mine:
        wanted = "a run" if run is None else f"run {run}"
        have = f"; there is {', '.join(dict.fromkeys(ids))}" if ids else ""
        raise SourceError(f"{uri}: must have the folder of {wanted}, found none{have}")
    return mine[-1]


def open_history(uri: str, run: str | None) -> StoredRun:
    """Return the stored history of a run.

    Args:
        uri: the experiment's folder.
        run: the run's id or number; None for the last one. Several experiments of the same name may
            have a run of that number; the one that was written to last counts.

    Raises:
        SourceError: there is none, or the store refuses.
    """
    experiment = open_location(uri)
    if run is not None and not run.isdigit():
        return StoredRun(experiment, run)
    known = _list_runs(experiment)
    mine = [run_id for run_id in known if run is None or run_id.rpartition("-")[2] == run]
    if not mine:
        wanted = "a run" if run is None else f"run {run}"
        have = f"; there is {', '.join(known)}" if known else ""
        raise SourceError(f"{uri}: must have the history of {wanted}, found none{have}")
    return StoredRun(experiment, mine[-1])


def _list_runs(experiment: Location) -> list[str]:
    """Return the ids of runs with a history, the most recently written one last."""
    root, store = experiment.join(FOLDER), experiment.filesystem
    infos = list_folder(root, _PURPOSE)
    names = [info.base_name for info in infos if info.type == pafs.FileType.Directory]
    times = {}
    with asking(root.uri, _PURPOSE):
        for name in names:
            below = pafs.FileSelector(root.join(name).path, recursive=True)
            times[name] = max(
                (info.mtime_ns or 0 for info in store.get_file_info(below)), default=0
            )
    return sorted(names, key=lambda name: (times[name], name))
