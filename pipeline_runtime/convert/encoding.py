"""How nested columns are stored: as the flat table stored them, so that only the layout differs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_runtime.sources import ParquetTable
from pipeline_runtime.sources.nested import COUNT_COLUMN, NestedLayout
from pipeline_runtime.sources.statistics import has_statistics, leaf_path

DEFAULT_CODEC = "zstd"
# As Parquet's metadata name the codecs that pyarrow also writes.
_CODECS = {
    "UNCOMPRESSED": "none",
    "LZ4_RAW": "lz4",
    **{name.upper(): name for name in ("snappy", "gzip", "brotli", "lz4", "zstd")},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """What a writer of nested files needs to know beside the schema."""

    codec: str
    dictionary_columns: tuple[str, ...]  # of the flat table
    layout: NestedLayout

    def open_writer(self, sink: Any, flat: pa.Schema) -> pq.ParquetWriter:
        """A writer of nested rows; statistics are kept where they can prune."""
        stored = self.layout.stored_schema(flat)
        statistics = [
            leaf_path(self.layout, field.name) for field in flat if has_statistics(field.type)
        ]
        encoded = {COUNT_COLUMN, *self.dictionary_columns}
        return pq.ParquetWriter(
            sink,
            stored,
            compression=self.codec,
            use_dictionary=[path for path in _leaf_paths(stored) if _column_of(path, encoded)],
            write_statistics=statistics,
        )


def choose_encoding(table: ParquetTable, layout: NestedLayout, codec: str | None) -> Encoding:
    """The flat table's own, by its first row group; `codec` wins over it."""
    columns = set(layout.columns)
    for fragment in table.fragments:
        if fragment.metadata.num_row_groups:
            group = fragment.metadata.row_group(0)
            chunks = [group.column(index) for index in range(group.num_columns)]
            found = _CODECS.get(chunks[0].compression, DEFAULT_CODEC) if chunks else DEFAULT_CODEC
            encoded = {
                _column_of(chunk.path_in_schema, columns)
                for chunk in chunks
                if chunk.has_dictionary_page
            }
            return Encoding(
                codec=codec or found,
                dictionary_columns=tuple(sorted(name for name in encoded if name)),
                layout=layout,
            )
    return Encoding(codec=codec or DEFAULT_CODEC, dictionary_columns=(), layout=layout)


def _leaf_paths(schema: pa.Schema) -> list[str]:
    """The paths of a file's leaves, by writing an empty one."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema).close()
    found = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    return [found.column(index).path for index in range(len(found.names))]


def _column_of(path: str, columns: set[str]) -> str | None:
    """The column that a leaf belongs to, its longest prefix; names may hold dots."""
    parts = path.split(".")
    names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((name for name in names if name in columns), None)
