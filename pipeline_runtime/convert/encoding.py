"""Chooses encodings and codecs of nested columns: the flat table's encodings, and fast codecs.

Decompression takes half of the time to read a nested table with zstd, and an eighth with lz4, whose
files are a third larger. So `choose_codecs` compresses a column with lz4, with zstd if that is very
much smaller, and not at all if neither gains much. It judges by the table's first rows. `AS_INPUT`
keeps the flat table's codec, and callers may name any codec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_runtime.sources.parquet.footers import Footer
from pipeline_runtime.sources.parquet.nested import COUNT_COLUMN, NestedLayout
from pipeline_runtime.sources.parquet.statistics import has_statistics, leaf_path

DEFAULT_CODEC = "zstd"
AUTO, AS_INPUT = "auto", "input"
# zstd is worth its time if it leaves at most a third of lz4's bytes, and lz4 if it leaves at most
# nine tenths of the uncompressed bytes.
_ZSTD_RATIO, _LZ4_RATIO = 1 / 3, 0.9
# Codecs that pyarrow can write too, by their names in Parquet's metadata.
_CODECS = {
    "UNCOMPRESSED": "none",
    "LZ4_RAW": "lz4",
    **{name.upper(): name for name in ("snappy", "gzip", "brotli", "lz4", "zstd")},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """The settings of a writer of nested files, besides the schema."""

    codec: str | Mapping[str, str]  # for all, or by the path of each leaf
    dictionary_columns: tuple[str, ...]  # of the flat table
    layout: NestedLayout

    def open_writer(self, sink: Any, flat: pa.Schema) -> pq.ParquetWriter:
        """Return a writer of nested rows; it writes statistics for columns that they can prune."""
        stored = self.layout.stored_schema(flat)
        statistics = [
            leaf_path(self.layout, field.name) for field in flat if has_statistics(field.type)
        ]
        encoded = {COUNT_COLUMN, *self.dictionary_columns}
        return pq.ParquetWriter(
            sink,
            stored,
            compression=self.codec if isinstance(self.codec, str) else dict(self.codec),
            use_dictionary=[path for path in _leaf_paths(stored) if _column_of(path, encoded)],
            write_statistics=statistics,
        )


def choose_codecs(encoding: Encoding, flat: pa.Schema, rows: pa.Table) -> Encoding:
    """Return the encoding with a codec for each leaf, by the size of nested `rows` under each."""
    sizes = {codec: _leaf_bytes(replace(encoding, codec=codec), flat, rows) for codec in _TRIED}
    chosen = {}
    for path, plain in sizes["none"].items():
        lz4, zstd = sizes["lz4"][path], sizes["zstd"][path]
        if zstd <= lz4 * _ZSTD_RATIO:
            chosen[path] = "zstd"
        else:
            chosen[path] = "lz4" if lz4 <= plain * _LZ4_RATIO else "none"
    return replace(encoding, codec=chosen)


_TRIED = ("none", "lz4", "zstd")


def _leaf_bytes(encoding: Encoding, flat: pa.Schema, rows: pa.Table) -> dict[str, int]:
    """Return the bytes of each leaf in a file of these rows."""
    sink = pa.BufferOutputStream()
    with encoding.open_writer(sink, flat) as writer:
        writer.write_table(rows, row_group_size=rows.num_rows)
    group = pq.read_metadata(pa.BufferReader(sink.getvalue())).row_group(0)
    chunks = [group.column(index) for index in range(group.num_columns)]
    return {chunk.path_in_schema: chunk.total_compressed_size for chunk in chunks}


def choose_encoding(footers: Sequence[Footer], layout: NestedLayout, codec: str) -> Encoding:
    """Return the encoding of the flat table's first row group, with its codec replaced by `codec`.

    `AS_INPUT` keeps its codec. `AUTO` keeps it too, for `choose_codecs` to replace.
    """
    asked = None if codec in (AUTO, AS_INPUT) else codec
    columns = set(layout.columns)
    for footer in footers:
        if footer.metadata.num_row_groups:
            chunks = footer.chunks(0)
            first = footer.codec(0, 0) if chunks and not footer.encrypted else None
            found = _CODECS.get(first or "", DEFAULT_CODEC)
            encoded = {
                _column_of(path, columns) for path, chunk in chunks if chunk.has_dictionary_page
            }
            return Encoding(
                codec=asked or found,
                dictionary_columns=tuple(sorted(name for name in encoded if name)),
                layout=layout,
            )
    return Encoding(codec=asked or DEFAULT_CODEC, dictionary_columns=(), layout=layout)


def _leaf_paths(schema: pa.Schema) -> list[str]:
    """Return the paths of a file's leaves, by writing an empty file."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema).close()
    found = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    return [found.column(index).path for index in range(len(found.names))]


def _column_of(path: str, columns: set[str]) -> str | None:
    """Return the column that a leaf belongs to: its longest prefix, as names may hold dots."""
    parts = path.split(".")
    names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((name for name in names if name in columns), None)
