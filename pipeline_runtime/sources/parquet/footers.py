"""Reads a Parquet file's footer, and checks it before pyarrow interprets it.

Some of pyarrow's properties of a column chunk abort the process (a C++ exception that nothing
catches) if the footer is not as pyarrow expects it: an encrypted chunk, an unknown codec, or
statistics of a wrong length. So this module inspects the footer's bytes first.

    read_tail     reads the bytes, with as many requests as pyarrow would need
    Footer        lists encrypted columns, finds a chunk's codec, and checks its statistics

A chunk is located by the encoded bytes of its sizes, which pyarrow reports safely. This is a search
in C; a walk through all chunks in Python would cost 10 microseconds per chunk. A chunk that is not
found is left to pyarrow's readers, which raise proper errors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_runtime.sources.parquet.thrift import (
    Struct,
    ThriftError,
    read_struct,
    write_integer,
)

_TAIL_BYTES = 64 << 10  # pyarrow's first read of a footer
_END_BYTES = 8  # the length of the footer, and the magic
_MAGICS = (b"PAR1", b"PARE")
# CompressionCodec of parquet.thrift, by pyarrow's names.
_CODECS = (
    *("UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI"),
    *("LZ4_HADOOP", "ZSTD", "LZ4"),
)
UNKNOWN = "UNKNOWN"
_SOUND_CODECS = (*_CODECS, UNKNOWN, None)
_MAX_CODEC_BYTES = 5  # a varint of 32 bits
# Fields of the structs of parquet.thrift.
_ROW_GROUPS, _COLUMNS, _META, _CRYPTO, _COLUMN_KEY, _KEY_PATH = 4, 1, 3, 8, 2, 1
_PATH, _CODEC, _DATA_PAGE_OFFSET, _STATISTICS = 3, 4, 9, 12
_BOUNDS = (1, 2, 5, 6)  # of Statistics: max, min (deprecated), max_value, min_value
_NEXT_I32, _NEXT_I64 = b"\x15", b"\x16"  # header of the next field, by its type
# Bytes per value of the physical types of fixed size.
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}


class EncryptedColumn(pa.ArrowInvalid):  # type: ignore[misc]
    """The column is encrypted, and there is no key to read it with."""


@dataclass(slots=True, kw_only=True)
class Footer:
    """The footer of one file."""

    # The footer, its length and the magic; pyarrow opens it as a file without row groups.
    tail: bytes = field(repr=False)
    metadata: pq.FileMetaData
    is_signed: bool  # some columns are encrypted
    encrypted: frozenset[str]  # paths of the encrypted columns
    paths: tuple[str, ...]  # of all leaves
    _found_at: int = field(default=0, init=False)
    # By row group, for each leaf: 0, or 1 and the place of its codec in `_SOUND_CODECS`.
    _codecs: dict[int, bytearray] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, tail: bytes, metadata: pq.FileMetaData) -> Footer:
        """Inspect a footer.

        Raises:
            ArrowInvalid: the footer is signed and broken.
            UnicodeDecodeError: the name of a column is not valid UTF-8.
        """
        # In a file with encrypted columns, a signature follows the footer.
        is_signed = _footer_bytes(tail) != metadata.serialized_size
        encrypted = _encrypted_columns(tail) if is_signed else frozenset[str]()
        schema = metadata.schema
        paths = tuple(schema.column(leaf).path for leaf in range(metadata.num_columns))
        return cls(
            tail=tail, metadata=metadata, is_signed=is_signed, encrypted=encrypted, paths=paths
        )

    def leaves(self, name: str) -> list[int]:
        """Return the indices of the leaves of a column of the table."""
        return [leaf for leaf, path in enumerate(self.paths) if _is_of(path, name)]

    def chunks(self, row_group: int) -> list[tuple[str, pq.ColumnChunkMetaData]]:
        """Return the paths and chunks of a row group's columns, without the encrypted ones.

        The paths come from the schema, as readers use them: a path stored in a chunk may not be
        valid UTF-8.
        """
        group = self.metadata.row_group(row_group)
        hidden = {leaf for path in self.encrypted for leaf in self.leaves(path)}
        shown = [leaf for leaf in range(group.num_columns) if leaf not in hidden]
        return [(self.paths[leaf], group.column(leaf)) for leaf in shown]

    def check_columns(self, row_group: int, names: Collection[str]) -> None:
        """Raise ArrowInvalid with name and reason if one of these columns cannot be read."""
        for name in names:
            if any(_is_of(path, name) for path in self.encrypted):
                raise EncryptedColumn(f"column {name!r} is encrypted")
            if any(self.codec(row_group, leaf) == UNKNOWN for leaf in self.leaves(name)):
                raise pa.ArrowInvalid(
                    f"column {name!r} is compressed by a codec that this release does not know"
                )

    def codec(self, row_group: int, leaf: int) -> str | None:
        """Return a chunk's codec by pyarrow's name, or UNKNOWN; None if the chunk is not found."""
        fields = self._find(row_group, leaf)
        return None if fields is None else _codec_of(fields)

    def sound_codec(self, row_group: int, leaf: int) -> str | None:
        """Return the codec like `codec`; None also if the chunk's statistics are not sound."""
        known = self._codecs.setdefault(row_group, bytearray(len(self.paths)))
        if not known[leaf]:
            fields = self._find(row_group, leaf)
            is_sound = fields is not None and self._is_sound(fields, leaf)
            codec = _codec_of(fields) if fields is not None and is_sound else None
            known[leaf] = 1 + _SOUND_CODECS.index(codec)
        return _SOUND_CODECS[known[leaf] - 1]

    def has_sound_statistics(self, leaves: Collection[int]) -> bool:
        """Return whether pyarrow can safely read the statistics of these leaves.

        This is False if a chunk is not found.
        """
        groups = range(self.metadata.num_row_groups)
        if any(self.paths[leaf] in self.encrypted for leaf in leaves):
            return False
        found = ((self._find(group, leaf), leaf) for group in groups for leaf in leaves)
        return all(fields is not None and self._is_sound(fields, leaf) for fields, leaf in found)

    def _is_sound(self, fields: Struct, leaf: int) -> bool:
        statistics, column = fields.get(_STATISTICS, {}), self.metadata.schema.column(leaf)
        width = _WIDTHS.get(column.physical_type, column.length or None)
        if not isinstance(statistics, dict):
            return False
        bounds = [statistics[name] for name in _BOUNDS if name in statistics]
        return all(isinstance(b, bytes) and (width is None or len(b) == width) for b in bounds)

    def _find(self, row_group: int, leaf: int) -> Struct | None:
        """Return the fields of a chunk's metadata from its codec on; None if it is not found.

        In the metadata, the sizes follow the codec, and the last part of the column's path precedes
        it. The search starts at the last match, since callers ask for chunks roughly in file order.
        """
        chunk = self.metadata.row_group(row_group).column(leaf)
        sizes = chunk.num_values, chunk.total_uncompressed_size, chunk.total_compressed_size
        wanted = b"".join(_NEXT_I64 + write_integer(size) for size in sizes)
        name = self.paths[leaf].rpartition(".")[2].encode() + _NEXT_I32
        for first in (self._found_at, 0):
            at = self.tail.find(wanted, first)
            while at >= 0:
                for codec_at in range(at - 1, at - 1 - _MAX_CODEC_BYTES, -1):
                    if self.tail.endswith(name, 0, codec_at):
                        fields = self._fields(codec_at)
                        # Chunks of other row groups may have the same sizes.
                        if fields.get(_DATA_PAGE_OFFSET) == chunk.data_page_offset:
                            self._found_at = at
                            return fields
                at = self.tail.find(wanted, at + 1)
        return None

    def _fields(self, codec_at: int) -> Struct:
        try:
            return read_struct(self.tail, codec_at - 1, last=_CODEC - 1)[0]
        except ThriftError:
            return {}


def digest_footer(footer: Footer) -> str:
    """Return a SHA-256 of a file's footer, which is the same for a copied file."""
    if footer.is_signed:  # pyarrow aborts the process when it writes one
        return hashlib.sha256(footer.tail).hexdigest()
    sink = pa.BufferOutputStream()
    footer.metadata.write_metadata_file(sink)
    return hashlib.sha256(sink.getvalue()).hexdigest()


def _codec_of(fields: Struct) -> str:
    number = fields[_CODEC]
    is_known = isinstance(number, int) and 0 <= number < len(_CODECS)
    return _CODECS[cast(int, number)] if is_known else UNKNOWN


def read_footer(stream: Any) -> Footer:
    """Read a file's footer.

    Raises OSError if the file cannot be read; OSError or ArrowException if it is not Parquet.
    """
    tail = read_tail(stream)
    check_encryption(tail)
    return Footer.of(tail, pq.read_metadata(pa.BufferReader(tail)))


def read_tail(stream: Any) -> bytes:
    """Return a file's footer, its length and the magic; arbitrary bytes if it is not Parquet.

    This only reads; nothing is parsed. Raises OSError if the file cannot be read.
    """
    size = stream.size()
    tail = stream.read_at(min(size, _TAIL_BYTES), size - min(size, _TAIL_BYTES))
    num_bytes = _footer_bytes(tail) + _END_BYTES
    if tail[-4:] in _MAGICS and num_bytes <= size:
        more = num_bytes > len(tail)
        tail = stream.read_at(num_bytes, size - num_bytes) if more else tail[-num_bytes:]
    return bytes(tail)


def check_encryption(tail: bytes) -> None:
    """Raise ArrowInvalid for a footer that is encrypted as a whole."""
    if tail.endswith(b"PARE"):
        raise pa.ArrowInvalid("the file is encrypted, and there is no key to read it with")


def _is_of(path: str, name: str) -> bool:
    """Return whether a leaf belongs to a column of the table."""
    return path == name or path.startswith(f"{name}.")


def _footer_bytes(tail: bytes) -> int:
    return int.from_bytes(tail[-_END_BYTES:-4], "little")


def _encrypted_columns(tail: bytes) -> frozenset[str]:
    """Return the paths of encrypted columns in a footer that is not encrypted itself."""
    try:
        fields, _ = read_struct(tail, 0)
        groups = cast(list[dict[int, Any]], fields.get(_ROW_GROUPS, []))
        chunks = [chunk for group in groups for chunk in group[_COLUMNS] if _CRYPTO in chunk]
        paths = [
            key[_KEY_PATH] if (key := chunk[_CRYPTO].get(_COLUMN_KEY)) else chunk[_META][_PATH]
            for chunk in chunks
        ]
        return frozenset(b".".join(path).decode() for path in paths)
    except (ThriftError, LookupError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise pa.ArrowInvalid(f"the footer is broken: {error}") from error
