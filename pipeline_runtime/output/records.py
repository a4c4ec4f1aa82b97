"""The records of an output run in `_staging/`, from which another attempt continues.

Only the driver writes records: one for every chunk that a reader with a valid lease delivered, and
one for every merge task that is done. A spool file or a table's file without a record is ignored,
so a lost or stale writer cannot add rows. Records are read back from a store: damaged ones count
as absent, and the work is done again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic.alias_generators import to_camel

from pipeline_runtime.errors import OutputRefused
from pipeline_runtime.feed.chunk import Chunk, StepCount
from pipeline_runtime.hashing import Checksum
from pipeline_runtime.iceberg.files import DataFileRecord
from pipeline_runtime.output import names
from pipeline_runtime.output.spool import Observed, Section, Spooled
from pipeline_runtime.output.storage import Storage
from pipeline_runtime.sources.output_manifest import Count, OutputFile

# A record has about 100 bytes for each of at most 20,000 partitions.
_MAX_BYTES = 64 << 20
# Requests to a store at a time, when the records of an earlier attempt are read.
_READERS = 16
_T = TypeVar("_T", bound="Record")


class Record(BaseModel):
    """A JSON document of a version."""

    model_config = ConfigDict(
        frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore"
    )

    version: Literal[1] = 1


class RunRecord(Record):
    """The run and the id of its table; every attempt has an equal one.

    Attributes:
        layout: columns, partitions and order of an Iceberg table, whose files depend on them.
    """

    id: str
    run_hash: str
    run_config: dict[str, Any]
    data_digest: str
    chunk_rows: Annotated[int, Field(alias="pieceRows")]
    layout: dict[str, Any] = Field(default_factory=dict)


class ClaimRecord(Record):
    """The attempt that owns the run."""

    attempt: Annotated[int, Field(ge=1)]
    token: str


class ChecksumRecord(BaseModel):
    """See `hashing.Checksum`."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel)

    rows: Count
    sum: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
    sum_of_squares: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]


class ChunkRecord(Record):
    """A chunk that was delivered: its counts, and where its rows are.

    Attributes:
        checksum: of the rows' identities; None in records of older releases.
        observed: places in the file of what steps measured of the rows.
    """

    group: Count
    chunk: Annotated[Count, Field(alias="piece")]
    is_last: bool
    num_rows: Count
    counts: tuple[tuple[Count, Count, float], ...]
    file: str
    sections: tuple[Section, ...]
    checksum: ChecksumRecord | None = None
    observed: tuple[Observed, ...] = ()

    @classmethod
    def of(cls, chunk: Chunk) -> ChunkRecord:
        """Return the record of a chunk that a reader has spooled."""
        header, spooled = chunk.header, Spooled.of(chunk)
        return cls(
            group=header.group,
            chunk=header.chunk,
            is_last=header.is_last,
            num_rows=header.num_rows,
            counts=tuple((c.rows, c.num_bytes, c.seconds) for c in header.counts),
            file=spooled.file,
            sections=spooled.sections,
            checksum=ChecksumRecord(**spooled.checksum),
            observed=spooled.observed,
        )

    @property
    def place(self) -> tuple[int, int]:
        """Sorts as the rows of the source table do."""
        return self.group, self.chunk

    @property
    def step_counts(self) -> tuple[StepCount, ...]:
        return tuple(StepCount(rows=r, num_bytes=b, seconds=s) for r, b, s in self.counts)

    @property
    def rows_checksum(self) -> Checksum | None:
        """The checksum of the rows, if it was recorded."""
        found = self.checksum
        return None if found is None else Checksum.from_json(found.model_dump(by_alias=True))

    @property
    def rows(self) -> int:
        """Rows that the steps left."""
        return sum(section.rows for section in self.sections)


class MergeRecord(Record):
    """The table's division into files, which is the same for every attempt.

    Attributes:
        ratio: bytes of Parquet per byte of Arrow, measured on a sample.
    """

    ratio: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class StagedFile(OutputFile):
    """One of the table's files, not yet committed.

    Attributes:
        data_file: what a commit to an Iceberg table needs; None for a file of a folder.
    """

    data_file: DataFileRecord | None = None


class MergedRecord(Record):
    """The files that one merge task wrote."""

    files: tuple[StagedFile, ...]


class MergingRecord(Record):
    """An attempt at a merge task whose files lie outside the run's folder: see `name_file`.

    Attributes:
        parts: partition and number of each of the task's files.
    """

    token: str
    parts: tuple[tuple[str, int], ...]


class CommitRecord(Record):
    """The decision to commit: the table's files, and those that they replace."""

    files: tuple[OutputFile, ...]
    replaced: tuple[str, ...] = ()


def write_record(storage: Storage, name: str, record: Record) -> None:
    """Store a record as a whole."""
    storage.write(name, record.model_dump_json(by_alias=True).encode())


def read_record(storage: Storage, name: str, kind: type[_T]) -> _T | None:
    """Return a record; None if there is none, or it is damaged."""
    text = storage.read(name, _MAX_BYTES)
    if text is None:
        return None
    try:
        return kind.model_validate_json(text)
    except ValidationError:
        return None


def read_records(storage: Storage, folder: str, kind: type[_T]) -> dict[str, _T]:
    """Return the whole records of a folder, by their names."""
    found = sorted(storage.sizes(folder))
    with ThreadPoolExecutor(_READERS) as pool:
        records = pool.map(lambda name: read_record(storage, f"{folder}/{name}", kind), found)
        return {name: r for name, r in zip(found, records, strict=True) if r is not None}


def keep_stored(chunks: Iterable[ChunkRecord], sizes: Mapping[str, int]) -> list[ChunkRecord]:
    """Return the records whose spool files are there as a whole."""
    return [record for record in chunks if _is_stored(record, sizes)]


def _is_stored(record: ChunkRecord, sizes: Mapping[str, int]) -> bool:
    parts: list[Section | Observed] = [*record.sections, *record.observed]
    if not parts:
        return True
    is_known = names.is_plain(record.file)
    return is_known and sizes.get(record.file) == parts[-1].offset + parts[-1].length


def find_done_groups(chunks: Iterable[ChunkRecord]) -> dict[int, list[ChunkRecord]]:
    """Return the chunks of each group of which all chunks are recorded, in order."""
    groups: dict[int, dict[int, ChunkRecord]] = {}
    for record in chunks:
        groups.setdefault(record.group, {})[record.chunk] = record
    done = {}
    for group, found in sorted(groups.items()):
        last = [record.chunk for record in found.values() if record.is_last]
        if len(last) == 1 and len(found) == last[0] + 1:
            done[group] = [found[chunk] for chunk in sorted(found)]
    return done


def check_same_run(stored: RunRecord, now: RunRecord, uri: str) -> None:
    """Raise OutputRefused if the source's files changed since the run began."""
    if stored.data_digest != now.data_digest:
        raise OutputRefused(
            f"{uri}: the row groups to read must be those of the first attempt (digest "
            f"{stored.data_digest}), but differ ({now.data_digest}): files were added, removed or "
            "rewritten. Undo that, start anew without --resume, or apply the experiment under "
            "another name"
        )
    if stored.layout != now.layout:
        raise OutputRefused(
            f"{uri}: the table's columns, partitions and order must be those of the first attempt, "
            "but were changed. Start anew without --resume"
        )
