"""The runs below a folder or a URI, with what their summaries say.

A root, an experiment's folder and a run's folder can all be listed. A run that has a folder on this
machine and one on the artifacts store, both below the root, is listed once. Two runs that began on
two machines in the same second have the same name, and are listed twice. `locate` knows the names
of folders; `cleaning`, `comparison` and the command `runs` use the list.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyarrow import fs as pafs

from pipeline_runtime.config import read_documents
from pipeline_runtime.errors import LastmileError, SourceError
from pipeline_runtime.report.files.summary import SUMMARY_FILE, Summary, parse_summary
from pipeline_runtime.runs.locate import (
    ARTIFACTS_FOLDER,
    find_artifacts_uri,
    has_run_files,
    is_run_name,
)
from pipeline_runtime.sources.filesystem import Location, open_location
from pipeline_runtime.sources.stores import find_info, list_folder, read_file

# The phases of runs: those of an attempt that ended, and of one that has not, or was killed.
ENDED_PHASES = ("Complete", "Failed", "Interrupted")
UNFINISHED = "Unfinished"

# ROOT/experiments/NAME/RUN
_MAX_DEPTH = 3
_PURPOSE = "list runs"
MANIFEST_FILE = "manifest.yaml"
_MAX_FILE_BYTES = 16 << 20
# A run costs a store a few requests of some 30 ms each.
_THREADS = 16
_TIME_CHARS = len("20260101T000000Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """A run and its folders.

    Attributes:
        experiment: the experiment's name.
        name: the name of the run's folder.
        phase: one of `ENDED_PHASES`, or `UNFINISHED`.
        folders: its folders below the root; the one with a summary comes first.
        artifacts_uri: its folder on the artifacts store, according to its files on this machine;
            None if they do not say.
        labels: the labels of its manifest.
        spec: the spec of its manifest as it was written; empty if it cannot be read.
        problem: why its summary cannot be read.
    """

    experiment: str
    name: str
    phase: str
    started_at: datetime | None
    folders: tuple[Location, ...]
    summary: Summary | None = None
    artifacts_uri: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None

    @property
    def seed_group(self) -> tuple[str, str | None] | None:
        """The hashes of configuration and code that its repeats with other seeds share."""
        run = self.summary and self.summary.run
        return (run.seed_group, run.code_digest) if run and run.seed_group else None

    def is_copy(self, other: ListedRun) -> bool:
        """Return whether the folders of both hold the same run, and not two of the same name."""
        if (self.experiment, self.name) != (other.experiment, other.name):
            return False
        if self.summary and other.summary:
            mine, its = self.summary.run, other.summary.run
            if mine.attempt == its.attempt:
                return (mine.run_hash, mine.started_at) == (its.run_hash, its.started_at)
        return bool(self._list_places() & other._list_places())

    def _list_places(self) -> set[str]:
        """Return its folders, and that on the artifacts store, which may be elsewhere."""
        uris = [folder.full_uri for folder in self.folders]
        uris += [self.artifacts_uri] if self.artifacts_uri else []
        return {os.path.realpath(uri) if uri.startswith("/") else uri for uri in uris}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Conditions that a listed run meets; None and empty ones are met by all runs.

    Attributes:
        name: the experiment's name.
        since, until: bounds of the time at which the run started.
        labels: labels that its manifest has, with these values.
    """

    name: str | None = None
    phase: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def accepts(self, run: ListedRun) -> bool:
        """Return whether a run meets all conditions."""
        return (
            self.name in (None, run.experiment)
            and self.phase in (None, run.phase)
            and self._is_in_time(run.started_at)
            and all(run.labels.get(key) == value for key, value in self.labels.items())
        )

    def _is_in_time(self, started: datetime | None) -> bool:
        if started is None:
            return self.since is None and self.until is None
        is_late = self.since is None or started >= self.since
        return is_late and (self.until is None or started < self.until)


def list_runs(root: str, choice: RunFilter | None = None) -> list[ListedRun]:
    """Return the runs below a folder or URI, the newest first.

    Raises:
        SourceError: the root does not exist.
        StoreError: the store does not answer.
    """
    place = open_location(root)
    if find_info(place, _PURPOSE).type != pafs.FileType.Directory:
        raise SourceError(f"{root}: must be a folder with runs below it, but does not exist")
    choice = choice or RunFilter()
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(read_run, _find_folders(place, _MAX_DEPTH)))
    runs = [run for run in _merge(found) if choice.accepts(run)]
    earliest = datetime.min.replace(tzinfo=UTC)
    return sorted(runs, key=lambda run: (run.started_at or earliest, run.name), reverse=True)


def list_siblings(folder: Location) -> list[ListedRun]:
    """Return the runs that have their folders beside a run's folder, that run included."""
    parent, _, _ = folder.path.rstrip("/").rpartition("/")
    uri, _, _ = folder.uri.rstrip("/").rpartition("/")
    place = Location(uri=uri, filesystem=folder.filesystem, path=parent)
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(read_run, _find_folders(place, 1)))


def read_run(folder: Location) -> ListedRun:
    """Return what the files in a run's folder say about it. Raises StoreError."""
    name = folder.path.rstrip("/").rsplit("/", 1)[-1]
    manifest = _read_manifest(folder)
    metadata = manifest.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    labels, spec = metadata.get("labels"), manifest.get("spec")
    run = ListedRun(
        experiment=str(metadata.get("name") or _get_parent(folder)),
        name=name,
        phase=UNFINISHED,
        started_at=_parse_time(name),
        folders=(folder,),
        artifacts_uri=find_artifacts_uri(folder),
        labels={str(k): str(v) for k, v in labels.items()} if isinstance(labels, dict) else {},
        spec=spec if isinstance(spec, dict) else {},
    )
    content = read_file(folder.join(SUMMARY_FILE), _PURPOSE, _MAX_FILE_BYTES)
    if content is None:
        return run
    try:
        summary = parse_summary(content, f"{folder.uri}/{SUMMARY_FILE}")
    except LastmileError as error:
        return replace(run, problem=str(error))
    return replace(
        run,
        experiment=summary.experiment.name,
        phase=summary.run.outcome,
        # The folder's name has the time of the first attempt, the summary that of the last one.
        started_at=run.started_at or summary.run.started_at,
        summary=summary,
    )


def _find_folders(place: Location, depth: int) -> Iterator[Location]:
    """Yield the folders of runs at or below a place; a link, such as `latest`, is not followed."""
    infos = list_folder(place, _PURPOSE)
    if has_run_files(infos):
        yield place
        return
    for info in infos if depth else ():
        name = info.base_name
        if info.type != pafs.FileType.Directory or name.startswith((".", "_")):
            continue
        below = place.join(name)
        if not _is_link(below):
            # The folder of a run that has no file yet is a run too.
            yield from [below] if is_run_name(name) else _find_folders(below, depth - 1)


def _is_link(place: Location) -> bool:
    return isinstance(place.filesystem, pafs.LocalFileSystem) and Path(place.path).is_symlink()


def _merge(found: Sequence[ListedRun]) -> Iterator[ListedRun]:
    """Yield each run once, with all its folders; that of its last attempt comes first."""
    by_name: dict[tuple[str, str], list[ListedRun]] = {}
    for run in sorted(found, key=_rank_folder):
        same_name = by_name.setdefault((run.experiment, run.name), [])
        for index, other in enumerate(same_name):
            if is_run_name(run.name) and other.is_copy(run):
                same_name[index] = replace(other, folders=(*other.folders, *run.folders))
                break
        else:
            same_name.append(run)
    for same_name in by_name.values():
        yield from same_name


def _rank_folder(run: ListedRun) -> tuple[bool, int, bool]:
    attempt = run.summary.run.attempt if run.summary else 0
    return run.summary is None, -attempt, _is_stored(run)


def _is_stored(run: ListedRun) -> bool:
    """Return whether a run's folder is among the artifacts, rather than that of its report."""
    return f"/{ARTIFACTS_FOLDER}/" in run.folders[0].path


def _get_parent(folder: Location) -> str:
    parts = folder.path.rstrip("/").split("/")
    return parts[-2] if len(parts) > 1 and parts[-2] != ARTIFACTS_FOLDER else parts[-1]


def _read_manifest(folder: Location) -> Mapping[str, object]:
    """Return the manifest as a mapping; empty if there is none that can be read."""
    content = read_file(folder.join(MANIFEST_FILE), _PURPOSE, _MAX_FILE_BYTES)
    if content is None:
        return {}
    documents = read_documents(content.decode(errors="replace"))
    values = (document.value for document in documents if not document.problems)
    return next((value for value in values if isinstance(value, dict)), {})


def _parse_time(name: str) -> datetime | None:
    if not is_run_name(name):
        return None
    try:
        return datetime.strptime(name[:_TIME_CHARS], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None
