"""Finds the files of a URI: one file, the data files of a folder, or the matches of a glob.

Runs before `fragments`, which reads the footers of these files.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyarrow import fs as pafs

from pipeline_runtime.errors import SourceError
from pipeline_runtime.sources.filesystem import Location
from pipeline_runtime.sources.output_manifest import MANIFEST_FILE, read_output_manifest
from pipeline_runtime.sources.stores import asking, find_info

_SUFFIXES = (".parquet", ".parq", ".pq")
# Folders by which a table of another format is recognised, and its format.
_FORMATS = {"_delta_log": "Delta Lake", ".hoodie": "Hudi"}
_ICEBERG_METADATA = ".metadata.json"
_GLOB_CHARACTERS = frozenset("*?[")
_LISTING = "list the files"


class Found(NamedTuple):
    """The files of a URI.

    Attributes:
        root: the folder that their partition folders are below.
        partition_types: types of the partition columns, if a list of files says them.
    """

    paths: list[str]
    root: str
    partition_types: Mapping[str, pa.DataType] = {}


def find_files(location: Location) -> Found:
    """Return the Parquet files of a URI.

    A table that Lastmile wrote has a list of its files, which is followed: the folder may hold
    files of another table, or of half a table, while it is written.

    Raises:
        SourceError: there are none, or they belong to a table of another format.
        StoreError: the store does not answer.
    """
    info = find_info(location, _LISTING)
    # A path that exists is not a pattern, even if its name has such a character.
    if info.type == pafs.FileType.NotFound and _GLOB_CHARACTERS & set(location.path):
        return _glob_files(location)
    if info.type == pafs.FileType.NotFound:
        raise SourceError(
            f"{location.uri}: nothing is there; check the uri and the storage root "
            f"(looked at {location.path})"
        )
    if info.type == pafs.FileType.File:
        return Found([info.path], info.path.rsplit("/", 1)[0])
    root = location.path.rstrip("/")
    infos = _list_folder(location, root)
    if any(info.path == f"{root}/{MANIFEST_FILE}" for info in infos):
        return _follow_manifest(location, infos, root)
    files = _data_files(infos, root)
    if not files:
        raise SourceError(f"{location.uri}: the folder holds no Parquet files; check the uri")
    _refuse_table_formats(location, infos, files)
    return Found(files, root)


def _follow_manifest(location: Location, infos: Sequence[pafs.FileInfo], root: str) -> Found:
    manifest = read_output_manifest(location)
    if manifest is None:
        raise SourceError(f"{location.uri}: the table is gone since it was listed; try again")
    files = [f"{root}/{file.path}" for file in manifest.files]
    known = {info.path for info in infos}
    missing = next((path for path in files if path not in known), None)
    if missing is not None:
        raise SourceError(
            f"{location.uri}: {missing} is missing, which {MANIFEST_FILE} lists: the table was "
            "replaced while it was listed, or somebody removed the file. Try again, or write the "
            "table again"
        )
    return Found(sorted(files), root, manifest.partition_types)


def _list_folder(location: Location, root: str) -> list[pafs.FileInfo]:
    selector = pafs.FileSelector(root, recursive=True, allow_not_found=True)
    with asking(location.uri, _LISTING):
        infos: list[pafs.FileInfo] = location.filesystem.get_file_info(selector)
        return infos


def _data_files(infos: Sequence[pafs.FileInfo], root: str) -> list[str]:
    """Return the visible files below a folder: those with a Parquet suffix, or all if none has."""
    files = [info.path for info in infos if info.type == pafs.FileType.File]
    visible = [path for path in files if not is_hidden(path.removeprefix(root))]
    named = [path for path in visible if path.endswith(_SUFFIXES)]
    return sorted(named or visible)


def is_hidden(relative: str) -> bool:
    """Return whether readers skip a file because of its name or that of a folder above it."""
    return any(part.startswith(("_", ".")) for part in relative.strip("/").split("/"))


def _glob_files(location: Location) -> Found:
    parts = location.path.split("/")
    fixed = next(i for i, part in enumerate(parts) if _GLOB_CHARACTERS & set(part))
    root = "/".join(parts[:fixed]) or "/"
    pattern = location.path.rstrip("/")
    infos = _list_folder(location, root)
    candidates = _data_files(infos, root)
    files = [path for path in candidates if _matches(path, pattern)]
    if not files:
        raise SourceError(
            f"{location.uri}: no file matches the pattern; {len(candidates)} files are below {root}"
        )
    _refuse_table_formats(location, infos, files)
    return Found(files, root)


def _refuse_table_formats(
    location: Location, infos: Sequence[pafs.FileInfo], files: Sequence[str]
) -> None:
    """Refuse files of a table format whose own metadata decides which files are current.

    This uses only the listing at hand: the credentials may not allow to list other folders.
    """
    for folder, name, marker in sorted({found for info in infos if (found := _table_format(info))}):
        if any(path.startswith(f"{folder}/") for path in files):
            raise SourceError(
                f"{location.uri}: {folder} is a table of {name} (it holds {marker}), whose folder "
                "may also hold files with rows that were deleted or replaced; export the rows "
                "to a folder of plain Parquet, or name the files of one snapshot in uris"
            )


def _table_format(info: pafs.FileInfo) -> tuple[str, str, str] | None:
    """Return the folder, format and marker of the table that a file or folder reveals, if any."""
    is_file = info.type == pafs.FileType.File
    parts = info.path.rstrip("/").split("/")
    folders = parts[:-1] if is_file else parts
    for marker, name in _FORMATS.items():
        if marker in folders:
            return "/".join(parts[: folders.index(marker)]), name, f"{marker}/"
    if is_file and folders[-1:] == ["metadata"] and _ICEBERG_METADATA in parts[-1]:
        return "/".join(folders[:-1]), "Iceberg", f"metadata/*{_ICEBERG_METADATA}"
    return None


def _matches(path: str, pattern: str) -> bool:
    """Match by path parts, so that '*' stays in one folder; a matched folder matches its files."""
    parts, wanted = path.split("/"), pattern.split("/")
    if "**" in wanted:
        return fnmatch.fnmatchcase(path, pattern.replace("**/", "*"))
    return len(parts) >= len(wanted) and all(
        fnmatch.fnmatchcase(part, want) for part, want in zip(parts, wanted, strict=False)
    )
