"""Opening a Parquet file to read some of its row groups.

A file is opened once a row group, by whichever reader got it; its footer, which lists every column
chunk of the file, is fetched and parsed once a process, and looked through once for `pages`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq

from pipeline_runtime.sources.leaves import Leaf, find_leaves
from pipeline_runtime.sources.pages import OpenFile
from pipeline_runtime.sources.versions import Version, object_version, stat_version

# Of a table's footers as they are stored; parsed they take a few times as much, in every reader.
_MAX_FOOTER_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Footer:
    metadata: pq.FileMetaData
    leaves: Mapping[str, Leaf]


@dataclass(slots=True)
class Opener:
    """Opens the files of one table; threads may share it."""

    decodes_pages: bool = False  # numbers and lists of them, by `pages`
    _footers: dict[Version, _Footer] = field(default_factory=dict)
    _num_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def open(self, filesystem: Any, path: str) -> Iterator[OpenFile]:
        """A file, open while the context is.

        Raises:
            OSError: it cannot be read.
            pyarrow.ArrowInvalid: it is not Parquet.
        """
        before = stat_version(filesystem, path)
        with filesystem.open_input_file(path) as stream:
            version = self._version(filesystem, path, stream, before)
            footer = self._footers.get(version) if version else None
            metadata = footer.metadata if footer else None
            with pq.ParquetFile(stream, metadata=metadata, pre_buffer=True) as file:
                leaves = footer.leaves if footer else self._keep(version, file, stream)
                is_local = before is not None
                yield OpenFile(file=file, stream=stream, is_local=is_local, leaves=leaves)

    @property
    def num_footers(self) -> int:
        """Footers that are remembered."""
        return len(self._footers)

    @staticmethod
    def _version(filesystem: Any, path: str, stream: Any, before: Version | None) -> Version | None:
        """Return the version of the file that is open; None if it is not known.

        A local file has it if no other was put in its place while it was opened.
        """
        if before is None:
            return object_version(stream, path)
        return before if stat_version(filesystem, path) == before else None

    def _keep(
        self, version: Version | None, file: pq.ParquetFile, stream: Any
    ) -> Mapping[str, Leaf]:
        """Remember a footer and its leaves, and forget the oldest once there are too many.

        The footer of a file whose version is not known is not remembered.
        """
        metadata = file.metadata
        leaves: Mapping[str, Leaf] = {}
        if self.decodes_pages and not _is_signed(metadata, stream):
            leaves = find_leaves(metadata, file.schema_arrow)
        if version is None or metadata.serialized_size > _MAX_FOOTER_BYTES:
            return leaves
        with self._lock:
            if version in self._footers:
                return leaves
            self._footers[version] = _Footer(metadata=metadata, leaves=leaves)
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
