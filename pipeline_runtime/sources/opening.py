"""Opening a Parquet file to read some of its row groups.

A file is opened once a row group, by whichever reader got it; its footer, which lists every column
chunk of the file, is fetched and parsed once a process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow.fs as pafs
import pyarrow.parquet as pq

# Of a table's footers as they are stored; parsed they take a few times as much, in every reader.
_MAX_FOOTER_BYTES = 8 << 20

# A file's path, size and, on a local file system, time of change in nanoseconds: another one's
# footer is another. On an object store a file of the same name and size is taken for the same.
_Key = tuple[str, int, int]


@dataclass(slots=True)
class Opener:
    """Opens the files of one table; threads may share it."""

    _footers: dict[_Key, pq.FileMetaData] = field(default_factory=dict)
    _num_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def open(self, filesystem: Any, path: str) -> Iterator[pq.ParquetFile]:
        """A file, open while the context is.

        Raises:
            OSError: it cannot be read.
            pyarrow.ArrowInvalid: it is not Parquet.
        """
        is_local = isinstance(filesystem, pafs.LocalFileSystem)
        with filesystem.open_input_file(path) as stream:
            key = (path, stream.size(), _mtime(path) if is_local else 0)
            footer = self._footers.get(key)
            with pq.ParquetFile(stream, metadata=footer, pre_buffer=True) as file:
                if footer is None:
                    self._keep(key, file.metadata)
                yield file

    @property
    def num_footers(self) -> int:
        """Footers that are remembered."""
        return len(self._footers)

    def _keep(self, key: _Key, footer: pq.FileMetaData) -> None:
        """Remember a footer; the oldest ones go once there are too many."""
        if footer.serialized_size > _MAX_FOOTER_BYTES:
            return
        with self._lock:
            if key in self._footers:
                return
            self._footers[key] = footer
            self._num_bytes += footer.serialized_size
            while self._num_bytes > _MAX_FOOTER_BYTES:
                oldest = self._footers.pop(next(iter(self._footers)))
                self._num_bytes -= oldest.serialized_size


def _mtime(path: str) -> int:
    return os.stat(path).st_mtime_ns
