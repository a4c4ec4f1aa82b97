"""Writes files so that they outlive a loss of power, where the file system is this machine's.

A local file is on the disk once it was synced, and its name once its folder was. An object store
answers a write only when it keeps the object, so there nothing is left to do.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from pyarrow import fs as pafs

from pipeline_runtime.sources.filesystem import Location

# Some network file systems have no way to sync a folder, and say so by one of these.
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF})


def make_folder(place: Location) -> None:
    """Make a folder and those above it, and sync the folders that got a new entry."""
    if not _is_local(place):
        place.filesystem.create_dir(place.path, recursive=True)
        return
    folder = Path(place.path)
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        _sync_folder(each.parent)


def write_file(place: Location, data: bytes) -> None:
    """Write a file and sync it; its name is synced by `rename_file`."""
    if not _is_local(place):
        with place.filesystem.open_output_stream(place.path) as stream:
            stream.write(data)
        return
    with open(place.path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def rename_file(before: Location, after: Location) -> None:
    """Give a file its final name: the folder is synced before and after it.

    So that the name is on the disk only if the other files of the folder are.
    """
    if _is_local(after):
        _sync_folder(Path(after.path).parent)
    before.filesystem.move(before.path, after.path)
    if _is_local(after):
        _sync_folder(Path(after.path).parent)


def _is_local(place: Location) -> bool:
    return isinstance(place.filesystem, pafs.LocalFileSystem)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)
