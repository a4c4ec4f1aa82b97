"""Makes the chunks of one group, without Ray: run the steps on its rows, shuffle and trim them.

`group_reading` reads the rows. Every engine of the feed calls `read_group` for the first stage and
`run_stage` for stages that run separately. The rows do not depend on the engine, the worker or the
order.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from pipeline_runtime.errors import LastmileError, StepError
from pipeline_runtime.feed.chunk import Chunk, Header, StepCount
from pipeline_runtime.feed.making.group_reading import (
    Part,
    Place,
    count_bytes,
    list_own_columns,
    places_of,
    read_ahead,
    read_parts,
    read_rest,
)
from pipeline_runtime.feed.making.stage_rows import Rows
from pipeline_runtime.feed.making.waiting import read_waited
from pipeline_runtime.plan.groups import Group, permutation
from pipeline_runtime.plan.model import FirstLook, PlannedStep, StreamPlan
from pipeline_runtime.sources.gather import Int64s, one_chunk
from pipeline_runtime.steps.base import REQUEST_COLUMN

# A group of tiny row groups has hundreds of places; an error names the first few.
_MAX_PLACES = 3
# Consecutive rows that likely cover a whole page of lists: a mebibyte of lists of 50 items of 64
# bits is 2,600 rows. Pages of numbers have 20,000 or more, but cost little.
_LONG_RUN = 4096


def read_group(
    stream: StreamPlan,
    group: Group,
    chunk_rows: int,
    first_chunk: int = 0,
    *,
    looks_first: bool = False,
    reading: Executor | None = None,
) -> Iterator[Chunk]:
    """Read a group and run the first stage on it.

    Args:
        first_chunk: the first chunk to yield; earlier ones are read and dropped.
        looks_first: read the columns of filters first, and the others of the remaining rows only.
            It needs a group that is one whole chunk, and a plan with a `first_look`. The rows are
            the same.
        reading: reads ahead, beginning now, while chunks are made of the previous rows. None: rows
            are read when they are requested.

    Raises SourceError or StepError, which name the file and rows.
    """
    look = None
    is_one_chunk = group.num_chunks(chunk_rows) == 1
    if looks_first and is_one_chunk and group.rows is None:
        look = stream.first_look
    parts = read_parts(stream, group, chunk_rows, look.columns if look else None)
    if reading is not None:
        parts = read_ahead(parts, reading, None if is_one_chunk else 1)
    if look is not None:
        return _look_first(stream, look, group, parts)
    return _make_chunks(stream, group, first_chunk, parts)


def run_group(stream: StreamPlan, group: Group, chunk_rows: int) -> Iterator[Chunk]:
    """Read a group and run all stages on it, in this process.

    Raises SourceError or StepError, which name the file and rows.
    """
    for chunk in read_group(stream, group, chunk_rows):
        places = places_of(group, chunk.header, chunk_rows)
        for index in range(1, len(stream.stages)):
            chunk = run_stage(stream, index, chunk, places)
        yield chunk


def _make_chunks(
    stream: StreamPlan, group: Group, first_chunk: int, parts: Iterator[Part]
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


def _look_first(
    stream: StreamPlan, look: FirstLook, group: Group, parts: Iterator[Part]
) -> Iterator[Chunk]:
    """Yield the group's only chunk, whose other columns are read for the filtered rows only."""
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
    done = _run_steps(stage.steps[: look.num_steps], header, rows, places)
    passed = stage.steps[look.num_steps - 1].transform.output_schema.names
    rest = [n for n in stream.read_columns if n not in look.columns and n in passed]
    rest = [name for name in rest if not rows.has(name)]
    if rows.num_rows:
        started = time.perf_counter()
        left = read_rest(stream, group, rest, rows.kept)
        rows.add_read(left, rest)
        seconds = time.perf_counter() - started
        read = replace(
            read, num_bytes=read.num_bytes + count_bytes(left), seconds=read.seconds + seconds
        )
        read_seconds += seconds
    else:
        rows.add_empty(stream.table.schema, rest)
    header = replace(header, counts=(read,), read_seconds=read_seconds)
    yield _run_stage(stream, 0, header, rows, places, done)


def name_of(step: PlannedStep) -> str:
    """Return a step's name for people: its place in the manifest, its kind and its label."""
    return f"{step.path} ({step.kind} {step.label})"


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
    done: _Done | None = None,
) -> Chunk:
    """Run the stage's steps, except for the first ones, which are done."""
    steps, done = stream.stages[index].steps, done or _Done([], [])
    counts = done.counts
    if index == 0 and stream.first_look is not None:
        num_steps = stream.first_look.num_steps
        done.add(_run_steps(steps[len(counts) : num_steps], before, rows, places))
        idle_share = _share_in_runs(rows.kept, [place.num_rows for place in places])
        before = replace(before, idle_share=idle_share)
    done.add(_run_steps(steps[len(counts) :], before, rows, places))
    started = time.perf_counter()
    if index == len(stream.stages) - 1:
        _shuffle(stream, before, rows)
        table = _finish(stream, rows)
    else:
        table = rows.table()
    if counts:  # count the copy that the steps postponed as time of the last one
        seconds = counts[-1].seconds + time.perf_counter() - started
        counts[-1] = replace(counts[-1], num_bytes=rows.num_bytes, seconds=seconds)
    header = replace(
        before,
        num_rows=table.num_rows,
        counts=(*before.counts, *counts),
        observed=(*before.observed, *done.observed),
    )
    return Chunk(header=header, rows=table, is_shared=rows.requests is not None)


def _share_in_runs(kept: Int64s | None, num_rows: Sequence[int]) -> float:
    """Return the share of a chunk's rows in long runs, or whole parts, that filters dropped.

    Args:
        kept: ascending places of the remaining rows; None means all.
        num_rows: rows of each part of a row group in the chunk, in order.
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
        return rows.table().select([*names, *list_own_columns(stream)])
    table = rows.table_by_request(stream.request_columns)
    each = [name for name in names if name not in stream.request_columns]
    return table.select([*each, REQUEST_COLUMN, *list_own_columns(stream)])


@dataclass(frozen=True, slots=True)
class _Done:
    """The counts and measurements of the steps of a stage that have run.

    Attributes:
        counts: one per step.
        observed: one per step that measures rows.
    """

    counts: list[StepCount]
    observed: list[bytes]

    def add(self, more: _Done) -> None:
        self.counts.extend(more.counts)
        self.observed.extend(more.observed)


def _run_steps(
    steps: Sequence[PlannedStep], header: Header, rows: Rows, places: Sequence[Place]
) -> _Done:
    done = _Done([], [])
    for step in steps:
        started, waited = time.perf_counter(), read_waited()
        try:
            # Each epoch has the same rows, and the first one's are observed.
            observed = rows.run(step, observes=header.epoch == 0)
        except (Exception, SystemExit) as error:  # a function that exits would end the worker
            raise _explain_failure(step, header, places, error) from error
        seconds = time.perf_counter() - started - (read_waited() - waited)
        count = StepCount(rows=rows.num_rows, num_bytes=rows.num_bytes, seconds=seconds)
        done.counts.append(count)
        if observed is not None:
            done.observed.append(observed)
    return done


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
    """Return the traceback from the user's first frame on, without Lastmile's frames above it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [i for i, frame in enumerate(frames) if "pipeline_runtime" not in frame.filename]
    shown = frames[own[0] :] if own else frames
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(shown)]
    return "".join([*lines, *traceback.format_exception_only(error)])
