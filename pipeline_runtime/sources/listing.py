"""Which files a URI means: one file, a folder's data files, or those that match a glob.

Runs before `parquet`, which reads the footers of what is found here.
"""

from __future__ import annotations

import fnmatch

from pyarrow import fs as pafs

from pipeline_runtime.errors import SourceError
from pipeline_runtime.sources.filesystem import Location
from pipeline_runtime.sources.stores import asking

_SUFFIXES = (".parquet", ".parq", ".pq")
_GLOB_CHARACTERS = frozenset("*?[")


def find_files(location: Location) -> tuple[list[str], str]:
    """Return what `_list_files` finds.

    Raises SourceError if nothing is there, StoreError if the store does not answer.
    """
    with asking(location.uri, "list the files"):
        return _list_files(location)


def _list_files(location: Location) -> tuple[list[str], str]:
    """The Parquet files of one URI, and the folder that their partition folders are below."""
    info = location.filesystem.get_file_info(location.path.rstrip("/"))
    # A folder whose own name has such a character is not a pattern.
    if info.type == pafs.FileType.NotFound and _GLOB_CHARACTERS & set(location.path):
        return _glob_files(location)
    if info.type == pafs.FileType.NotFound:
        raise SourceError(
            f"{location.uri}: nothing is there; check the uri and the storage root "
            f"(looked at {location.path})"
        )
    if info.type == pafs.FileType.File:
        return [info.path], info.path.rsplit("/", 1)[0]
    root = location.path.rstrip("/")
    files = _data_files(location, root)
    if not files:
        raise SourceError(f"{location.uri}: the folder holds no Parquet files; check the uri")
    return files, root


def _data_files(location: Location, root: str) -> list[str]:
    """Files below a folder: hidden ones left out, and other formats where Parquet names itself."""
    selector = pafs.FileSelector(root, recursive=True, allow_not_found=True)
    infos = location.filesystem.get_file_info(selector)
    files = [info.path for info in infos if info.type == pafs.FileType.File]
    visible = [path for path in files if not is_hidden(path.removeprefix(root))]
    named = [path for path in visible if path.endswith(_SUFFIXES)]
    return sorted(named or visible)


def is_hidden(relative: str) -> bool:
    """Whether readers pass a file over, by the name of it or of a folder above it in the table."""
    return any(part.startswith(("_", ".")) for part in relative.strip("/").split("/"))


def _glob_files(location: Location) -> tuple[list[str], str]:
    parts = location.path.split("/")
    fixed = next(i for i, part in enumerate(parts) if _GLOB_CHARACTERS & set(part))
    root = "/".join(parts[:fixed]) or "/"
    pattern = location.path.rstrip("/")
    candidates = _data_files(location, root)
    files = [path for path in candidates if _matches(path, pattern)]
    if not files:
        raise SourceError(
            f"{location.uri}: no file matches the pattern; {len(candidates)} files are below {root}"
        )
    return files, root


def _matches(path: str, pattern: str) -> bool:
    """Glob by path parts, so that '*' stays within one folder; a matched folder means its files."""
    parts, wanted = path.split("/"), pattern.split("/")
    if "**" in wanted:
        return fnmatch.fnmatchcase(path, pattern.replace("**/", "*"))
    return len(parts) >= len(wanted) and all(
        fnmatch.fnmatchcase(part, want) for part, want in zip(parts, wanted, strict=False)
    )
