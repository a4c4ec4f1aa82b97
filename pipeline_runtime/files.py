"""Reads and writes files of this machine: regular ones only, and whole or not at all.

A reader never finds half a file, and a link in the folder is never followed: the content goes to a
new file beside the place of the old one, which it then replaces.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

# O_EXCL follows no link. The usual mode, since others read what runs leave; `tempfile` has 0600.
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_MODE = 0o666
# Some network file systems cannot sync a folder, and return one of these errors.
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF})


def open_regular(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file, and return its descriptor.

    A FIFO or a device in its place would block, or never end. Raises OSError for either.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, _MODE)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "must be a regular file, but is another kind of file", str(path))


def read_regular(path: str | Path, max_bytes: int = -1) -> bytes:
    """Return the content of a regular file, or its first bytes. Raises OSError."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read(max_bytes)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that takes the place of `path` if the block succeeds.

    It lies in the same folder, since a rename is atomic only within one file system, and is removed
    if the block fails. Its name cannot be guessed, so nobody can put a file there before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, _FLAGS, _MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            # Or a power cut may keep the rename and lose the bytes: ext4 delays allocation.
            os.fsync(descriptor)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file, text as UTF-8."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def sync_file(path: str | Path) -> None:
    """Sync the content of a file, so that it survives a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Sync the names of a local folder's entries, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)
