"""Versions of files: values that change whenever a file's content changes.

Caches of this process use them as keys. A name, a size or a footer may stay the same when a file is
rewritten, so none of these is enough. `opening` caches footers by version, and `steps.side_tables`
caches the indices of side tables.
"""

from __future__ import annotations

import os
from typing import Any

import pyarrow.fs as pafs

Version = tuple[object, ...]

# Metadata keys of S3, GCS and Azure, in lower case. pyarrow fetches them when it opens an object.
_STORE_KEYS = frozenset({b"etag", b"versionid", b"generation", b"last-modified", b"updated"})


def stat_version(filesystem: Any, path: str) -> Version | None:
    """Return the version of a local file; None on other file systems.

    It includes the inode and its change time, since programs can set the modification time back.

    Raises OSError if there is no such file.
    """
    if not isinstance(filesystem, pafs.LocalFileSystem):
        return None
    status = os.stat(path.encode())  # UTF-8 like Arrow, whatever the locale's encoding
    changed = (status.st_mtime_ns, status.st_ctime_ns)
    return (path, status.st_size, status.st_dev, status.st_ino, *changed)


def object_version(stream: Any, path: str) -> Version | None:
    """Return the version of an open object; None if its store reports none."""
    told = {key: value for key, value in stream.metadata().items() if key.lower() in _STORE_KEYS}
    return (path, stream.size(), *sorted(told.items())) if told else None


def file_version(filesystem: Any, path: str) -> Version | None:
    """Return the version of a file; None if its store reports none.

    Raises OSError if the file cannot be opened.
    """
    local = stat_version(filesystem, path)
    if local is not None:
        return local
    with filesystem.open_input_file(path) as stream:
        return object_version(stream, path)
