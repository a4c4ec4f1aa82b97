"""Opens a Parquet file to read some of its row groups.

A file is opened once per row group, by the reader of that row group. Its footer, which lists every
column chunk of the file, is fetched, parsed and searched for `pages` once per process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_runtime.sources.parquet.decoding.leaves import Leaf, find_leaves
from pipeline_runtime.sources.parquet.decoding.pages import OpenFile
from pipeline_runtime.sources.parquet.footers import Footer, read_footer
from pipeline_runtime.sources.parquet.versions import Version, object_version, stat_version

# Total size of a table's kept footers as stored; parsed, they take a few times as much. Each reader
# process keeps its own.
_MAX_FOOTER_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    footer: Footer
    schema: pa.Schema
    leaves: Mapping[str, Leaf]


@dataclass(slots=True)
class Opener:
    """Opens the files of one table. Threads may share it."""

    kernels: bool = True  # see `gather.take_rows`
    decodes_pages: bool = False  # `pages` decodes numbers and lists of numbers
    _footers: dict[Version, _Kept] = field(default_factory=dict)
    _num_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def open(self, filesystem: Any, path: str) -> Iterator[OpenFile]:
        """Open a file for the duration of the context.

        Raises:
            OSError: the file cannot be read.
            pyarrow.ArrowInvalid: the file is not Parquet.
        """
        before = stat_version(filesystem, path)
        with filesystem.open_input_file(path) as stream:
            version = self._version(filesystem, path, stream, before)
            kept = self._footers.get(version) if version else None
            footer = kept.footer if kept else read_footer(stream)
            with pq.ParquetFile(stream, metadata=footer.metadata, pre_buffer=True) as file:
                kept = kept or self._keep(version, footer, file.schema_arrow)
                yield OpenFile(
                    file=file,
                    stream=stream,
                    is_local=before is not None,
                    footer=footer,
                    schema=kept.schema,
                    leaves=kept.leaves,
                )

    @property
    def num_footers(self) -> int:
        """Number of footers in the cache."""
        return len(self._footers)

    @staticmethod
    def _version(filesystem: Any, path: str, stream: Any, before: Version | None) -> Version | None:
        """Return the version of the open file; None if it is not known.

        A local file's version is known if no other file replaced it while it was opened.
        """
        if before is None:
            return object_version(stream, path)
        return before if stat_version(filesystem, path) == before else None

    def _keep(self, version: Version | None, footer: Footer, schema: pa.Schema) -> _Kept:
        """Find a file's leaves. Cache them with its footer, and evict the oldest over the limit.

        A footer is not cached if the version of its file is not known.
        """
        leaves: Mapping[str, Leaf] = {}
        if self.decodes_pages and not footer.is_signed:
            leaves = find_leaves(footer.metadata, schema)
        kept = _Kept(footer=footer, schema=schema, leaves=leaves)
        if version is None or len(footer.tail) > _MAX_FOOTER_BYTES:
            return kept
        with self._lock:
            if version in self._footers:
                return kept
            self._footers[version] = kept
            self._num_bytes += len(footer.tail)
            while self._num_bytes > _MAX_FOOTER_BYTES:
                oldest = self._footers.pop(next(iter(self._footers)))
                self._num_bytes -= len(oldest.footer.tail)
        return kept
