"""Decodes numbers and lists of numbers from Parquet pages with compiled kernels.

A table with user sequences spends most of its reading time on lists: Arrow turns the levels of
every item into 16-bit numbers, and these into offsets, one by one. The kernels look at 64 levels at
a time, recognise a page without nulls by the single run of its definition levels, and copy values
as they are. Plain numbers gain less, but a table has many such columns, and one call without
Python's lock decodes all of them.

    leaves          finds the columns that the kernels can decode, from the footer, once per file
    OpenFile        reads a row group: these columns by `row_group`, or part by part by
                    `chunk_windows` if the caller limits the rows; all others by pyarrow

The result equals pyarrow's bit for bit. If a page holds an unknown encoding or invalid bytes,
pyarrow reads its column, or reports what is wrong with it. `pipelineOptions.debug.pageDecoding`
turns decoding by kernels off; without numba it is always off.

`read_rows` reads some rows of a row group, and skips the pages that hold none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_runtime.kernels import select
from pipeline_runtime.sources.gather import Int64s, take_rows
from pipeline_runtime.sources.parquet.decoding.chunk_pages import PageError
from pipeline_runtime.sources.parquet.decoding.chunk_windows import decode_windows
from pipeline_runtime.sources.parquet.decoding.codecs import known_codecs
from pipeline_runtime.sources.parquet.decoding.leaves import Leaf, Stored
from pipeline_runtime.sources.parquet.decoding.row_group import Marks, decode_columns
from pipeline_runtime.sources.parquet.footers import Footer

# Two chunks with a smaller gap are read in one request: reading the gap costs less than a round
# trip to a store.
_MAX_HOLE_BYTES = 1 << 20
# Encodings that the kernels decode. Some writers list BIT_PACKED for levels that do not exist.
_ENCODINGS = frozenset({"PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY"})
# In smaller chunks, the calls from Python take longer than pyarrow does.
_MIN_VALUES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFile:
    """An open file, and its columns that the kernels can decode."""

    file: pq.ParquetFile
    stream: Any  # pa.NativeFile over the same bytes
    is_local: bool
    footer: Footer
    schema: pa.Schema  # with which pyarrow reads the file
    leaves: Mapping[str, Leaf] = field(default_factory=dict)

    def read_row_group(
        self,
        row_group: int,
        names: Sequence[str],
        wanted: Marks | None = None,
    ) -> pa.Table:
        """Return columns of a row group, in the requested order. Raises the errors of pyarrow.

        Args:
            wanted: see `decode_columns`.
        """
        chunks = self._chunks(row_group, names)
        kernels = select(bool(chunks), sum(chunk.num_values for chunk in chunks.values()))
        if kernels is None:
            return self._by_arrow(row_group, names)
        columns: dict[str, Any] = {}
        with self._fetching(chunks) as fetched:
            rest = [name for name in names if name not in chunks]
            if rest:
                columns |= _columns(self._by_arrow(row_group, rest))
            columns |= decode_columns(self.leaves, fetched(), kernels, wanted)
        left = [name for name in names if name not in columns]
        if left:
            columns |= _columns(self._by_arrow(row_group, left))
        return pa.table({name: columns[name] for name in names})

    def read_rows(
        self, row_group: int, names: Sequence[str], rows: Int64s, *, kernels: bool = True
    ) -> pa.Table:
        """Return the rows at the given positions, which ascend. Pages without them are skipped.

        `kernels` is that of `take_rows`.
        """
        wanted = np.zeros(self.file.metadata.row_group(row_group).num_rows, dtype=np.bool_)
        wanted[rows] = True
        table = self.read_row_group(row_group, names, wanted=wanted)
        taken = (take_rows(table.column(name), rows, kernels=kernels) for name in names)
        return pa.table(dict(zip(names, taken, strict=True)))

    def iter_row_group(
        self, row_group: int, names: Sequence[str], max_rows: int
    ) -> Iterator[pa.Table]:
        """Yield columns of a row group, `max_rows` rows at a time, to bound the memory in use."""
        chunks = self._chunks(row_group, names)
        kernels = select(bool(chunks), sum(chunk.num_values for chunk in chunks.values()))
        if kernels is None:
            yield from self._windows_by_arrow(row_group, names, max_rows)
            return
        rest = [name for name in names if name not in chunks]
        columns = [
            _else_by_arrow(
                decode_windows(self.leaves[name], stored, kernels, max_rows),
                partial(self._column_by_arrow, row_group, name, max_rows),
            )
            for name, stored in self._fetch(chunks).items()
        ]
        others = self._windows_by_arrow(row_group, rest, max_rows) if rest else repeat(None)
        for *decoded, table in zip(*columns, others, strict=False):
            made = dict(zip(chunks, decoded, strict=True))
            made |= _columns(table) if table is not None else {}
            yield pa.table({name: made[name] for name in names})

    def _column_by_arrow(self, row_group: int, name: str, max_rows: int) -> Iterator[Any]:
        windows = self._windows_by_arrow(row_group, [name], max_rows)
        return (window.column(name) for window in windows)

    def _windows_by_arrow(
        self, row_group: int, names: Sequence[str], max_rows: int
    ) -> Iterator[pa.Table]:
        with self._explaining(row_group, names):
            batches = self.file.iter_batches(
                batch_size=max_rows, row_groups=[row_group], columns=list(names), use_threads=False
            )
            for batch in batches:
                yield pa.Table.from_batches([batch])

    def _by_arrow(self, row_group: int, names: Sequence[str]) -> pa.Table:
        with self._explaining(row_group, names):
            return self.file.read_row_group(row_group, columns=list(names), use_threads=False)

    @contextmanager
    def _explaining(self, row_group: int, names: Sequence[str]) -> Iterator[None]:
        """Name the column that pyarrow cannot read, if the footer shows which column it is."""
        try:
            yield
        except (OSError, pa.ArrowException):
            self.footer.check_columns(row_group, names)
            raise

    def _chunks(self, row_group: int, names: Sequence[str]) -> dict[str, _Chunk]:
        """Return the chunks, by column name, that the kernels decode."""
        metadata, codecs = self.file.metadata.row_group(row_group), known_codecs()
        found = {}
        for name in names:
            leaf = self.leaves.get(name)
            if leaf is not None:
                chunk = metadata.column(leaf.index)
                is_known = _ENCODINGS.issuperset(chunk.encodings)
                if is_known and chunk.num_values >= _MIN_VALUES:
                    # Not pyarrow's property, which aborts the process if the codec is unknown.
                    codec = self.footer.sound_codec(row_group, leaf.index)
                    if codec in codecs:
                        found[name] = _Chunk.of(chunk, codec, metadata.num_rows)
        return found

    @contextmanager
    def _fetching(self, chunks: Mapping[str, _Chunk]) -> Iterator[Callable[[], dict[str, Stored]]]:
        """Yield a function that returns the chunks' bytes; a store is read in the background."""
        if self.is_local:
            yield partial(self._fetch, chunks)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="lastmile-fetch") as pool:
            yield pool.submit(self._fetch, chunks).result

    def _read(self, first: int, num_bytes: int) -> pa.Buffer:
        if self.is_local:
            self.stream.seek(first)
            return self.stream.read_buffer(num_bytes)  # in memory of Arrow's pool
        # No seek: pyarrow reads other columns from the same stream meanwhile.
        return pa.py_buffer(self.stream.read_at(num_bytes, first))

    def _fetch(self, chunks: Mapping[str, _Chunk]) -> dict[str, Stored]:
        """Read the chunks' bytes; one read covers chunks that are close together."""
        found: dict[str, Stored] = {}
        for first, last, names in _merge(chunks):
            data = self._read(first, last - first)
            for name in names:
                chunk = chunks[name]
                found[name] = Stored(
                    data=data[chunk.start - first : chunk.stop - first],
                    codec=chunk.codec,
                    num_rows=chunk.num_rows,
                    num_values=chunk.num_values,
                    uncompressed_bytes=chunk.uncompressed_bytes,
                )
        return {name: found[name] for name in chunks}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """A column chunk's place in the file, and its properties from the footer."""

    start: int
    stop: int
    codec: str
    num_rows: int
    num_values: int
    uncompressed_bytes: int

    @classmethod
    def of(cls, chunk: Any, codec: str, num_rows: int) -> _Chunk:
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and chunk.dictionary_page_offset:
            start = min(start, chunk.dictionary_page_offset)
        return cls(
            start=start,
            stop=start + chunk.total_compressed_size,
            codec=codec,
            num_rows=num_rows,
            num_values=chunk.num_values,
            uncompressed_bytes=chunk.total_uncompressed_size,
        )


def _else_by_arrow(windows: Iterator[Any], by_arrow: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Yield the decoded windows; from the first that fails on, yield pyarrow's windows instead."""
    num_made = 0
    try:
        for window in windows:
            yield window
            num_made += 1
    except (PageError, pa.ArrowException, OSError):
        yield from islice(by_arrow(), num_made, None)


def _columns(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    return dict(zip(table.column_names, table.columns, strict=True))


def _merge(chunks: Mapping[str, _Chunk]) -> list[tuple[int, int, list[str]]]:
    """Group chunks into spans of the file, joining those with small gaps between them.

    Returns the first byte of each span, the byte after its last, and the names of its chunks.
    """
    merged: list[tuple[int, int, list[str]]] = []
    for name, chunk in sorted(chunks.items(), key=lambda item: item[1].start):
        if merged and chunk.start - merged[-1][1] <= _MAX_HOLE_BYTES:
            first, last, names = merged[-1]
            merged[-1] = (first, max(last, chunk.stop), [*names, name])
        else:
            merged.append((chunk.start, chunk.stop, [name]))
    return merged
