"""The work on one group, without Ray: read its units, run the steps, shuffle, yield chunks.

Every engine of the feed calls `read_group` for the first stage and `run_stage` for stages that run
separately. The rows do not depend on the engine, the worker or the order.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline_runtime import hashing
from pipeline_runtime.errors import LastmileError, SourceError, StepError
from pipeline_runtime.feed.chunk import Chunk, Header, StepCount
from pipeline_runtime.feed.making.found_requests import find_requests
from pipeline_runtime.feed.making.stage_rows import Rows
from pipeline_runtime.kernels import select
from pipeline_runtime.plan.groups import Group, permutation
from pipeline_runtime.plan.model import FirstLook, PlannedStep, StreamPlan
from pipeline_runtime.sources import Unit
from pipeline_runtime.sources.gather import Int64s, one_chunk
from pipeline_runtime.sources.rows import RequestRows, SourceRows, expand_rows, join_rows
from pipeline_runtime.steps.base import GROUP_HASH_COLUMN, REQUEST_COLUMN, ROW_HASH_COLUMN

# A group of tiny row groups has hundreds of places; an error names the first few.
_MAX_PLACES = 3
# Rows one after another in which there is likely a page of lists with no others: a mebibyte of
# lists of 50 items of 64 bits is 2,600. Pages of numbers have 20,000 or more, but cost little.
_LONG_RUN = 4096


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


def read_group(
    stream: StreamPlan,
    group: Group,
    chunk_rows: int,
    first_chunk: int = 0,
    *,
    looks_first: bool = False,
    reading: Executor | None = None,
) -> Iterator[Chunk]:
    """Read a group and run the first stage on it, from a chunk on: earlier ones are read over.

    Args:
        looks_first: read what filters need, and the rest of the rows that are left; of groups that
            are one whole chunk, by plans that have a `first_look`. The rows are the same.
        reading: what reads ahead, from now on: the first rows, and others while chunks are made of
            those before. None: nothing is read before it is asked for.

    Raises SourceError or StepError, which name the file and rows.
    """
    look = None
    can_look = _is_one_chunk(group, chunk_rows) and group.rows is None
    if looks_first and can_look:
        look = stream.first_look
    parts = _read_chunks(stream, group, chunk_rows, look.columns if look else None)
    if reading is not None:
        at_once = None if _is_one_chunk(group, chunk_rows) else 1
        parts = _read_ahead(parts, reading, at_once)
    if look is not None:
        return _look_first(stream, look, group, parts)
    return _make_chunks(stream, group, first_chunk, parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Rows that were read together.

    Attributes:
        seconds: that the read took of its reader's time: of rows read ahead, that it waited.
        read_seconds: that the read took.
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


def _read_ahead(parts: Iterator[_Part], reading: Executor, at_once: int | None) -> Iterator[_Part]:
    """The parts, which another thread begins to read now, and goes on with while one is in use.

    Args:
        at_once: parts that are read together; None: all.
    """
    return _wait(parts, reading, at_once, reading.submit(_take, parts, at_once))


def _wait(
    parts: Iterator[_Part],
    reading: Executor,
    at_once: int | None,
    pending: Future[list[_Part]] | None,
) -> Iterator[_Part]:
    while pending is not None:
        started = time.perf_counter()
        read = pending.result()
        waited = time.perf_counter() - started
        goes_on = bool(read) and at_once is not None
        pending = reading.submit(_take, parts, at_once) if goes_on else None
        yield from (replace(part, seconds=waited / len(read)) for part in read)


def _take(parts: Iterator[_Part], at_once: int | None) -> list[_Part]:
    return list(islice(parts, at_once))


def _make_chunks(
    stream: StreamPlan, group: Group, first_chunk: int, parts: Iterator[_Part]
) -> Iterator[Chunk]:
    pending = next(parts, None)
    index = 0
    while pending is not None:
        following = next(parts, None)
        header = Header(
            epoch=group.epoch,
            group=group.index,
            chunk=index,
            is_last=following is None,
            num_rows=pending.rows.num_rows,
            counts=(pending.count,),
            read_seconds=pending.read_seconds,
        )
        if index >= first_chunk:
            yield _run_stage(stream, 0, header, pending.rows, pending.places)
        pending, index = following, index + 1


def _is_one_chunk(group: Group, chunk_rows: int) -> bool:
    return len(group.units) > 1 or group.units[0].num_rows <= chunk_rows


def _look_first(
    stream: StreamPlan, look: FirstLook, group: Group, parts: Iterator[_Part]
) -> Iterator[Chunk]:
    """The group's only chunk; of the other columns the rows are read that its filters leave."""
    [part] = parts
    rows, places, read, read_seconds = part.rows, part.places, part.count, part.read_seconds
    header = Header(
        epoch=group.epoch,
        group=group.index,
        chunk=0,
        is_last=True,
        num_rows=rows.num_rows,
        counts=(),
    )
    stage = stream.stages[0]
    counts = _run_steps(stage.steps[: look.num_steps], header, rows, places)
    passed = stage.steps[look.num_steps - 1].transform.output_schema.names
    rest = [n for n in stream.read_columns if n not in look.columns and n in passed]
    rest = [name for name in rest if not rows.has(name)]
    if rows.num_rows:
        started = time.perf_counter()
        left = _join(stream, _read_left(stream, group, rest, rows.kept), rest)
        rows.add_read(left, rest)
        seconds = time.perf_counter() - started
        read = replace(
            read, num_bytes=read.num_bytes + _num_bytes(left), seconds=read.seconds + seconds
        )
        read_seconds += seconds
    else:
        rows.add_empty(stream.table.schema, rest)
    header = replace(header, counts=(read,), read_seconds=read_seconds)
    yield _run_stage(stream, 0, header, rows, places, done=counts)


def _read_left(
    stream: StreamPlan, group: Group, columns: Sequence[str], kept: Int64s | None
) -> list[SourceRows]:
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
    return parts


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


def _num_bytes(part: SourceRows) -> int:
    """Return the Arrow bytes of flat rows, which repeat the columns of their request."""
    if isinstance(part, pa.Table):
        return int(part.nbytes)
    requests, num_requests = int(part.requests.nbytes), max(1, len(part.counts))
    return int(part.impressions.nbytes) + requests * part.num_rows // num_requests


def _read_chunks(
    stream: StreamPlan, group: Group, chunk_rows: int, columns: Sequence[str] | None = None
) -> Iterator[_Part]:
    """Read at most `chunk_rows` rows at a time; a group of several units fits (see plan.groups)."""
    wanted = stream.read_columns if columns is None else columns
    started = time.perf_counter()
    parts: list[SourceRows] = []
    places: list[Place] = []
    first = 0
    for unit in group.units:
        mine = _clip(range(unit.num_rows), group.row_range, first)
        first += unit.num_rows
        for part, place in _read_unit(stream, unit, mine, chunk_rows, wanted):
            parts.append(part)
            places.append(place)
            if len(group.units) == 1:
                yield _part_of(stream, part, places, started)
                parts, places, started = [], [], time.perf_counter()
    if parts:
        yield _part_of(
            stream, _join(stream, parts, [*wanted, *_own_columns(stream)]), places, started
        )


def _part_of(
    stream: StreamPlan, rows: SourceRows, places: Sequence[Place], started: float
) -> _Part:
    made = Rows.of(rows, kernels=stream.kernels)
    seconds = time.perf_counter() - started
    return _Part(rows=made, places=places, seconds=seconds, read_seconds=seconds)


def _join(stream: StreamPlan, parts: Sequence[SourceRows], names: Sequence[str]) -> SourceRows:
    """All parts' rows; columns stay once a request that do so in all parts."""
    nested = [part for part in parts if isinstance(part, RequestRows)]
    kinds = {tuple(part.requests.schema.names) for part in nested}
    if len(nested) == len(parts) and len(kinds) == 1:
        return join_rows(nested)
    return pa.concat_tables([expand_rows(part, names) for part in parts])


def _clip(rows: range, wanted: range, first: int = 0) -> range:
    """Return which of these rows are wanted, where the wanted ones count from `first` on."""
    return range(
        min(rows.stop, max(rows.start, wanted.start - first)),
        max(rows.start, min(rows.stop, wanted.stop - first)),
    )


def _read_unit(
    stream: StreamPlan, unit: Unit, mine: range, max_rows: int, wanted: Sequence[str]
) -> Iterator[tuple[SourceRows, Place]]:
    """Yield these rows of a unit; the others that have to be read with them are left out."""
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


def _own_columns(stream: StreamPlan) -> tuple[str, ...]:
    """Return the columns of Lastmile's own that every row has."""
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


def name_of(step: PlannedStep) -> str:
    """A step for people: where the manifest says it, its kind and what it does."""
    return f"{step.path} ({step.kind} {step.label})"


def places_of(group: Group, header: Header, chunk_rows: int) -> list[Place]:
    """Return the places of the rows of a chunk, for a stage that did not read them itself."""
    is_cut = len(group.units) == 1
    chunk = group.row_range.start // chunk_rows + header.chunk
    rows = range(chunk * chunk_rows, (chunk + 1) * chunk_rows)
    places, first = [], 0
    for unit in group.units:
        mine = _clip(range(unit.num_rows), group.row_range, first)
        mine = _clip(mine, rows) if is_cut else mine
        first += unit.num_rows
        places.append(
            Place(
                file=unit.place,
                row_group=unit.index,
                first_row=mine.start,
                num_rows=len(mine),
            )
        )
    return places


def run_stage(stream: StreamPlan, index: int, chunk: Chunk, places: Sequence[Place] = ()) -> Chunk:
    """Run a later stage's steps on a chunk; after the last its rows are shuffled and trimmed."""
    rows = Rows.of(chunk.table, kernels=stream.kernels)
    return _run_stage(stream, index, chunk.header, rows, places)


def _run_stage(
    stream: StreamPlan,
    index: int,
    before: Header,
    rows: Rows,
    places: Sequence[Place],
    done: Sequence[StepCount] = (),
) -> Chunk:
    """Run the stage's steps, but for the first ones that are done."""
    steps, counts = stream.stages[index].steps, list(done)
    if index == 0 and stream.first_look is not None:
        num_steps = stream.first_look.num_steps
        counts += _run_steps(steps[len(counts) : num_steps], before, rows, places)
        idle_share = _share_in_runs(rows.kept, [place.num_rows for place in places])
        before = replace(before, idle_share=idle_share)
    counts += _run_steps(steps[len(counts) :], before, rows, places)
    started = time.perf_counter()
    if index == len(stream.stages) - 1:
        _shuffle(stream, before, rows)
        table = _finish(stream, rows)
    else:
        table = rows.table()
    if counts:  # the copy that the steps put off is the last one's to pay
        seconds = counts[-1].seconds + time.perf_counter() - started
        counts[-1] = replace(counts[-1], num_bytes=rows.num_bytes, seconds=seconds)
    header = replace(before, num_rows=table.num_rows, counts=(*before.counts, *counts))
    return Chunk(header=header, rows=table, is_shared=rows.requests is not None)


def _share_in_runs(kept: Int64s | None, num_rows: Sequence[int]) -> float:
    """Return the share of a chunk's rows in long runs, or whole parts, that filters dropped.

    Args:
        kept: places of those that are left, which ascend; None: all are.
        num_rows: of the parts of row groups that the chunk is of, in their order.
    """
    if kept is None:
        return 0.0
    first, in_runs = 0, 0
    for count in num_rows:
        start, stop = np.searchsorted(kept, (first, first + count))
        runs = np.diff(kept[start:stop], prepend=first - 1, append=first + count) - 1
        in_runs += int(runs[runs >= min(_LONG_RUN, count)].sum())
        first += count
    return in_runs / max(1, first)


def _finish(stream: StreamPlan, rows: Rows) -> pa.Table:
    """Return the rows as the consumer gets them."""
    names = stream.output_schema.names
    if not stream.request_columns:
        return rows.table().select([*names, *_own_columns(stream)])
    table = rows.table_by_request(stream.request_columns)
    each = [name for name in names if name not in stream.request_columns]
    return table.select([*each, REQUEST_COLUMN, *_own_columns(stream)])


def _run_steps(
    steps: Sequence[PlannedStep], header: Header, rows: Rows, places: Sequence[Place]
) -> list[StepCount]:
    counts = []
    for step in steps:
        started = time.perf_counter()
        try:
            rows.run(step)
        except (Exception, SystemExit) as error:  # a function that exits would end the worker
            raise _explain_failure(step, header, places, error) from error
        seconds = time.perf_counter() - started
        counts.append(StepCount(rows=rows.num_rows, num_bytes=rows.num_bytes, seconds=seconds))
    return counts


def _shuffle(stream: StreamPlan, header: Header, rows: Rows) -> None:
    """Permute a chunk's rows, or its requests with their rows kept together."""
    if stream.shuffle.unit == "None" or rows.num_rows < 2:
        return
    keys = (header.group, header.chunk)
    if stream.shuffle.unit == "Row":
        rows.pick(permutation(stream.seed, header.epoch, *keys, size=rows.num_rows))
        return
    key = stream.request_key or ""
    request = one_chunk(rows.view(frozenset([key])).column(key)).dictionary_encode()
    codes = request.indices.fill_null(len(request.dictionary)).to_numpy(zero_copy_only=False)
    rank = permutation(stream.seed, header.epoch, *keys, size=len(request.dictionary) + 1)
    rows.pick(np.argsort(rank[codes], kind="stable"))


def _explain_failure(
    step: PlannedStep, header: Header, places: Sequence[Place], error: BaseException
) -> StepError:
    where = "; ".join(str(place) for place in places[:_MAX_PLACES])
    if len(places) > _MAX_PLACES:
        where += f"; and {len(places) - _MAX_PLACES} more row groups"
    what = f"{name_of(step)} failed on {where or f'group {header.group} of the plan'}"
    if isinstance(error, LastmileError):
        return StepError(f"{what}: {error}")
    trace = user_traceback(error) if step.transform.calls_user_code else ""
    return StepError(f"{trace}{what}: {type(error).__name__}: {error}")


def user_traceback(error: BaseException) -> str:
    """The traceback from the user's own first frame on, without Lastmile's frames above it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [i for i, frame in enumerate(frames) if "pipeline_runtime" not in frame.filename]
    shown = frames[own[0] :] if own else frames
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(shown)]
    return "".join([*lines, *traceback.format_exception_only(error)])
