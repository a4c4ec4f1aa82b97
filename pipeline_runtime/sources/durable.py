"""Writes files so that they survive a power failure of this machine.

The content of a local file is safe once the file is synced, and its name once the folder is synced.
An object store confirms a write only after it has stored the object, so it needs no sync.
"""

from __future__ import annotations

import os
from pathlib import Path

from pyarrow import fs as pafs

from pipeline_runtime.files import sync_folder
from pipeline_runtime.sources.filesystem import Location


def make_folder(place: Location) -> None:
    """Create a folder and its missing parents, and sync the folders that got a new entry."""
    if not _is_local(place):
        place.filesystem.create_dir(place.path, recursive=True)
        return
    folder = Path(place.path)
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync_folder(each.parent)


def write_file(place: Location, data: bytes) -> None:
    """Write a file and sync its content; `rename_file` syncs its name."""
    if not _is_local(place):
        with place.filesystem.open_output_stream(place.path) as stream:
            stream.write(data)
        return
    Path(place.path).unlink(missing_ok=True)  # it may be a link to a file of somebody else
    with open(place.path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def rename_file(before: Location, after: Location) -> None:
    """Give a file its final name, and sync the folder before and after the rename.

    So the name is on the disk only if the names of the other files in the folder are.
    """
    if _is_local(after):
        sync_folder(Path(after.path).parent)
    before.filesystem.move(before.path, after.path)
    if _is_local(after):
        sync_folder(Path(after.path).parent)


def sync_names(folder: Location) -> None:
    """Sync the names of a folder's entries, where that is needed and possible."""
    if _is_local(folder):
        sync_folder(Path(folder.path))


def _is_local(place: Location) -> bool:
    return isinstance(place.filesystem, pafs.LocalFileSystem)
