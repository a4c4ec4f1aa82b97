"""A sample of row groups, and the work of one reader on it, measured step by step.

The groups are the first of epoch 0 in its order, which is a random one unless the shuffle is off.
The planner runs before it; `roofline` then trains on the resulting chunks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from pipeline_runtime import kernels
from pipeline_runtime.errors import TrainingError
from pipeline_runtime.feed.chunk import Chunk, StepCount, add_counts
from pipeline_runtime.feed.making.batching import Batching, make_ready
from pipeline_runtime.feed.making.group_reading import read_unit
from pipeline_runtime.feed.making.work import name_of, run_group
from pipeline_runtime.feed.transport.compression import CODECS
from pipeline_runtime.feed.transport.wire import Wire, pack
from pipeline_runtime.plan import Group, StreamPlan
from pipeline_runtime.profiling.clock import Spent, read_clock
from pipeline_runtime.training.stream import explain_no_rows

# Fewer have no median.
MIN_PASSES = 3
# More would add no information.
MAX_PASSES = 30
_MAX_PACKED = 4  # chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a measurement.

    Attributes:
        seconds: longest duration of a phase; a long row group may exceed it a little.
        rows: most rows to read; the last row group may exceed it.
    """

    seconds: float
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The sampled groups, and the chunks made of their rows."""

    stream: StreamPlan
    chunk_rows: int
    groups: tuple[Group, ...]
    chunks: tuple[Chunk, ...]  # of rows that reach the model
    batching: Batching | None  # None: readers send rows, not batches
    wire: Wire
    counts: tuple[StepCount, ...]  # the read and every step

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns to read: those of the steps and batches, of row identity, and the request key."""
        stream = self.stream
        key = (stream.sharing.key,) if stream.sharing.key else ()
        return tuple(dict.fromkeys([*stream.read_columns, *stream.identity.columns, *key]))

    @property
    def rows(self) -> int:
        return self.counts[0].rows

    @property
    def samples(self) -> int:
        return sum(chunk.header.num_rows for chunk in self.chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One reading of the sampled groups.

    Attributes:
        floor: reading and decoding alone.
        whole: reading, all steps, and handing over.
        counts: of the read and every step.
        hand_over_seconds: what `whole` has beyond the counts: batches made of chunks, and packed.
    """

    floor: Spent
    whole: Spent
    counts: tuple[StepCount, ...]
    hand_over_seconds: float


def take_sample(
    stream: StreamPlan, limits: Limits, batching: Batching | None = None, wire: Wire | None = None
) -> Taken:
    """Read groups until there are enough rows, or the time is over; at least the first one.

    Args:
        batching, wire: the settings by which a run's readers make batches and pack them.

    It warms up too: afterwards files are in the page cache as far as they fit, kernels are
    compiled, and side tables are read. Raises SourceError or StepError as a run would, and
    TrainingError if no row of the sample reaches the model.
    """
    if stream.kernels:
        kernels.warm()
    chunk_rows = stream.chunk_rows
    deadline = time.perf_counter() + limits.seconds
    taken = Taken(
        stream=stream,
        chunk_rows=chunk_rows,
        groups=(),
        chunks=(),
        batching=batching,
        wire=wire or Wire(),
        counts=(),
    )
    for group in stream.groups(0, chunk_rows):
        chunks = tuple(run_group(stream, group, chunk_rows))
        taken = replace(
            taken,
            groups=(*taken.groups, group),
            chunks=(*taken.chunks, *(chunk for chunk in chunks if chunk.header.num_rows)),
            counts=add_counts(taken.counts, _add_all(chunks)),
        )
        if taken.rows >= limits.rows or time.perf_counter() > deadline:
            break
    if not taken.samples:
        _refuse(taken)
    return taken


def _refuse(taken: Taken) -> None:
    names = ("the read", *map(name_of, taken.stream.steps))
    total = taken.stream.scan.pruning.rows_read
    more = "" if taken.rows >= total else f", or look at more of the {total:,} with --rows"
    raise TrainingError(explain_no_rows(names, taken.counts, 0) + more)


def _add_all(chunks: Sequence[Chunk]) -> tuple[StepCount, ...]:
    counts: tuple[StepCount, ...] = ()
    for chunk in chunks:
        counts = add_counts(counts, chunk.header.counts)
    return counts


def measure_passes(taken: Taken, seconds: float) -> tuple[Pass, ...]:
    """Read the sample again and again: decode alone, then all the work, group by group."""
    deadline = time.perf_counter() + seconds
    passes: list[Pass] = []
    while len(passes) < MIN_PASSES or time.perf_counter() < deadline:
        passes.append(_run_pass(taken))
        if len(passes) == MAX_PASSES:
            break
    return tuple(passes)


def measure_packed(taken: Taken, compression: str) -> dict[str, float]:
    """Return the bytes per sample of the first chunks between processes, packed and by codec.

    Only batches are compressed, not rows from which the trainer makes batches.

    Args:
        compression: `pipelineOptions.compression`.
    """
    chunks = taken.chunks[:_MAX_PACKED]
    samples = sum(chunk.header.num_rows for chunk in chunks)
    codecs = dict.fromkeys((None, *(CODECS[compression] if taken.batching else ())))
    return {
        f"packed, by {codec}" if codec else "packed": sum(
            _pack(taken, chunk, replace(taken.wire, codec=codec)).nbytes for chunk in chunks
        )
        / samples
        for codec in codecs
    }


def _pack(taken: Taken, chunk: Chunk, wire: Wire) -> pa.Table:
    return pack(chunk if taken.batching is None else make_ready(chunk, taken.batching), wire)


def _run_pass(taken: Taken) -> Pass:
    floor, whole = Spent(), Spent()
    counts: tuple[StepCount, ...] = ()
    for group in taken.groups:
        started = read_clock()
        _decode(taken, group)
        decoded = read_clock()
        chunks = []
        for chunk in run_group(taken.stream, group, taken.chunk_rows):
            chunks.append(chunk.header)
            _pack(taken, chunk, taken.wire)
            del chunk  # a reader holds one at a time
        floor, whole = floor + (decoded - started), whole + (read_clock() - decoded)
        for header in chunks:
            counts = add_counts(counts, header.counts)
    rest = whole.wall - sum(count.seconds for count in counts)
    return Pass(floor=floor, whole=whole, counts=counts, hand_over_seconds=max(0.0, rest))


def _decode(taken: Taken, group: Group) -> None:
    for unit in group.units:
        for rows in read_unit(taken.stream, unit, taken.columns, taken.chunk_rows):
            del rows


def join_rows(taken: Taken) -> pa.Table:
    """Return all samples in one table."""
    return pa.concat_tables([chunk.table for chunk in taken.chunks])
