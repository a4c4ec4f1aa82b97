"""Reads the positions of deleted rows: position delete files, and deletion vectors.

The planner counts the rows that remain in each row group. A reader then skips the others as it
skips rows of a filter: pages that hold none of the wanted rows are not decoded. A delete file that
many data files share is opened once per process.
"""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel

from pipeline_runtime.errors import SourceError
from pipeline_runtime.sources.gather import Int64s

# Positions that a process keeps, at 8 bytes each; the rest is read again when it is needed.
_MAX_KEPT_BYTES = 128 << 20
# Rows of a position delete file that are in memory at once.
_BATCH_ROWS = 1 << 18
# Field ids that the specification reserves for the columns of a position delete file.
_PATH_ID, _POSITION_ID = b"2147483546", b"2147483545"
_PUFFIN_MAGIC, _VECTOR_MAGIC = b"PFA1", b"\xd1\xd3\x39\x64"
_VECTOR_TYPE = "deletion-vector-v1"
_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFile:
    """A file with positions of deleted rows.

    Attributes:
        uri: the file, as the table's metadata name it.
        store, path: the key of its file system among the table's, and the path on it.
        is_vectors: True for deletion vectors in a Puffin file, False for Parquet.
    """

    uri: str
    store: str
    path: str
    is_vectors: bool


class _Blob(BaseModel):
    type: str
    offset: int
    length: int
    properties: dict[str, str] = {}


class _Footer(BaseModel):
    blobs: list[_Blob]


@dataclass(slots=True)
class DeleteReader:
    """Finds the deleted positions of data files. Threads may share it; not sent to workers.

    Attributes:
        num_opened: number of times that a delete file was opened.
    """

    num_opened: int = 0
    _kept: dict[str, Mapping[str, Int64s]] = field(default_factory=dict)
    _num_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def find(
        self, data_file: str, deletes: Sequence[DeleteFile], stores: Mapping[str, Any]
    ) -> Int64s:
        """Return the deleted positions of a data file, ascending, each once.

        Args:
            data_file: its URI, as the table's metadata name it.
            deletes: the delete files that apply to it.
            stores: the table's file systems.

        Raises SourceError if a delete file is gone or broken.
        """
        found = [self._read(each, stores).get(data_file, _NONE) for each in deletes]
        found = [positions for positions in found if len(positions)]
        if len(found) == 1:
            return found[0]
        return np.unique(np.concatenate(found)) if found else _NONE

    def _read(self, delete: DeleteFile, stores: Mapping[str, Any]) -> Mapping[str, Int64s]:
        with self._lock:  # held while it is read, or each thread would read it
            kept = self._kept.get(delete.uri)
            if kept is None:
                kept = _read_file(delete, stores[delete.store])
                self.num_opened += 1
                self._kept[delete.uri] = kept
                self._num_bytes += _size(kept)
                while self._num_bytes > _MAX_KEPT_BYTES and len(self._kept) > 1:
                    self._num_bytes -= _size(self._kept.pop(next(iter(self._kept))))
            return kept


def _size(positions: Mapping[str, Int64s]) -> int:
    return sum(each.nbytes for each in positions.values())


def _read_file(delete: DeleteFile, filesystem: Any) -> Mapping[str, Int64s]:
    read: Callable[[Any], Mapping[str, Int64s]] = _read_vectors
    if not delete.is_vectors:
        read = _read_positions
    try:
        with filesystem.open_input_file(delete.path) as stream:
            return read(stream)
    except FileNotFoundError as error:
        raise SourceError(
            f"{delete.uri}: the delete file is gone, although the table's snapshot names it. "
            "Restore it, or read a newer snapshot"
        ) from error
    except (OSError, pa.ArrowException, ValueError, LookupError) as error:
        raise SourceError(
            f"{delete.uri}: cannot read the delete file: {error}. Restore it, or compact the table"
        ) from error


def _read_positions(stream: Any) -> Mapping[str, Int64s]:
    """Read a position delete file; memory holds its positions, and some rows' paths."""
    parts: dict[str, list[Int64s]] = {}
    with pq.ParquetFile(stream, pre_buffer=True, read_dictionary=["file_path"]) as file:
        names = {(f.metadata or {}).get(b"PARQUET:field_id"): f.name for f in file.schema_arrow}
        columns = [names.get(_PATH_ID, "file_path"), names.get(_POSITION_ID, "pos")]
        for batch in file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False):
            paths = batch.column(columns[0])
            if not pa.types.is_dictionary(paths.type):
                paths = paths.dictionary_encode()
            positions = batch.column(columns[1]).cast(pa.int64()).to_numpy(zero_copy_only=False)
            codes = paths.indices.to_numpy(zero_copy_only=False)
            for code in pc.unique(paths.indices).to_pylist():
                path = paths.dictionary[code].as_py()
                parts.setdefault(path, []).append(positions[codes == code])
    return {path: np.unique(np.concatenate(found)) for path, found in parts.items()}


def _read_vectors(stream: Any) -> Mapping[str, Int64s]:
    """Read the deletion vectors of a Puffin file, by their data files.

    The format: https://iceberg.apache.org/puffin-spec/#deletion-vector-v1-blob-type
    """
    from pyroaring import BitMap64

    size = stream.size()
    end = stream.read_at(12, size - 12)
    if stream.read_at(4, 0) != _PUFFIN_MAGIC or end[-4:] != _PUFFIN_MAGIC:
        raise ValueError("it is no Puffin file")
    if end[4] & 1:
        raise ValueError("its footer is compressed")
    num_bytes = int.from_bytes(end[:4], "little")
    footer = _Footer.model_validate_json(stream.read_at(num_bytes, size - 12 - num_bytes))
    found: dict[str, Int64s] = {}
    for blob in footer.blobs:
        if blob.type != _VECTOR_TYPE:
            continue
        content = stream.read_at(blob.length, blob.offset)
        body, checksum = content[4:-4], int.from_bytes(content[-4:], "big")
        if body[:4] != _VECTOR_MAGIC or zlib.crc32(body) != checksum:
            raise ValueError("a deletion vector's checksum does not match its bytes")
        positions = np.array(BitMap64.deserialize(bytes(body[4:])), dtype=np.int64)
        found[blob.properties["referenced-data-file"]] = positions
    return found


def digest_positions(positions: Int64s) -> str:
    """Return a digest of the deleted positions of a row group; empty if there are none."""
    return hashlib.sha256(positions.tobytes()).hexdigest() if len(positions) else ""


def live_rows(num_stored: int, deleted: Int64s) -> Int64s:
    """Return the positions of the rows of a row group that are not deleted, ascending."""
    is_live = np.ones(num_stored, dtype=np.bool_)
    is_live[deleted] = False
    return np.flatnonzero(is_live)
