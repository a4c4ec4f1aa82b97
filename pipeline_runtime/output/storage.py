"""The files below one folder: written durably, read, listed and removed.

Everything that an output run stores goes through a `Storage`, so that a test can kill the run
between any two of its operations. A local file is synced, an object is stored once it is closed.
Paths are relative to the folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs as pafs

from pipeline_runtime.errors import OutputError, OutputRefused, StoreError
from pipeline_runtime.files import sync_file, sync_folder, write_atomically
from pipeline_runtime.sources import Location
from pipeline_runtime.sources.durable import make_folder
from pipeline_runtime.sources.stores import asking, find_info, read_file

# Requests to an object store at a time.
_REQUESTS = 16
# Stores in which a folder exists as soon as an object's name has it.
_WITHOUT_FOLDERS = frozenset({"s3", "gcs"})
# linux/fs.h and fcntl.h
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
# What cannot be a file's name, or a folder that is not ours: the user has to choose another place.
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR})


@dataclass(frozen=True, slots=True)
class Storage:
    """A folder of a run; picklable, so that writers elsewhere store below it."""

    location: Location

    @property
    def uri(self) -> str:
        return self.location.uri

    @property
    def is_local(self) -> bool:
        """Return whether the folder is on a file system that renames files and folders."""
        return isinstance(self.location.filesystem, pafs.LocalFileSystem)

    def below(self, folder: str) -> Storage:
        """Return the storage of a folder in this one."""
        return type(self)(self.location.join(folder))

    def parent(self) -> Storage:
        """Return the storage of the folder above."""
        uri, path = self.uri.rpartition("/")[0], _parent(self.location.path)
        return type(self)(replace(self.location, uri=uri, path=path))

    def write(self, name: str, content: bytes) -> None:
        """Write a file as a whole; a reader finds the old content or the new one."""
        place = self.location.join(name)
        with storing(place.uri):
            if self.is_local:
                make_folder(replace(place, path=_parent(place.path)))
                write_atomically(Path(place.path), content)
                sync_folder(Path(place.path).parent)
            else:
                self._make_parent(place)
                with place.filesystem.open_output_stream(place.path) as stream:
                    stream.write(content)

    @contextmanager
    def create(self, name: str) -> Iterator[Any]:
        """Open a new file to write; it is stored durably when the block succeeds."""
        place = self.location.join(name)
        with storing(place.uri):
            self._make_parent(place)
            with place.filesystem.open_output_stream(place.path) as stream:
                yield stream
            if self.is_local:
                sync_file(place.path)

    def read(self, name: str, max_bytes: int) -> bytes | None:
        """Return a file's content; None if there is no such file."""
        return read_file(self.location.join(name), "read the state of an output", max_bytes)

    @contextmanager
    def open(self, name: str) -> Iterator[Any]:
        """Open a file to read at any position."""
        place = self.location.join(name)
        with asking(place.uri, "read what a writer stored"):
            file = place.filesystem.open_input_file(place.path)
        with file:
            yield file

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return the size of every file below a folder, by its path relative to that folder."""
        place = self.location.join(folder) if folder else self.location
        root = place.path.rstrip("/")
        if find_info(place, "list the files of an output").type == pafs.FileType.NotFound:
            return {}
        with asking(place.uri, "list the files of an output"):
            selector = pafs.FileSelector(root, recursive=True, allow_not_found=True)
            infos = place.filesystem.get_file_info(selector)
        files = (info for info in infos if info.type == pafs.FileType.File)
        return {info.path.removeprefix(root).lstrip("/"): info.size or 0 for info in files}

    def remove_file(self, name: str) -> None:
        """Remove a file, if it exists."""
        place = self.location.join(name)
        if find_info(place, "remove a file").type == pafs.FileType.File:
            with storing(place.uri):
                place.filesystem.delete_file(place.path)

    def remove(self) -> None:
        """Remove the folder and everything below it, if it exists."""
        if not self.exists():
            return
        if self.is_local:
            with storing(self.uri):
                self.location.filesystem.delete_dir(self.location.path)
            return
        each(self.remove_file, list(self.sizes()))
        # Folders of a store are at most empty objects: some stores refuse to delete them before
        # what lies in them, in whatever order one request names both. Readers do not see them.
        with contextlib.suppress(StoreError), storing(self.uri):
            self.location.filesystem.delete_dir(self.location.path)

    def staged(self, path: str) -> str:
        """Return the staged name of a table's file: no pattern for Parquet files finds it."""
        return path if self.is_local else f"{path}.staged"

    def put_in_place(self, path: str, target: Storage) -> None:
        """Copy a staged file to its name in the table, on an object store; may be repeated."""
        source, place = self.location.join(self.staged(path)), target.location.join(path)
        filesystem = place.filesystem
        with storing(place.uri):
            self._make_parent(place)
            try:
                filesystem.copy_file(source.path, place.path)
            except pa.ArrowNotImplementedError:  # hdfs cannot copy, but rename
                if find_info(source, "move a file").type == pafs.FileType.File:
                    filesystem.move(source.path, place.path)

    def rename_to(self, target: Storage) -> None:
        """Give a local folder another name. Raises OutputRefused if a folder with files has it."""
        try:
            with storing(target.uri):
                make_folder(replace(target.location, path=_parent(target.location.path)))
                os.rename(self.location.path, target.location.path)
                self._sync_names(target)
        except StoreError as error:
            if _errno_of(error) in (errno.ENOTEMPTY, errno.EEXIST):
                raise OutputRefused(
                    f"{target.uri}: must be empty or new, but another table appeared there while "
                    "this run was writing. Name another folder, or set spec.output.mode to "
                    "Overwrite"
                ) from error
            raise

    def exchange_with(self, other: Storage) -> bool:
        """Exchange two local folders in one step; return False if the system cannot."""
        with storing(other.uri):
            if not exchange(self.location.path, other.location.path):
                return False
            self._sync_names(other)
        return True

    def sync_folders(self) -> None:
        """Sync the names of all files below a local folder."""
        with storing(self.uri):
            for folder, _, _ in os.walk(self.location.path):
                sync_folder(Path(folder))

    def exists(self) -> bool:
        """Return whether the folder exists."""
        info = find_info(self.location, "look for a folder")
        return bool(info.type != pafs.FileType.NotFound)

    def remove_if_empty(self) -> None:
        """Remove a local folder that holds nothing."""
        with contextlib.suppress(OSError):
            if self.is_local:
                os.rmdir(self.location.path)

    def _sync_names(self, other: Storage) -> None:
        for path in (self.location.path, other.location.path):
            sync_folder(Path(_parent(path)))

    @staticmethod
    def _make_parent(place: Location) -> None:
        """Create the folder of a file where stores have folders."""
        if place.filesystem.type_name not in _WITHOUT_FOLDERS:
            place.filesystem.create_dir(_parent(place.path), recursive=True)


def each(work: Callable[[str], None], paths: Sequence[str]) -> None:
    """Call a request to a store for every path, several at a time."""
    with ThreadPoolExecutor(_REQUESTS) as pool:
        list(pool.map(work, paths))


@contextmanager
def storing(uri: str) -> Iterator[None]:
    """Raise OutputError if there is no room or no permission, StoreError for other failures."""
    with asking(uri, "write the output"):
        try:
            yield
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise OutputError(
                    f"{uri}: there is no room for the output: {error}. Make room, then run again "
                    "with --resume"
                ) from error
            if error.errno in _REFUSED:
                raise OutputError(
                    f"{uri}: the output cannot be written there: {error}. Name another folder, or "
                    "change its permissions"
                ) from error
            raise


def exchange(one: str, other: str) -> bool:
    """Exchange the names of two folders by renameat2(2); return False if the system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    names = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other))
    if libc.renameat2(*names, _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), other)


def _errno_of(error: StoreError) -> int | None:
    cause = error.__cause__
    return cause.errno if isinstance(cause, OSError) else None


def _parent(path: str) -> str:
    return path.rstrip("/").rpartition("/")[0] or "/"
