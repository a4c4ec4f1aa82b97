"""The version of a file: a value that changes whenever the file's content changes.

Caches of this process use it as a key. A name, a size, or a footer may stay the same when a file is
rewritten, so none of them is enough. `opening` keeps footers by it, and `steps.side_tables` keeps
the indices of side tables by it.
"""

from __future__ import annotations

import os
from typing import Any

import pyarrow.fs as pafs

Version = tuple[object, ...]

# What S3, GCS and Azure say of an object, in lower case: pyarrow fetches it as it opens the object.
_STORE_KEYS = frozenset({b"etag", b"versionid", b"generation", b"last-modified", b"updated"})


def stat_version(filesystem: Any, path: str) -> Version | None:
    """Return the version of a local file; None on other file systems.

    The inode and the time of its last change cannot be set back, as the modification time can.

    Raises OSError if there is no such file.
    """
    if not isinstance(filesystem, pafs.LocalFileSystem):
        return None
    status = os.stat(path.encode())  # as Arrow does, whatever the locale's encoding
    changed = (status.st_mtime_ns, status.st_ctime_ns)
    return (path, status.st_size, status.st_dev, status.st_ino, *changed)


def object_version(stream: Any, path: str) -> Version | None:
    """Return the version of an object that is open; None if its store does not tell any."""
    told = {key: value for key, value in stream.metadata().items() if key.lower() in _STORE_KEYS}
    return (path, stream.size(), *sorted(told.items())) if told else None


def file_version(filesystem: Any, path: str) -> Version | None:
    """Return the version of a file; None if its store does not tell any.

    Raises OSError if it cannot be opened.
    """
    local = stat_version(filesystem, path)
    if local is not None:
        return local
    with filesystem.open_input_file(path) as stream:
        return object_version(stream, path)
