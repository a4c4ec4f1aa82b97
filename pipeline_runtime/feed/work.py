"""The work on one group, without Ray: read its units, run the steps, shuffle, hand on pieces.

Any engine under the feed calls `read_group` for the first stage and `run_stage` for stages that run
apart; the rows are the same whichever engine, worker or order it was.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from pipeline_runtime import hashing
from pipeline_runtime.errors import LastmileError, SourceError, StepError
from pipeline_runtime.feed.pieces import Header, Piece, StepCount
from pipeline_runtime.feed.rows import Rows
from pipeline_runtime.plan.groups import Group, permutation
from pipeline_runtime.plan.model import PlannedStep, Stage, StreamPlan
from pipeline_runtime.sources import Unit
from pipeline_runtime.steps.base import ROW_HASH_COLUMN

# A group of tiny row groups has hundreds of places; an error names the first few.
_MAX_PLACES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where rows came from, for error messages."""

    file: str
    row_group: int
    first_row: int
    num_rows: int

    def __str__(self) -> str:
        last = self.first_row + max(0, self.num_rows - 1)
        return f"{self.file}, row group {self.row_group}, rows {self.first_row}–{last}"


def read_group(
    stream: StreamPlan, group: Group, piece_rows: int, first_piece: int = 0
) -> Iterator[Piece]:
    """Read a group and run the first stage on it, from a piece on: earlier ones are read over.

    Raises SourceError or StepError, which name the file and rows.
    """
    parts = _read_pieces(stream, group, piece_rows)
    pending = next(parts, None)
    index = 0
    while pending is not None:
        following = next(parts, None)
        table, places, seconds = pending
        read = StepCount(rows=table.num_rows, num_bytes=table.nbytes, seconds=seconds)
        header = Header(
            epoch=group.epoch,
            group=group.index,
            piece=index,
            is_last=following is None,
            num_rows=table.num_rows,
            counts=(read,),
        )
        if index >= first_piece:
            yield run_stage(stream, 0, Piece(header=header, table=table), places)
        pending, index = following, index + 1


def _read_pieces(
    stream: StreamPlan, group: Group, piece_rows: int
) -> Iterator[tuple[pa.Table, Sequence[Place], float]]:
    """Tables of at most `piece_rows` rows; a group of several units fits one (see plan.groups)."""
    started = time.perf_counter()
    tables: list[pa.Table] = []
    places: list[Place] = []
    for unit in group.units:
        for table, place in _read_unit(stream, unit, piece_rows):
            tables.append(table)
            places.append(place)
            if len(group.units) == 1:
                yield table, places, time.perf_counter() - started
                tables, places, started = [], [], time.perf_counter()
    if tables:
        yield pa.concat_tables(tables), places, time.perf_counter() - started


def _read_unit(stream: StreamPlan, unit: Unit, max_rows: int) -> Iterator[tuple[pa.Table, Place]]:
    columns = list(dict.fromkeys([*stream.read_columns, *stream.identity.columns]))
    first_row = 0
    file = stream.table.files[unit.file]
    for table in stream.table.read(unit, columns, max_rows):
        place = Place(
            file=file, row_group=unit.row_group, first_row=first_row, num_rows=table.num_rows
        )
        yield _with_row_hash(stream, table, place), place
        first_row += table.num_rows
    if first_row != unit.num_rows:
        raise SourceError(
            f"{file}: row group {unit.row_group} has {first_row} rows, but had {unit.num_rows} "
            "when the run was planned; the file was rewritten: run again"
        )


def _with_row_hash(stream: StreamPlan, table: pa.Table, place: Place) -> pa.Table:
    """Add the identity's hash; identity columns that nothing else uses go."""
    if stream.identity.is_position:
        hashes = hashing.position_hash(place.file, place.row_group, place.first_row, place.num_rows)
    else:
        hashes = hashing.hash_columns([table.column(n) for n in stream.identity.columns], seed=0)
    table = table.select(list(stream.read_columns))
    return table.append_column(ROW_HASH_COLUMN, pa.array(hashes, type=pa.uint64()))


def name_of(step: PlannedStep) -> str:
    """A step for people: where the manifest says it, its kind and what it does."""
    return f"{step.path} ({step.kind} {step.label})"


def places_of(group: Group, header: Header, files: Sequence[str], piece_rows: int) -> list[Place]:
    """Where the rows of a piece came from, for a stage that did not read them itself."""
    is_cut = len(group.units) == 1
    first_row = header.piece * piece_rows if is_cut else 0
    return [
        Place(
            file=files[unit.file],
            row_group=unit.row_group,
            first_row=first_row,
            num_rows=min(piece_rows, unit.num_rows - first_row) if is_cut else unit.num_rows,
        )
        for unit in group.units
    ]


def run_stage(stream: StreamPlan, index: int, piece: Piece, places: Sequence[Place] = ()) -> Piece:
    """Run one stage's steps on a piece; after the last stage its rows are shuffled and trimmed."""
    rows = Rows.of(piece.table, kernels=stream.kernels)
    counts = _run_steps(stream.stages[index], piece.header, rows, places)
    started = time.perf_counter()
    if index == len(stream.stages) - 1:
        _shuffle(stream, piece.header, rows)
        table = rows.table().select([*stream.output_schema.names, ROW_HASH_COLUMN])
    else:
        table = rows.table()
    if counts:  # the copy that the steps put off is the last one's to pay
        seconds = counts[-1].seconds + time.perf_counter() - started
        counts[-1] = replace(counts[-1], num_bytes=rows.num_bytes, seconds=seconds)
    header = Header(
        epoch=piece.header.epoch,
        group=piece.header.group,
        piece=piece.header.piece,
        is_last=piece.header.is_last,
        num_rows=table.num_rows,
        counts=(*piece.header.counts, *counts),
    )
    return Piece(header=header, table=table)


def _run_steps(
    stage: Stage, header: Header, rows: Rows, places: Sequence[Place]
) -> list[StepCount]:
    counts = []
    for step in stage.steps:
        started = time.perf_counter()
        try:
            rows.run(step)
        except (Exception, SystemExit) as error:  # a function that exits would end the worker
            raise _explain_failure(step, header, places, error) from error
        seconds = time.perf_counter() - started
        counts.append(StepCount(rows=rows.num_rows, num_bytes=rows.num_bytes, seconds=seconds))
    return counts


def _shuffle(stream: StreamPlan, header: Header, rows: Rows) -> None:
    """Permute a piece's rows, or its requests with their rows kept together."""
    if stream.shuffle.unit == "none" or rows.num_rows < 2:
        return
    keys = (header.group, header.piece)
    if stream.shuffle.unit == "row":
        rows.pick(permutation(stream.seed, header.epoch, *keys, size=rows.num_rows))
        return
    key = stream.request_key or ""
    request = rows.view(frozenset([key])).column(key).combine_chunks().dictionary_encode()
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
    trace = user_traceback(error) if step.kind == "map" else ""
    return StepError(f"{trace}{what}: {type(error).__name__}: {error}")


def user_traceback(error: BaseException) -> str:
    """The traceback from the user's own first frame on, without Lastmile's frames above it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [i for i, frame in enumerate(frames) if "pipeline_runtime" not in frame.filename]
    shown = frames[own[0] :] if own else frames
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(shown)]
    return "".join([*lines, *traceback.format_exception_only(error)])
