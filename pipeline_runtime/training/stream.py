"""Cuts chunks into batches of exact size, epoch after epoch, in step with the other ranks.

Owns the order in which rows reach the model, the rows that a position counts as consumed, and the
remaining rows at the end of an epoch. Before it runs the feed; after it `collating` makes tensors
of each batch's rows.

The whole batches of a chunk come first. The remaining rows of several chunks follow together, as
soon as they fill a batch, so that readers can make the batches of a chunk independently. Under
`preserveOrder` batches continue from chunk to chunk.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline_runtime.errors import FeedError
from pipeline_runtime.feed.base import Waited, WorkerUsage
from pipeline_runtime.feed.chunk import Batches, Chunk, Header, StepCount, add_counts
from pipeline_runtime.plan.groups import Group
from pipeline_runtime.training.buffered import BatchRows, Buffered, Hashes
from pipeline_runtime.training.measured import Measured
from pipeline_runtime.training.position import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """Settings for cutting batches; `weight_column` decides which rows the checksum counts."""

    batch_size: int
    last_batch: str  # Pad | Drop
    weight_column: str | None = None
    preserve_order: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The ranks' agreement before a step."""

    any_has_rows: bool
    all_are_full: bool


# Called before every step with (this rank has rows, its batch is full).
Agree = Callable[[bool, bool], Agreement]


def agree_alone(has_rows: bool, is_full: bool) -> Agreement:
    """Return the agreement of a single rank, whose last short batch is a batch like any other."""
    return Agreement(any_has_rows=has_rows, all_are_full=is_full)


@dataclass(slots=True)
class _Arrival:
    """The arrived chunks of a group."""

    seen: int = 0
    num_chunks: int | None = None

    def add(self, header: Header) -> bool:
        """Record a chunk, and return whether the group is now complete."""
        self.seen += 1
        if header.is_last:
            self.num_chunks = header.chunk + 1
        return self.num_chunks == self.seen


@dataclass(slots=True)
class BatchStream:
    """One rank's batches; `position` is always that of the batches given out so far."""

    chunks: Iterator[Chunk]
    groups: Sequence[Group]  # of this rank, in order, all epochs that are left
    cutting: Cutting
    position: Position
    waited: Waited
    agree: Agree = agree_alone
    usage: WorkerUsage = field(default_factory=WorkerUsage)  # of the readers, if the feed knows it
    dropped_rows: int = 0
    remembers: bool = False  # the position can go back by one batch
    measured: Measured | None = None  # of the chunks that the position counts
    # Called with the hashes of identity and group of each batch's rows, before the batch.
    identify: Callable[[Hashes, Hashes], None] | None = None
    _waiting: dict[int, set[int]] = field(init=False)  # epoch -> groups that have not arrived whole
    _arrivals: dict[tuple[int, int], _Arrival] = field(init=False, default_factory=dict)
    _held: dict[int, list[Chunk]] = field(init=False, default_factory=dict)
    _whole: deque[Buffered] = field(init=False, default_factory=deque)  # whose next batch is whole
    _rest: deque[Buffered] = field(init=False, default_factory=deque)  # joined in this order
    _rest_rows: int = field(init=False, default=0)
    _following: BatchRows | None = field(init=False, default=None)
    _partial: tuple[StepCount, ...] = field(init=False, default=())
    _epoch: int | None = field(init=False, default=None)  # of the last `epoch_rows`
    _next: int = field(init=False, default=0)  # under preserveOrder: the group that is arriving

    def __post_init__(self) -> None:
        self._waiting = {}
        for group in self.groups:
            self._waiting.setdefault(group.epoch, set()).add(group.index)

    @property
    def counts(self) -> tuple[StepCount, ...]:
        """Rows and bytes of every step so far, of chunks that are being cut up too.

        A position counts one when it is used up, since a resumed run makes it again.
        """
        return add_counts(self.position.counts, self._partial)

    @property
    def queue_length(self) -> int:
        """Chunks that have arrived and are not yet cut up."""
        held = sum(len(chunks) for chunks in self._held.values())
        return len(self._whole) + len(self._rest) + held

    def epoch_rows(self, epoch: int) -> Iterator[BatchRows | None]:
        """Yield the rows of every batch; None if only other ranks have rows for a step.

        Drops the remaining rows of an earlier epoch that was left before its end.

        Raises FeedError if the feed ends before the epoch's rows are complete.
        """
        self.position.start_epoch(epoch)
        if epoch != self._epoch:
            self._forget_rows()
            self._epoch = epoch
        arriving = self._arriving(epoch)
        while True:
            self._fill(arriving)
            rows = self.cutting.batch_size if self._is_full() else self._rest_rows
            agreed = self.agree(rows > 0, rows == self.cutting.batch_size)
            if not agreed.any_has_rows:
                return
            if self.cutting.last_batch == "Drop" and not agreed.all_are_full:
                self._drop_rest(arriving)
                return
            if self.remembers:
                parts = self._next_parts(rows)
                self.position.remember({source.chunk.header.group for source, _ in parts})
            if self.measured is not None:
                self.measured.begin_batch()
            self.position.batches += 1
            self.position.samples += rows
            yield self._cut(rows) if rows else None

    def following(self) -> BatchRows | None:
        """Return the next batch without taking it, if the arrived chunks hold all of it.

        `epoch_rows` then yields the same object.
        """
        if self._following is None and self._is_full():
            self._following = self._collect(self._next_parts(self.cutting.batch_size))
        return self._following

    def _is_full(self) -> bool:
        """Return whether the arrived chunks hold a whole batch."""
        return bool(self._whole) or self._rest_rows >= self.cutting.batch_size

    def _arriving(self, epoch: int) -> Iterator[Chunk]:
        """Yield the chunks of this epoch, and hold back those of later ones."""
        yield from self._held.pop(epoch, [])
        while self._waiting.get(epoch):
            chunk = next(self.chunks, None)
            if chunk is None:
                missing = sorted(self._waiting[epoch])[:5]
                raise FeedError(
                    f"the feed ended in epoch {epoch} before groups {missing} arrived; run again "
                    "with --resume"
                )
            self._note_arrival(chunk.header)
            if chunk.header.epoch == epoch:
                yield chunk
            elif chunk.header.epoch > epoch:
                self._held.setdefault(chunk.header.epoch, []).append(chunk)

    def _note_arrival(self, header: Header) -> None:
        if self.cutting.preserve_order:
            self._check_order(header)
        key = (header.epoch, header.group)
        if self._arrivals.setdefault(key, _Arrival()).add(header):
            del self._arrivals[key]
            self._waiting[header.epoch].discard(header.group)

    def _check_order(self, header: Header) -> None:
        while self.groups[self._next].index not in self._waiting[self.groups[self._next].epoch]:
            self._next += 1
        expected = self.groups[self._next]
        if (expected.epoch, expected.index) != (header.epoch, header.group):
            raise FeedError(
                f"preserveOrder: expected group {expected.index} of epoch {expected.epoch}, got "
                f"group {header.group} of epoch {header.epoch}; this is a defect of the feed, "
                "please report it"
            )

    def _fill(self, arriving: Iterator[Chunk]) -> None:
        while not self._is_full():
            chunk = next(arriving, None)
            if chunk is None:
                return
            if chunk.header.group in self.position.done:
                continue  # the checkpoint counts all rows of this group
            offset = self.position.consumed(chunk.header)
            if chunk.header.num_rows == 0:
                self._consume(chunk.header, 0)
            elif offset < chunk.header.num_rows:
                self._put(Buffered(chunk, offset))

    def _put(self, buffered: Buffered) -> None:
        cutting = self.cutting
        if buffered.has_whole(cutting.batch_size) and not cutting.preserve_order:
            self._whole.append(buffered)
            return
        if buffered.offset and not cutting.preserve_order:
            buffered.detach()  # it may wait for many other chunks
        self._rest.append(buffered)
        self._rest_rows += buffered.rows_left

    def _next_parts(self, rows: int) -> list[tuple[Buffered, int]]:
        """Return the chunks with the next batch, and how many rows of each belong to it."""
        if self._rest_rows < rows:
            return [(self._whole[0], rows)]
        parts = []
        for buffered in self._rest:
            count = min(rows, buffered.rows_left)
            parts.append((buffered, count))
            rows -= count
            if not rows:
                break
        return parts

    def _collect(self, sources: Sequence[tuple[Buffered, int]]) -> BatchRows:
        held = (buffered.chunk.rows for buffered, _ in sources)
        once = next((rows.once for rows in held if isinstance(rows, Batches)), ())
        parts = tuple(part for buffered, rows in sources for part in buffered.parts(rows))
        return BatchRows(parts, once)

    def _cut(self, rows: int) -> BatchRows:
        started = time.perf_counter()
        parts = self._next_parts(rows)
        batch, self._following = self._following, None
        if batch is None:
            batch = self._collect(parts)
        identities: list[tuple[Hashes, Hashes]] = []
        for buffered, count in parts:
            self.position.checksum.add(buffered.hashes(count, self.cutting.weight_column))
            if self.identify is not None:
                identities.append(buffered.identities(count))
            self._take(buffered, count)
        if self.identify is not None:
            rows_parts, group_parts = zip(*identities, strict=True)
            self.identify(np.concatenate(rows_parts), np.concatenate(group_parts))
        self._partial = self._count_partial()
        self.waited.batching += time.perf_counter() - started
        return batch

    def _take(self, source: Buffered, rows: int) -> None:
        """Record that rows of a chunk went into a batch or were dropped."""
        queue = self._rest
        if self._whole and self._whole[0] is source:
            queue = self._whole
        else:
            self._rest_rows -= rows
        source.offset += rows
        self._consume(source.chunk.header, rows)
        if queue is self._rest and source.rows_left:
            return
        queue.popleft()
        if source.rows_left:
            self._put(source)

    def _consume(self, header: Header, rows: int) -> None:
        if self.position.consume(header, rows) and self.measured is not None:
            self.measured.add(header)

    def _count_partial(self) -> tuple[StepCount, ...]:
        counts: tuple[StepCount, ...] = ()
        for buffered in (*self._whole, *self._rest):
            if buffered.offset:
                counts = add_counts(counts, buffered.chunk.header.counts)
        return counts

    def _forget_rows(self) -> None:
        """Drop the remaining rows of an epoch that was left before its end."""
        self._whole.clear()
        self._rest.clear()
        self._rest_rows, self._following, self._partial = 0, None, ()

    def _drop_rest(self, arriving: Iterator[Chunk]) -> None:
        """Drop the rows that do not fill a batch on every rank, and count them."""
        self._following = None
        while self._whole or self._rest:
            head = self._whole[0] if self._whole else self._rest[0]
            self.dropped_rows += head.rows_left
            self._take(head, head.rows_left)
            self._fill(arriving)
        self._partial = ()


def explain_no_rows(
    step_names: Sequence[str], counts: Sequence[StepCount], dropped_rows: int
) -> str:
    """Explain why an epoch had no batch, from the rows after the read and every step."""
    rule = "no rows reached the trainer"
    if dropped_rows:
        return (
            f"{rule}: lastBatch: Drop left out all {dropped_rows:,} rows, which do not fill a "
            "batch on every rank; lower training.batchSize, or use lastBatch: Pad"
        )
    for name, before, count in zip(step_names[1:], counts, counts[1:], strict=False):
        if before.rows and not count.rows:
            return (
                f"{rule}: {counts[0].rows:,} rows were read, and the last {before.rows:,} of them "
                f"were left out by {name}; check what it keeps"
            )
    return f"{rule}: none were read; check spec.dataset"
