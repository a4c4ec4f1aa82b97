"""Locks the folder of a run on this machine, by flock(2) on the `run.json` in it.

The kernel releases the lock when the process ends, however it ends. `run.claims` holds it while a
run writes there, and `cleaning` while it deletes the folder.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline_runtime.files import open_regular
from pipeline_runtime.runs.locate import RUN_FILE


@contextmanager
def locking(folder: Path, *, is_new: bool = False) -> Iterator[int]:
    """Lock a folder, and yield the descriptor of its `run.json`; both are made if they are missing.

    A file system without locks locks nothing.

    Args:
        is_new: `run.json` must not exist, which one of several processes can achieve.

    Raises:
        BlockingIOError: another process holds the lock.
        FileExistsError: `is_new`, but the file exists.
        OSError: the file cannot be opened.
    """
    path = folder / RUN_FILE
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | (os.O_EXCL if is_new else 0)
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = open_regular(path, flags)
        except FileNotFoundError:  # another process has just removed the folder
            continue
        _locked.add(descriptor)
        try:
            _lock(descriptor)
            if is_at(descriptor, path):
                yield descriptor
                return
        finally:
            _locked.discard(descriptor)
            os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Return whether a process of this machine, or of a shared file system, holds the lock."""
    try:
        descriptor = open_regular(folder / RUN_FILE, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        _lock(descriptor, fcntl.LOCK_SH)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass  # a file system without locks


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether a path still names the open file, which somebody may have removed."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    return False


# Descriptors of the locked files of this process.
_locked: set[int] = set()


def _release_in_child() -> None:
    """Close the files in a forked process, such as a DataLoader's worker.

    A lock ends when all copies of its descriptor are closed, and a worker may outlive a killed run.
    """
    for descriptor in _locked:
        os.close(descriptor)
    _locked.clear()


os.register_at_fork(after_in_child=_release_in_child)
