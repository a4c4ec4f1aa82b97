"""Locates a run by a folder, a URI, a link, or its NAME or NAME/RUN below a root.

`runs`, `compare`, `clean` and `load_model` begin here. A run may have two folders: the one of this
machine, and the complete one on the artifacts store, which also has the checkpoints. The summary of
the first names the second. `run.folders` builds the names of both, `run.session` writes into them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyarrow import fs as pafs
from pydantic_core import from_json

from pipeline_runtime.errors import SourceError
from pipeline_runtime.sources.filesystem import Location, has_scheme, open_location
from pipeline_runtime.sources.stores import list_folder, read_file

DEFAULT_ROOT = "build/"
# The default of `artifacts.uri`: the folder below the root in which experiments have theirs.
ARTIFACTS_FOLDER = "experiments"
LATEST = "latest"

_PURPOSE = "look for a run"
# TIME-HASH or TIME-HASH-ID, as `run.folders.build_folder_name` builds them.
_RUN_NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{16}(-[A-Za-z0-9][A-Za-z0-9-]*)?")
# Any of these in a folder makes it the folder of a run.
_SIGNS = frozenset(
    {"run.json", "summary.json", "manifest.yaml", "checkpoints", "plan.json", "metrics.parquet"}
)
# A run that has ended names its artifacts in the first file, one that has not in the second.
_SUMMARY_FILE = "summary.json"
RUN_FILE = "run.json"
_MAX_SUMMARY_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlace:
    """The folders of a run.

    Attributes:
        folder: the folder that the user named, on this machine or on a store.
        artifacts: the complete folder, with checkpoints, on the artifacts store; `folder` itself if
            there is no other.
    """

    folder: Location
    artifacts: Location

    @property
    def name(self) -> str:
        """The name of the run's folder: TIME-HASH, unless the user chose another."""
        return self.artifacts.path.rstrip("/").rsplit("/", 1)[-1]


def is_run_name(name: str) -> bool:
    """Return whether a folder's name is one that Lastmile gives to runs."""
    return _RUN_NAME.fullmatch(name) is not None


def locate_run(run: str, root: str = DEFAULT_ROOT) -> RunPlace:
    """Find the folders of a run.

    Args:
        run: the run's folder or URI; or the folder or URI of an experiment, which means its latest
            run; or NAME or NAME/RUN below the root, or below its `experiments/`.
        root: a local folder or a URI.

    Raises:
        SourceError: there is no such run; StoreError if a store does not answer.
    """
    for place in _list_candidates(run, root):
        folder = _resolve(place)
        if folder is not None:
            return RunPlace(folder=folder, artifacts=_find_artifacts(folder))
    raise SourceError(
        f"{run}: must be the folder or URI of a run or of an experiment, or NAME or NAME/RUN below "
        f"{root!r}, but none of them holds a run; `lastmile runs` lists them"
    )


def is_run_folder(place: Location) -> bool:
    """Return whether a folder holds files of a run."""
    return has_run_files(list_folder(place, _PURPOSE))


def has_run_files(infos: Iterable[pafs.FileInfo]) -> bool:
    """Return whether any of a folder's entries is one that only runs have."""
    return any(info.base_name in _SIGNS for info in infos)


def _list_candidates(run: str, root: str) -> Iterator[Location]:
    yield open_location(run)
    if not has_scheme(run) and not run.startswith(("/", ".", "~")):
        below = open_location(root)
        yield below.join(run)
        yield below.join(ARTIFACTS_FOLDER, run)


def _resolve(place: Location) -> Location | None:
    """Return the run's folder: the place itself, or the latest run in it; None without a run."""
    infos = list_folder(place, _PURPOSE)
    if has_run_files(infos):
        return _follow(place)
    folders = [info.base_name for info in infos if info.type == pafs.FileType.Directory]
    runs = sorted(name for name in folders if is_run_name(name))  # names begin with the time
    for name in ([LATEST] if LATEST in folders else []) + runs[::-1]:
        if is_run_folder(place.join(name)):
            return _follow(place.join(name))
    return None


def _follow(place: Location) -> Location:
    """Return the target of a local link, such as `latest`; any other place as it is."""
    if not isinstance(place.filesystem, pafs.LocalFileSystem):
        return place
    path = str(Path(place.path).resolve())
    return Location(uri=path, filesystem=place.filesystem, path=path)


def find_artifacts_uri(folder: Location) -> str | None:
    """Return the folder on the artifacts store that the files of a local folder name.

    None if they name none, and for a folder on a store: what it names is not followed, since
    anybody who can write to the store chooses it.
    """
    if not isinstance(folder.filesystem, pafs.LocalFileSystem):
        return None
    named = _read_json(folder.join(_SUMMARY_FILE)).get("run")
    uri = named.get("artifactsUri") if isinstance(named, dict) else None
    uri = uri or _read_json(folder.join(RUN_FILE)).get("artifactsUri")
    return uri if isinstance(uri, str) and uri else None  # an older Lastmile has none


def _find_artifacts(folder: Location) -> Location:
    """Return the folder of a run on the artifacts store; the given one if there is no other."""
    uri = find_artifacts_uri(folder)
    if uri is None:
        return folder
    place = open_location(uri)
    is_same = isinstance(place.filesystem, pafs.LocalFileSystem) and place.path == folder.path
    return folder if is_same or not is_run_folder(place) else place


def _read_json(place: Location) -> dict[str, Any]:
    """Return a file's JSON object; an empty one if there is none."""
    content = read_file(place, _PURPOSE, _MAX_SUMMARY_BYTES)
    try:
        found = from_json(content or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
