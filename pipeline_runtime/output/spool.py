"""Rows on their way from a data worker to the table's files: one spool file per chunk.

A spool file is a row of sections, one per partition, each a whole Arrow stream. So the rows of one
partition are read by one request, and a table's files can be cut anywhere. The reader of a chunk
writes its spool file; `merge` reads the sections of a partition in the order of the source table.
After the sections, the file has what each step that measures rows returned for the chunk, which
`observed` reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline_runtime.errors import OutputError
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.hashing import Checksum
from pipeline_runtime.output.names import make_token
from pipeline_runtime.output.partitions import Split
from pipeline_runtime.output.storage import Storage
from pipeline_runtime.plan.model import StreamPlan
from pipeline_runtime.sources.stores import asking
from pipeline_runtime.steps.base import ROW_HASH_COLUMN

# LZ4 is several times as fast as any codec of Parquet, and halves what is stored.
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
# A section is read by so many rows at a time, so that reading it takes little memory.
_ROWS_PER_BATCH = 16_384


class Section(NamedTuple):
    """The rows of one partition in a spool file.

    Attributes:
        folder: the partition, by its folder or by another text that is only its own.
        offset, length: bytes of the file.
        num_bytes: Arrow bytes of the rows.
    """

    folder: str
    offset: int
    length: int
    rows: int
    num_bytes: int


class Observed(NamedTuple):
    """The bytes of a spool file that a step returned for the rows of the chunk."""

    offset: int
    length: int


class Spooled(NamedTuple):
    """The rows of a chunk in a spool file.

    Attributes:
        file: name of the file; "" if there is nothing to store of the chunk.
        checksum: of the rows' identities, as `Checksum.to_json` returns it.
        observed: one for each step that measures rows.
    """

    file: str
    sections: tuple[Section, ...]
    checksum: dict[str, Any]
    observed: tuple[Observed, ...]

    @classmethod
    def of(cls, chunk: Chunk) -> Spooled:
        """Return the rows of a chunk that a reader has spooled."""
        file, sections, checksum, observed = json.loads(chunk.result)
        return cls(
            file,
            tuple(Section(*section) for section in sections),
            checksum,
            tuple(Observed(*each) for each in observed),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spooler:
    """Stores the rows of chunks; picklable, so that readers elsewhere take it along.

    Attributes:
        columns: the output's columns, in its order, those of the partitions included.
        key: the key that no two rows may share, if the output is to be joined by it.
    """

    storage: Storage
    columns: tuple[str, ...]
    split: Split
    key: tuple[str, ...] = ()

    def __call__(self, chunk: Chunk) -> Chunk:
        """Store a chunk, under a name that no other attempt has, and return it without rows."""
        header = chunk.header
        checksum = Checksum()
        hashes = chunk.table.column(ROW_HASH_COLUMN).to_numpy()
        checksum.add(hashes)
        if self.key:
            _check_unique(hashes, self.key)
        rows = chunk.table.select(list(self.columns))
        file = ""
        stored = _Stored((), ())
        if rows.num_rows or header.observed:
            file = f"{header.group:06d}-{header.chunk:04d}-{make_token()}.arrows"
            stored = write_spool(self.storage, file, rows, self.split, header.observed)
        spooled = Spooled(file, stored.sections, checksum.to_json(), stored.observed)
        header = replace(header, observed=())
        return replace(chunk, header=header, rows=pa.table({}), result=json.dumps(spooled))


def _check_unique(hashes: npt.NDArray[np.uint64], key: tuple[str, ...]) -> None:
    """Raise OutputError if a step repeated a row: its copies are in one chunk."""
    repeated = len(hashes) - len(np.unique(hashes))
    if repeated:
        raise OutputError(
            f"spec.output.layout: must be Columns if rows share a key, but is KeyAndScore, and "
            f"{repeated:,} of {len(hashes):,} rows have the {', '.join(key)} of another row: a "
            "step, such as a join with several matches, repeats rows, or dataset.rowKey is no key"
        )


class _Stored(NamedTuple):
    sections: tuple[Section, ...]
    observed: tuple[Observed, ...]


def write_spool(
    storage: Storage, name: str, rows: pa.Table, split: Split, observed: Sequence[bytes] = ()
) -> _Stored:
    """Store rows by partition, and what was observed of them, in a new spool file.

    Raises OutputError or StoreError.
    """
    sections, places = [], []
    with storage.create(name) as sink:
        for folder, part in split(rows) if rows.num_rows else ():
            offset = sink.tell()
            with pa.ipc.new_stream(sink, part.schema, options=_OPTIONS) as writer:
                writer.write_table(part, max_chunksize=_ROWS_PER_BATCH)
            length = sink.tell() - offset
            sections.append(Section(folder, offset, length, part.num_rows, int(part.nbytes)))
        for content in observed:
            places.append(Observed(sink.tell(), len(content)))
            sink.write(content)
    return _Stored(tuple(sections), tuple(places))


def read_section(
    storage: Storage, name: str, section: Section, start: int, stop: int
) -> Iterator[pa.Table]:
    """Yield the rows from `start` to before `stop` of a section, in order and in small tables.

    Raises OutputError if the file is not what was stored, StoreError if the store does not answer.
    """
    uri = f"{storage.uri}/{name}"
    with storage.open(name) as file, asking(uri, "read what a writer stored"):
        content = file.read_at(section.length, section.offset)
        first = 0
        with pa.ipc.open_stream(content) as reader:
            for batch in reader:
                begin, end = max(0, start - first), min(len(batch), stop - first)
                first += len(batch)
                if begin < end:
                    yield pa.Table.from_batches([batch.slice(begin, end - begin)])


def spool_schema(stream: StreamPlan, partition_by: tuple[str, ...]) -> pa.Schema:
    """Return the columns that the table's files hold."""
    names = [name for name in stream.output_schema.names if name not in partition_by]
    return pa.schema([stream.output_schema.field(name) for name in names])
