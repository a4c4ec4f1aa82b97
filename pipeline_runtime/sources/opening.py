"""Opening a Parquet file to read some of its row groups.

A file is opened once a row group, by whichever reader got it; its footer, which lists every column
chunk of the file, is fetched and parsed once a process, and looked through once for `pages`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow.fs as pafs
import pyarrow.parquet as pq

from pipeline_runtime.sources.leaves import Leaf, find_leaves
from pipeline_runtime.sources.pages import OpenFile

# Of a table's footers as they are stored; parsed they take a few times as much, in every reader.
_MAX_FOOTER_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Footer:
    metadata: pq.FileMetaData
    leaves: Mapping[str, Leaf]


# A file's path, size and, on a local file system, time of change in nanoseconds: another one's
# footer is another. On an object store a file of the same name and size is taken for the same.
_Key = tuple[str, int, int]


@dataclass(slots=True)
class Opener:
    """Opens the files of one table; threads may share it."""

    decodes_pages: bool = False  # numbers and lists of them, by `pages`
    _footers: dict[_Key, _Footer] = field(default_factory=dict)
    _num_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def open(self, filesystem: Any, path: str) -> Iterator[OpenFile]:
        """A file, open while the context is.

        Raises:
            OSError: it cannot be read.
            pyarrow.ArrowInvalid: it is not Parquet.
        """
        is_local = isinstance(filesystem, pafs.LocalFileSystem)
        with filesystem.open_input_file(path) as stream:
            key = (path, stream.size(), _mtime(path) if is_local else 0)
            footer = self._footers.get(key)
            metadata = footer.metadata if footer else None
            with pq.ParquetFile(stream, metadata=metadata, pre_buffer=True) as file:
                leaves = footer.leaves if footer else self._keep(key, file, stream)
                yield OpenFile(file=file, stream=stream, is_local=is_local, leaves=leaves)

    @property
    def num_footers(self) -> int:
        """Footers that are remembered."""
        return len(self._footers)

    def _keep(self, key: _Key, file: pq.ParquetFile, stream: Any) -> Mapping[str, Leaf]:
        """Remember a footer, and what it has for `pages`; the oldest go once there are too many."""
        metadata = file.metadata
        leaves: Mapping[str, Leaf] = {}
        if self.decodes_pages and not _is_signed(metadata, stream):
            leaves = find_leaves(metadata, file.schema_arrow)
        if metadata.serialized_size > _MAX_FOOTER_BYTES:
            return leaves
        with self._lock:
            if key in self._footers:
                return leaves
            self._footers[key] = _Footer(metadata=metadata, leaves=leaves)
            self._num_bytes += metadata.serialized_size
            while self._num_bytes > _MAX_FOOTER_BYTES:
                oldest = self._footers.pop(next(iter(self._footers)))
                self._num_bytes -= oldest.metadata.serialized_size
        return leaves


def _is_signed(metadata: pq.FileMetaData, stream: Any) -> bool:
    """Whether columns may be encrypted: pyarrow ends the process if it is asked for such a chunk.

    The footer of such a file is followed by its signature, which its length includes.
    """
    num_bytes = int.from_bytes(stream.read_at(4, stream.size() - 8), "little")
    return bool(num_bytes != metadata.serialized_size)


def _mtime(path: str) -> int:
    return os.stat(path).st_mtime_ns
