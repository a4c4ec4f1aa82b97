"""Files of side tables' parts, which the reader processes of one machine share.

The first process that needs a part writes it to a file of Arrow's format on the local disk, under a
lock, and all of them map the file: a part is read from storage once per machine, and is in its
memory once. `bucketed_sides` reads the parts. A process that dies frees its locks; nobody uses an
unfinished file, which has another name. Whoever shared the files deletes them at the end, and the
next process that opens any such files deletes those that a killed run left.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa

_PREFIX = "lastmile-side-"
_IN_USE = "in-use"  # a file that each process locks as long as it lives
# Parts are not written to a disk on which less than this would be left: 1 GiB.
_MIN_FREE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFiles:
    """The files of one side table's parts; picklable.

    Attributes:
        name: unique among the side tables and runs of a machine.
    """

    name: str

    def load(self, part: int, read: Callable[[], pa.Table | None]) -> pa.Table | None:
        """Return a part: of its file, which the first caller writes, or as it was read.

        Args:
            read: reads the part from storage; None if it takes too much memory.
        """
        try:
            folder = _enter(self.name)
            path = folder / f"{part}.arrow"
            with _locked(folder / f"{part}.lock"):
                if path.exists():
                    return _map(path)
                table = read()
                if table is None or not _has_room(folder, table.nbytes):
                    return table
                return _write(table.combine_chunks(), path)
        except OSError:  # of the local disk: storage raises errors of its own
            return read()

    def delete(self) -> None:
        """Delete the files; processes that have mapped them keep their memory."""
        shutil.rmtree(_find_folder(self.name), ignore_errors=True)


def share_files(digest: str) -> PartFiles:
    """Return files for a side table's parts, which are deleted when this process ends."""
    files = PartFiles(name=f"{_make_token()}-{digest}")
    atexit.register(files.delete)
    return files


@cache
def _make_token() -> str:
    return secrets.token_hex(4)


def _find_folder(name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"{_PREFIX}{os.getuid()}-{name}"


_lock = threading.Lock()
_entered: dict[str, int] = {}  # descriptors of the files that say that a folder is in use


def _enter(name: str) -> Path:
    """Return the folder, which this process uses from now on. Raises OSError."""
    folder = _find_folder(name)
    with _lock:
        if name not in _entered:
            _delete_unused(but=folder)
            folder.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(folder / _IN_USE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            _entered[name] = descriptor
    return folder


def _delete_unused(*, but: Path) -> None:
    """Delete other folders of this user that no process uses."""
    every = _find_folder("")
    for folder in every.parent.glob(f"{every.name}*"):
        if folder == but:
            continue
        try:
            with _locked(folder / _IN_USE, fcntl.LOCK_EX | fcntl.LOCK_NB, flags=os.O_RDWR):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # in use, or of another process that makes or deletes it now
            continue


@contextmanager
def _locked(
    path: Path, operation: int = fcntl.LOCK_EX, *, flags: int = os.O_RDWR | os.O_CREAT
) -> Iterator[None]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, operation)
        yield
    finally:
        os.close(descriptor)


def _has_room(folder: Path, num_bytes: int) -> bool:
    return shutil.disk_usage(folder).free - num_bytes >= _MIN_FREE_BYTES


def _write(table: pa.Table, path: Path) -> pa.Table:
    """Write a part and return it mapped; as it is if the disk is full."""
    unfinished = path.with_suffix(".unfinished")
    try:
        with (
            pa.OSFile(str(unfinished), "wb") as file,
            pa.ipc.new_file(file, table.schema) as writer,
        ):
            writer.write_table(table)
        unfinished.rename(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        return table
    return _map(path)


def _map(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()
