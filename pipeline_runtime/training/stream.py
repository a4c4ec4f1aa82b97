"""From pieces to batches of exact size, one epoch after another, in step with the other ranks.

Owns the order in which rows reach the model, what a position counts as consumed, and the remainder
at an epoch's end. Before it runs the feed; after it `batches` makes tensors of each table.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from pipeline_runtime.errors import FeedError
from pipeline_runtime.feed.base import Waited, WorkerUsage
from pipeline_runtime.feed.pieces import Header, Piece, StepCount, add_counts
from pipeline_runtime.plan.groups import Group
from pipeline_runtime.steps.base import ROW_HASH_COLUMN
from pipeline_runtime.training.position import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """How batches are cut; `weight_column` decides which rows the checksum counts."""

    batch_size: int
    last_batch: str  # pad | drop
    weight_column: str | None = None
    preserve_order: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What the ranks agreed on before a step."""

    any_has_rows: bool
    all_are_full: bool


# Called before every step with (this rank has rows, its batch is full).
Agree = Callable[[bool, bool], Agreement]


def agree_alone(has_rows: bool, is_full: bool) -> Agreement:
    """The agreement of a single rank with itself: its remainder is a batch like any other."""
    return Agreement(any_has_rows=has_rows, all_are_full=is_full)


@dataclass(slots=True)
class _Arrival:
    """Which pieces of a group have arrived."""

    seen: int = 0
    num_pieces: int | None = None

    def add(self, header: Header) -> bool:
        """Note a piece; whether the group is now complete."""
        self.seen += 1
        if header.is_last:
            self.num_pieces = header.piece + 1
        return self.num_pieces == self.seen


@dataclass(slots=True)
class _Buffered:
    """The rest of a piece that waits to be cut into batches."""

    piece: Piece
    offset: int
    _ahead: tuple[int, int, pa.Table] | None = None

    def slice(self, rows: int) -> pa.Table:
        """The next rows; the same object as long as none was taken."""
        if self._ahead is None or self._ahead[:2] != (self.offset, rows):
            self._ahead = (self.offset, rows, self.piece.table.slice(self.offset, rows))
        return self._ahead[2]


@dataclass(slots=True)
class BatchStream:
    """One rank's batches; `position` is always that of the batches given out so far."""

    pieces: Iterator[Piece]
    groups: Sequence[Group]  # of this rank, in order, all epochs that are left
    cutting: Cutting
    position: Position
    waited: Waited
    agree: Agree = agree_alone
    usage: WorkerUsage = field(default_factory=WorkerUsage)  # of the readers, if the feed tells
    dropped_rows: int = 0
    _waiting: dict[int, set[int]] = field(init=False)  # epoch -> groups that have not arrived whole
    _arrivals: dict[tuple[int, int], _Arrival] = field(init=False, default_factory=dict)
    _held: dict[int, list[Piece]] = field(init=False, default_factory=dict)
    _buffer: deque[_Buffered] = field(init=False, default_factory=deque)
    _buffered_rows: int = field(init=False, default=0)
    _partial: tuple[StepCount, ...] = field(init=False, default=())
    _next: int = field(init=False, default=0)  # under preserveOrder: the group that is arriving

    def __post_init__(self) -> None:
        self._waiting = {}
        for group in self.groups:
            self._waiting.setdefault(group.epoch, set()).add(group.index)

    @property
    def counts(self) -> tuple[StepCount, ...]:
        """Rows and bytes of every step so far, of the piece that is being cut up too.

        A position counts that one when it is used up, since a resumed run makes it again.
        """
        return add_counts(self.position.counts, self._partial)

    @property
    def queue_length(self) -> int:
        """Pieces that have arrived and are not yet cut up."""
        return len(self._buffer) + sum(len(pieces) for pieces in self._held.values())

    def epoch_tables(self, epoch: int) -> Iterator[pa.Table | None]:
        """The epoch's batches; None for a step of the other ranks for which this one has no rows.

        Raises FeedError if the feed ends before the epoch's rows are complete.
        """
        self.position.start_epoch(epoch)
        arriving = self._arriving(epoch)
        while True:
            self._fill(arriving)
            rows = min(self._buffered_rows, self.cutting.batch_size)
            agreed = self.agree(rows > 0, rows == self.cutting.batch_size)
            if not agreed.any_has_rows:
                return
            if self.cutting.last_batch == "drop" and not agreed.all_are_full:
                self._drop_rest(arriving)
                return
            self.position.batches += 1
            self.position.samples += rows
            yield self._cut(rows) if rows else None

    def following(self) -> pa.Table | None:
        """What the next batch will be, if a piece that has arrived has all of it; it stays there.

        `epoch_tables` gives this very object then.
        """
        head, size = self._buffer[0] if self._buffer else None, self.cutting.batch_size
        if head is None or head.piece.header.num_rows - head.offset < size:
            return None
        return head.slice(size)

    def _arriving(self, epoch: int) -> Iterator[Piece]:
        """Pieces of this epoch; those of later ones, made ahead, are held back."""
        yield from self._held.pop(epoch, [])
        while self._waiting.get(epoch):
            piece = next(self.pieces, None)
            if piece is None:
                missing = sorted(self._waiting[epoch])[:5]
                raise FeedError(
                    f"the feed ended in epoch {epoch} before groups {missing} arrived; run again "
                    "with --resume"
                )
            self._note_arrival(piece.header)
            if piece.header.epoch == epoch:
                yield piece
            else:
                self._held.setdefault(piece.header.epoch, []).append(piece)

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

    def _fill(self, arriving: Iterator[Piece]) -> None:
        while self._buffered_rows < self.cutting.batch_size:
            piece = next(arriving, None)
            if piece is None:
                return
            if piece.header.group in self.position.done:
                continue  # the rest of a group of which a checkpoint saw all rows
            offset = self.position.consumed(piece.header)
            if piece.header.num_rows == 0:
                self.position.consume(piece.header, 0)
            elif offset < piece.header.num_rows:
                self._buffer.append(_Buffered(piece, offset))
                self._buffered_rows += piece.header.num_rows - offset

    def _cut(self, rows: int) -> pa.Table:
        started = time.perf_counter()
        slices = []
        while rows:
            head = self._buffer[0]
            taken = min(rows, head.piece.header.num_rows - head.offset)
            slices.append(head.slice(taken))
            self._take(head, taken)
            rows -= taken
        table = slices[0] if len(slices) == 1 else pa.concat_tables(slices)
        self._add_to_checksum(table)
        self.waited.batching += time.perf_counter() - started
        return table

    def _take(self, head: _Buffered, rows: int) -> None:
        header = head.piece.header
        head.offset += rows
        is_used_up = head.offset == header.num_rows
        self._partial = () if is_used_up else header.counts
        self.position.consume(header, rows)
        self._buffered_rows -= rows
        if is_used_up:
            self._buffer.popleft()

    def _drop_rest(self, arriving: Iterator[Piece]) -> None:
        """Leave out what does not fill a batch on every rank, and say how much it was."""
        while True:
            while self._buffer:
                head = self._buffer[0]
                rest = head.piece.header.num_rows - head.offset
                self.dropped_rows += rest
                self._take(head, rest)
            self._fill(arriving)
            if not self._buffer:
                return

    def _add_to_checksum(self, table: pa.Table) -> None:
        hashes = table.column(ROW_HASH_COLUMN).to_numpy()
        if self.cutting.weight_column:
            weights = table.column(self.cutting.weight_column).to_numpy()
            hashes = hashes[np.nan_to_num(weights) > 0]
        self.position.checksum.add(hashes)


def explain_no_rows(
    step_names: Sequence[str], counts: Sequence[StepCount], dropped_rows: int
) -> str:
    """Why an epoch had no batch, by what the read and every step gave out."""
    rule = "no rows reached the trainer"
    if dropped_rows:
        return (
            f"{rule}: lastBatch: drop left out all {dropped_rows:,} rows, which do not fill a "
            "batch on every rank; lower training.batchSize, or use lastBatch: pad"
        )
    for name, before, count in zip(step_names[1:], counts, counts[1:], strict=False):
        if before.rows and not count.rows:
            return (
                f"{rule}: {counts[0].rows:,} rows were read, and the last {before.rows:,} of them "
                f"were left out by {name}; check what it keeps"
            )
    return f"{rule}: none were read; check spec.dataset"
