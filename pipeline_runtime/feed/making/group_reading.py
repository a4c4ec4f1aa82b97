"""Reads the rows of a group: in parts of at most one chunk, with their places and hashes.

`work` runs the steps on them. The rows do not depend on the sizes of the parts, or on whether
another thread reads ahead.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline_runtime import hashing
from pipeline_runtime.errors import SourceError
from pipeline_runtime.feed.chunk import Header, StepCount
from pipeline_runtime.feed.making.found_requests import find_requests
from pipeline_runtime.feed.making.stage_rows import Rows
from pipeline_runtime.kernels import select
from pipeline_runtime.plan.groups import MAX_CHUNK_BYTES, Group
from pipeline_runtime.plan.model import StreamPlan
from pipeline_runtime.sources import Unit
from pipeline_runtime.sources.gather import Int64s
from pipeline_runtime.sources.rows import RequestRows, SourceRows, expand_rows, join_rows
from pipeline_runtime.steps.base import GROUP_HASH_COLUMN, ROW_HASH_COLUMN

# Rows that are read at a time of each unit that takes turns, at least: in shorter parts, calls take
# longer than decoding does.
_MIN_ROWS_AT_A_TIME = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The origin of rows, for error messages."""

    file: str
    row_group: int
    first_row: int
    num_rows: int

    def __str__(self) -> str:
        last = self.first_row + max(0, self.num_rows - 1)
        return f"{self.file}, row group {self.row_group}, rows {self.first_row}–{last}"


def places_of(group: Group, header: Header, chunk_rows: int) -> list[Place]:
    """Return the places of the rows of a chunk, for a stage that did not read them itself."""
    ranges = group.chunk_rows_of_units(header.chunk, chunk_rows)
    return [
        Place(file=unit.place, row_group=unit.index, first_row=rows.start, num_rows=len(rows))
        for unit, rows in zip(group.units, ranges, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Rows that were read together.

    Attributes:
        seconds: time that the reader spent on this read; for rows that were read ahead, only the
            time that it waited for them.
        read_seconds: duration of the read.
    """

    rows: Rows
    places: Sequence[Place]
    seconds: float
    read_seconds: float

    @property
    def count(self) -> StepCount:
        """The rows, bytes and seconds of the read."""
        rows = self.rows
        return StepCount(rows=rows.num_rows, num_bytes=rows.num_bytes, seconds=self.seconds)


def read_ahead(parts: Iterator[Part], reading: Executor, at_once: int | None) -> Iterator[Part]:
    """Let another thread read the parts, from now on, and yield them.

    Args:
        at_once: number of parts to read before the previous ones are used up; None means all.
    """
    return _wait(parts, reading, at_once, reading.submit(_take, parts, at_once))


def _wait(
    parts: Iterator[Part],
    reading: Executor,
    at_once: int | None,
    pending: Future[list[Part]] | None,
) -> Iterator[Part]:
    while pending is not None:
        started = time.perf_counter()
        read = pending.result()
        waited = time.perf_counter() - started
        goes_on = bool(read) and at_once is not None
        pending = reading.submit(_take, parts, at_once) if goes_on else None
        yield from (replace(part, seconds=waited / len(read)) for part in read)


def _take(parts: Iterator[Part], at_once: int | None) -> list[Part]:
    return list(islice(parts, at_once))


def read_rest(
    stream: StreamPlan, group: Group, columns: Sequence[str], kept: Int64s | None
) -> SourceRows:
    """Read columns of the remaining rows of a group, given their places; None means all."""
    parts: list[SourceRows] = []
    first = 0
    for unit in group.units:
        if kept is None:
            parts += read_unit(stream, unit, columns, unit.num_rows)
        else:
            start, stop = np.searchsorted(kept, (first, first + unit.num_rows))
            if stop > start:
                rows = kept[start:stop] - first
                parts += read_unit(stream, unit, columns, unit.num_rows, rows=rows)
        first += unit.num_rows
    return _join(stream, parts, columns)


def read_unit(
    stream: StreamPlan,
    unit: Unit,
    columns: Sequence[str],
    max_rows: int,
    *,
    rows: Int64s | None = None,
) -> Iterator[SourceRows]:
    """Read a unit like `Source.read`, as flat rows if the plan does not share columns."""
    parts = stream.table.read(unit, columns, max_rows, rows=rows)
    if stream.sharing.is_on:
        return parts
    return (expand_rows(part, columns) for part in parts)


def count_bytes(part: SourceRows) -> int:
    """Return the Arrow bytes of flat rows, which repeat the columns of their request."""
    if isinstance(part, pa.Table):
        return int(part.nbytes)
    requests, num_requests = int(part.requests.nbytes), max(1, len(part.counts))
    return int(part.impressions.nbytes) + requests * part.num_rows // num_requests


def read_parts(
    stream: StreamPlan, group: Group, chunk_rows: int, columns: Sequence[str] | None = None
) -> Iterator[Part]:
    """Read the rows of each chunk; of a group of several units, all units take turns (plan.groups).

    Args:
        columns: those to read; None means all that the plan needs.

    Raises:
        SourceError: naming the file and rows.
    """
    wanted = stream.read_columns if columns is None else columns
    if len(group.units) == 1:
        started = time.perf_counter()
        for rows, place in _read_unit(stream, group.units[0], group.row_range, chunk_rows, wanted):
            yield _part_of(stream, rows, [place], started)
            started = time.perf_counter()
        return
    num_chunks = group.num_chunks(chunk_rows)
    max_rows = chunk_rows if num_chunks == 1 else _rows_at_a_time(stream, group, wanted)
    units = [
        _UnitRows(_read_unit(stream, unit, rows, max_rows, wanted))
        for unit, rows in zip(group.units, group.unit_rows, strict=True)
    ]
    for chunk in range(num_chunks):
        started = time.perf_counter()
        counts = [len(rows) for rows in group.chunk_rows_of_units(chunk, chunk_rows)]
        if chunk == num_chunks - 1:  # to the end, so that a file that has changed is noticed
            counts = [sys.maxsize] * len(units)
        read = [
            pair for unit, count in zip(units, counts, strict=True) for pair in unit.take(count)
        ]
        if read:
            parts, places = zip(*read, strict=True)
            joined = _join(stream, parts, [*wanted, *list_own_columns(stream)])
            yield _part_of(stream, joined, places, started)


def _rows_at_a_time(stream: StreamPlan, group: Group, columns: Sequence[str]) -> int:
    """Return the rows to read at a time of each unit, so that all units hold one large chunk.

    Reading a whole unit at once takes half the time of reading it in parts. Numbers take their
    width in memory, whatever their encoding. Other columns are estimated as all columns take.
    """
    kinds = [stream.table.schema.field(name).type for name in columns]
    width_bytes: int = sum(kind.bit_width for kind in kinds if pa.types.is_primitive(kind)) // 8
    if not all(map(pa.types.is_primitive, kinds)):
        num_rows = max(1, sum(unit.num_rows for unit in group.units))
        width_bytes += sum(unit.num_bytes for unit in group.units) // num_rows
    fitting = MAX_CHUNK_BYTES // max(1, width_bytes) // len(group.units)
    return max(_MIN_ROWS_AT_A_TIME, fitting)


@dataclass(slots=True)
class _UnitRows:
    """The rows of a unit that are left to read, with their places."""

    parts: Iterator[tuple[SourceRows, Place]]
    _held: tuple[SourceRows, Place] | None = None

    def take(self, num_rows: int) -> Iterator[tuple[SourceRows, Place]]:
        """Yield the next rows; fewer if the unit ends."""
        while num_rows > 0:
            following = self._held or next(self.parts, None)
            if following is None:
                return
            (rows, place), self._held = following, None
            if place.num_rows > num_rows:
                first, left = place.first_row + num_rows, place.num_rows - num_rows
                after = replace(place, first_row=first, num_rows=left)
                self._held = rows.slice(num_rows, left), after
                rows, place = rows.slice(0, num_rows), replace(place, num_rows=num_rows)
            num_rows -= place.num_rows
            yield rows, place


def _part_of(stream: StreamPlan, rows: SourceRows, places: Sequence[Place], started: float) -> Part:
    made = Rows.of(rows, kernels=stream.kernels)
    seconds = time.perf_counter() - started
    return Part(rows=made, places=places, seconds=seconds, read_seconds=seconds)


def _join(stream: StreamPlan, parts: Sequence[SourceRows], names: Sequence[str]) -> SourceRows:
    """Return the rows of all parts; columns that all parts hold once per request stay so."""
    nested = [part for part in parts if isinstance(part, RequestRows)]
    kinds = {tuple(part.requests.schema.names) for part in nested}
    if len(nested) == len(parts) and len(kinds) == 1:
        return join_rows(nested)
    return pa.concat_tables([expand_rows(part, names) for part in parts])


def _clip(rows: range, wanted: range, first: int = 0) -> range:
    """Return the wanted rows among these; `wanted` counts from `first` rows earlier."""
    return range(
        min(rows.stop, max(rows.start, wanted.start - first)),
        max(rows.start, min(rows.stop, wanted.stop - first)),
    )


def _read_unit(
    stream: StreamPlan, unit: Unit, mine: range, max_rows: int, wanted: Sequence[str]
) -> Iterator[tuple[SourceRows, Place]]:
    """Yield these rows of a unit, and drop others that have to be read with them."""
    sharing = stream.sharing
    key = (sharing.key,) if sharing.key else ()
    group_key = (stream.group_key,) if stream.group_key else ()
    columns = list(dict.fromkeys([*wanted, *stream.identity.columns, *key, *group_key]))
    first_row = 0
    for rows in read_unit(stream, unit, columns, max_rows):
        num_rows = rows.num_rows
        kept = _clip(range(first_row, first_row + num_rows), mine)
        if kept:
            place = Place(
                file=unit.place, row_group=unit.index, first_row=first_row, num_rows=num_rows
            )
            hashes = {ROW_HASH_COLUMN: _row_hashes(stream, rows, place)}
            if stream.group_key:
                hashes[GROUP_HASH_COLUMN] = _hash(stream, rows, (stream.group_key,))
            part = _with_hashes(stream, rows, hashes, wanted)
            if len(kept) < num_rows:
                part = part.slice(kept.start - first_row, len(kept))
                place = replace(place, first_row=kept.start, num_rows=len(kept))
            yield part, place
        first_row += num_rows
        if first_row >= mine.stop < unit.num_rows:
            return
    if first_row != unit.num_rows:
        raise SourceError(
            f"{unit.place}: row group {unit.index} has {first_row} rows, but had {unit.num_rows} "
            "when the run was planned; the file was rewritten: run again"
        )


def _row_hashes(stream: StreamPlan, rows: SourceRows, place: Place) -> npt.NDArray[np.uint64]:
    if stream.identity.is_position:
        return hashing.position_hash(place.file, place.row_group, place.first_row, place.num_rows)
    return _hash(stream, rows, stream.identity.columns)


def _hash(stream: StreamPlan, rows: SourceRows, names: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Return a hash of these columns for each row."""
    table = expand_rows(rows, names)
    kernels = select(stream.kernels, len(names) * table.num_rows)
    return hashing.hash_columns([table.column(name) for name in names], seed=0, kernels=kernels)


def list_own_columns(stream: StreamPlan) -> tuple[str, ...]:
    """Return Lastmile's own columns, which every row has."""
    return (ROW_HASH_COLUMN, GROUP_HASH_COLUMN) if stream.group_key else (ROW_HASH_COLUMN,)


def _with_hashes(
    stream: StreamPlan,
    rows: SourceRows,
    hashes: Mapping[str, npt.NDArray[np.uint64]],
    wanted: Sequence[str],
) -> SourceRows:
    """Add columns of hashes; columns of identity and keys that nothing else uses are dropped."""
    sharing = stream.sharing
    if isinstance(rows, pa.Table) and sharing.key:
        rows = find_requests(rows, sharing.key, sharing.columns) or rows
    if isinstance(rows, pa.Table):
        return _with_columns(rows.select(list(wanted)), hashes)
    once, each = set(rows.requests.schema.names), set(rows.impressions.schema.names)
    return RequestRows(
        requests=rows.requests.select([n for n in wanted if n in once]),
        impressions=_with_columns(
            rows.impressions.select([n for n in wanted if n in each]), hashes
        ),
        counts=rows.counts,
    )


def _with_columns(table: pa.Table, hashes: Mapping[str, npt.NDArray[np.uint64]]) -> pa.Table:
    """Append columns, also to a table without columns, whose append_column forgets its rows."""
    schema = table.schema
    for name in hashes:
        schema = schema.append(pa.field(name, pa.uint64()))
    arrays = [pa.array(values, type=pa.uint64()) for values in hashes.values()]
    return pa.Table.from_arrays([*table.columns, *arrays], schema=schema)
