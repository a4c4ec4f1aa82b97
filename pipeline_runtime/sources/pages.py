"""Numbers, and lists of numbers, decoded from Parquet's pages by compiled kernels.

Where the time of a table with user sequences goes is in its lists: Arrow turns the levels of every
item into 16-bit numbers and those into offsets, one by one. Here 64 levels are looked at together,
a page without nulls is told by the single run that its definition levels are, and values are copied
as they lie. Numbers gain less each, but a table has many columns of them, and all are decoded by
one call without Python's lock.

    leaves          which columns of a file can be decoded so, from its footer; once a file
    OpenFile        reads a row group: those columns by `columns`, part by part (`windows`) where it
                    is longer than a piece, all others by pyarrow

What is decoded is what pyarrow gives, bit for bit. Whatever a page holds that is not known here (an
encoding, bytes that cannot be) leaves its column to pyarrow, which reads it or says what is wrong
with it. `pipelineOptions.pageDecoding` switches it off; without numba it never is on.

Of some of a row group's rows (`read_rows`) the pages are left out that have no others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
from pipeline_runtime.sources.codecs import known_codecs
from pipeline_runtime.sources.columns import Marks, decode_columns
from pipeline_runtime.sources.footers import Footer
from pipeline_runtime.sources.gather import Int64s, take_rows
from pipeline_runtime.sources.leaves import Leaf, Stored
from pipeline_runtime.sources.page_headers import PageError
from pipeline_runtime.sources.windows import decode_windows

# Bytes between two chunks that are read along with them: less than a round trip to a store costs.
_MAX_HOLE_BYTES = 1 << 20
# What a chunk's pages may hold; BIT_PACKED some writers say of levels that there are none of.
_ENCODINGS = frozenset({"PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY"})
# With fewer in a chunk, calls from Python take longer than pyarrow does.
_MIN_VALUES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFile:
    """A file that is open, and the columns of it that are decoded here; perhaps none."""

    file: pq.ParquetFile
    stream: Any  # pa.NativeFile over the same bytes
    is_local: bool
    footer: Footer
    leaves: Mapping[str, Leaf] = field(default_factory=dict)

    def read_row_group(
        self,
        row_group: int,
        names: Sequence[str],
        folded: Collection[str] = (),
        wanted: Marks | None = None,
    ) -> pa.Table:
        """A row group's columns, in the order asked for. Raises as pyarrow does.

        Args:
            folded: of lists, of which equal neighbours may stand once, as a dictionary's values.
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
            columns |= decode_columns(self.leaves, fetched(), kernels, folded, wanted)
        left = [name for name in names if name not in columns]
        if left:
            columns |= _columns(self._by_arrow(row_group, left))
        return pa.table({name: columns[name] for name in names})

    def read_rows(
        self, row_group: int, names: Sequence[str], rows: Int64s, *, kernels: bool = True
    ) -> pa.Table:
        """The same of some rows, by their places, which ascend; pages without any are left out.

        `kernels` as in `take_rows`.
        """
        wanted = np.zeros(self.file.metadata.row_group(row_group).num_rows, dtype=np.bool_)
        wanted[rows] = True
        table = self.read_row_group(row_group, names, wanted=wanted)
        taken = (take_rows(table.column(name), rows, kernels=kernels) for name in names)
        return pa.table(dict(zip(names, taken, strict=True)))

    def iter_row_group(
        self, row_group: int, names: Sequence[str], max_rows: int
    ) -> Iterator[pa.Table]:
        """The same, `max_rows` rows at a time; about as many are held in memory."""
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
        """Name the column that pyarrow cannot read, where the footer shows which one it is."""
        try:
            yield
        except (OSError, pa.ArrowException):
            self.footer.check_columns(row_group, names)
            raise

    def _chunks(self, row_group: int, names: Sequence[str]) -> dict[str, _Chunk]:
        """What of the columns is decoded here, by name."""
        metadata, codecs = self.file.metadata.row_group(row_group), known_codecs()
        found = {}
        for name in names:
            leaf = self.leaves.get(name)
            if leaf is not None:
                chunk = metadata.column(leaf.index)
                is_known = _ENCODINGS.issuperset(chunk.encodings)
                if is_known and chunk.num_values >= _MIN_VALUES:
                    # Not of pyarrow, which ends the process over a codec that it does not know.
                    codec = self.footer.sound_codec(row_group, leaf.index)
                    if codec in codecs:
                        found[name] = _Chunk.of(chunk, codec, metadata.num_rows)
        return found

    @contextmanager
    def _fetching(self, chunks: Mapping[str, _Chunk]) -> Iterator[Callable[[], dict[str, Stored]]]:
        """What gives the chunks' bytes; from a store they come while the body does other things."""
        if self.is_local:
            yield partial(self._fetch, chunks)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="lastmile-fetch") as pool:
            yield pool.submit(self._fetch, chunks).result

    def _read(self, first: int, num_bytes: int) -> pa.Buffer:
        if self.is_local:
            self.stream.seek(first)
            return self.stream.read_buffer(num_bytes)  # in memory that Arrow keeps
        # A stream's place is everybody's, and pyarrow reads other columns meanwhile.
        return pa.py_buffer(self.stream.read_at(num_bytes, first))

    def _fetch(self, chunks: Mapping[str, _Chunk]) -> dict[str, Stored]:
        """The chunks with their bytes; those that lie close together are read at once."""
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
    """Where a leaf's chunk of a row group lies in the file, and what the footer says of it."""

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
    """The windows; from one on that cannot be decoded here, those of pyarrow."""
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
    """Spans of the file that hold them, with what lies between where that is little: first byte,
    the one after the last, and whose chunks are inside.
    """
    merged: list[tuple[int, int, list[str]]] = []
    for name, chunk in sorted(chunks.items(), key=lambda item: item[1].start):
        if merged and chunk.start - merged[-1][1] <= _MAX_HOLE_BYTES:
            first, last, names = merged[-1]
            merged[-1] = (first, max(last, chunk.stop), [*names, name])
        else:
            merged.append((chunk.start, chunk.stop, [name]))
    return merged
