"""One epoch of a loader: open the feed, cut batches, make tensors, and end the threads after it.

`loader` starts it, and reads its progress from `EpochProgress`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace

from pipeline_runtime.batches import ROW_WEIGHT, Batch, empty_batch, pad_batch, to_device
from pipeline_runtime.errors import CheckpointError, LastmileError, LoaderError
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.feed.local.thread_readers import ThreadReaders, threads_per_rank
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.feed.making.work import name_of
from pipeline_runtime.loader.options import LoaderOptions
from pipeline_runtime.loader.ranks import Agreeing, Ranks
from pipeline_runtime.loader.state import Start
from pipeline_runtime.plan import share_groups
from pipeline_runtime.training.buffered import BatchRows
from pipeline_runtime.training.collating import Collator
from pipeline_runtime.training.position import Position
from pipeline_runtime.training.stream import (
    Agree,
    Agreement,
    BatchStream,
    Cutting,
    explain_no_rows,
)

_ROLE = "training"  # of the only stream
# All ranks took these steps when the batches were delivered first.
_STEPPED = Agreement(any_has_rows=True, all_are_full=True)


@dataclass(slots=True, kw_only=True)
class EpochProgress:
    """The progress of an epoch.

    Attributes:
        start: the beginning of its batches.
        num_delivered: batches of the epoch that the caller has, those before `start` included.
        position: the rows that went into batches; of one more batch while it is made.
    """

    start: Start
    rank: int
    world_size: int
    num_delivered: int = field(init=False)
    position: Position = field(default_factory=Position)
    is_finished: bool = False

    def __post_init__(self) -> None:
        self.num_delivered = self.start.batches

    @property
    def has_begun(self) -> bool:
        """True once a batch was delivered, or none was left; until then, no epoch is used up."""
        return self.is_finished or self.num_delivered > self.start.batches

    def deliver(self, batch: Batch) -> Batch:
        """Count a batch that is given to the caller now, and return it."""
        self.num_delivered = self.position.batches
        return batch

    def here(self) -> Start:
        """Return where a loader begins that resumes from here."""
        if self.is_finished:
            return Start(epoch=self.start.epoch + 1, chunk_rows=self.start.chunk_rows)
        if not self.has_begun:
            return self.start
        # If making the next batch was interrupted, the count alone tells where to go on.
        is_exact = self.position.batches == self.num_delivered
        return replace(
            self.start,
            batches=self.num_delivered,
            rank=self.rank,
            world_size=self.world_size,
            position=self.position.copy() if is_exact else Position(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The settings by which the batches of a stream are made; the same in every epoch."""

    stream: Stream
    batch_size: int
    preserve_order: bool
    prefetch: bool
    sparse: bool
    options: LoaderOptions


def iterate_epoch(
    recipe: Recipe, ranks: Ranks, agreeing: Agreeing, progress: EpochProgress
) -> Generator[Batch, None, None]:
    """Yield the epoch's batches from `progress.start` on, and keep `progress` up to date.

    Args:
        agreeing: with the other ranks, which learn of an error that this one meets alone.

    Raises SourceError or StepError of the read and the steps, TrainingError for a value that has no
    place in its tensor, and CheckpointError if more batches were delivered before than there are.
    """
    start = progress.start
    is_known = start.has_position(ranks.rank, ranks.world_size)
    position = progress.position = start.position.copy() if is_known else Position()
    num_behind = 0 if is_known else start.batches
    waited = Waited()
    with contextlib.ExitStack() as stack:
        stream = _open_stream(recipe, ranks, start, position, waited, stack)
        stream.chunks = _telling(stream.chunks, agreeing)
        stream.agree = agreeing.agree
        if ranks.world_size > 1:
            stream.agree = _agree_after(num_behind, position, agreeing.agree)
        collator = Collator(
            recipe.options.device,
            weight_column=None,
            label_column=None,
            ahead=recipe.prefetch,
            sparse=recipe.sparse,
        )
        stack.callback(collator.close)
        for rows in stream.epoch_rows(start.epoch):
            if position.batches > num_behind:
                yield progress.deliver(_make_batch(recipe, rows, stream, collator))
    if position.batches < num_behind:
        raise CheckpointError(
            f"loader state: batches must be at most {position.batches}, the batches of epoch "
            f"{start.epoch}, but is {num_behind}"
        )
    progress.is_finished = True
    if position.batches == 0:
        warnings.warn(_explain_no_batches(recipe, stream), stacklevel=4)
    elif position.samples == 0:
        warnings.warn(
            f"rank {ranks.rank} had batches of padding alone in this epoch, because the steps left "
            "no row of its part of the table; use fewer ranks, or more rows",
            stacklevel=4,
        )


def _telling(chunks: Iterator[Chunk], agreeing: Agreeing) -> Iterator[Chunk]:
    """Yield the chunks; tell the other ranks of an error, for they wait for the next agreement."""
    try:
        yield from chunks
    except LastmileError as error:
        agreeing.fail(error)
        raise


def _open_stream(
    recipe: Recipe,
    ranks: Ranks,
    start: Start,
    position: Position,
    waited: Waited,
    stack: contextlib.ExitStack,
) -> BatchStream:
    """Open the rank's part of an epoch, until the stack is closed."""
    source = replace(recipe.stream, chunk_rows=start.chunk_rows)
    groups = source.plan.groups(start.epoch, start.chunk_rows)
    mine = share_groups(groups, ranks.world_size)[ranks.rank]
    groups = [group for group in mine if group.index not in position.done]
    num_threads = recipe.options.num_threads or threads_per_rank(ranks.num_here)
    readers = ThreadReaders(streams={_ROLE: source}, num_threads=num_threads)
    feed = readers.open(_ROLE, ranks.rank, groups, in_order=True)
    return BatchStream(
        chunks=stack.enter_context(contextlib.closing(feed.chunks(waited))),
        groups=groups,
        cutting=Cutting(
            batch_size=recipe.batch_size,
            last_batch="Drop" if recipe.options.last_batch == "drop" else "Pad",
            preserve_order=recipe.preserve_order,
        ),
        position=position,
        waited=waited,
    )


def _agree_after(num_batches: int, position: Position, agree: Agree) -> Agree:
    """Agree with the other ranks once so many batches were made; they are ahead by these.

    If this rank has fewer, the others had rows when it had none.
    """

    def agree_or_step(has_rows: bool, is_full: bool) -> Agreement:
        if position.batches < num_batches:
            if has_rows:
                return _STEPPED
            position.batches = num_batches
        return agree(has_rows, is_full)

    return agree_or_step


def _make_batch(
    recipe: Recipe, rows: BatchRows | None, stream: BatchStream, collator: Collator
) -> Batch:
    """Make a batch on the device; of a rank without rows, rows of zeros that weigh nothing."""
    plan, device = recipe.stream.plan, recipe.options.device
    if rows is None:
        batch = empty_batch(plan.output_schema, plan.request_columns)
    else:
        batch = collator.make(rows, stream.following(), stream.waited)
    if recipe.options.last_batch == "pad":
        batch = pad_batch(batch, recipe.batch_size, plan.request_columns)
    else:
        del batch[ROW_WEIGHT]
    return batch if device.type == "cpu" else to_device(batch, device)


def _explain_no_batches(recipe: Recipe, stream: BatchStream) -> str:
    if stream.dropped_rows:
        return (
            f"the epoch has no batches: last_batch='drop' left out all {stream.dropped_rows:,} "
            f"rows, which do not fill a batch of {recipe.batch_size:,} on every rank; lower "
            "batch_size, or use last_batch='pad'"
        )
    plan = recipe.stream.plan
    names = ("the read", *map(name_of, plan.steps))
    reason = plan.explain_no_units() or explain_no_rows(names, stream.position.counts, 0)
    return f"the epoch has no batches: {reason}"


def check_process(pid: int) -> None:
    """Raise LoaderError in another process than the one with this id, which is a fork of it."""
    if os.getpid() != pid:
        raise LoaderError(
            f"the loader was made in process {pid} and is used in its fork {os.getpid()}, where "
            "its threads do not exist. Make the loader in the process that uses it, or start "
            "processes by 'spawn', which pickles it"
        )


class BatchIterator(Iterator[Batch]):
    """The batches of one epoch; their threads end with it, or when it is closed or collected.

    Several threads may take batches and close it: each batch goes to one of them.
    """

    def __init__(self, batches: Generator[Batch, None, None]) -> None:
        self._batches = batches
        self._pid = os.getpid()
        self._lock = threading.Lock()  # of the generator, which one thread can run at a time
        self._ended_by: str | None = None  # None: it goes on, or its batches are exhausted
        self._is_exhausted = False

    @property
    def is_over(self) -> bool:
        """True if there are no more batches, for whatever reason."""
        return self._is_exhausted or self._ended_by is not None

    def __next__(self) -> Batch:
        check_process(self._pid)
        try:
            with self._lock:
                return self._take()
        finally:
            if self._ended_by is not None:  # by another thread, which left the rest to this one
                self._end()

    def _take(self) -> Batch:
        if self._ended_by is not None:
            raise LoaderError(f"this loop has no more batches, because {self._ended_by}")
        try:
            return next(self._batches)
        except StopIteration:
            self._is_exhausted = True
            raise
        except BaseException as error:
            self._ended_by = f"it failed before ({type(error).__name__}); begin another loop"
            raise

    def close(self) -> None:
        """End the threads; the next batch is an error.

        A batch that another thread is waiting for is still made, and given to it.
        """
        if not self.is_over:
            self._ended_by = (
                "the loader was closed, loaded a state, or began a later loop; to iterate twice at "
                "the same time, make two loaders"
            )
        self._end()

    def _end(self) -> None:
        """End the generator, unless a thread is running it, which then does so."""
        if self._lock.acquire(blocking=False):
            try:
                self._batches.close()
            finally:
                self._lock.release()
