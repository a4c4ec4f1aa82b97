"""A context that replays batches from memory, to measure the user's unchanged training loop.

It differs from `TrainContext` in two ways: batches come from memory, in blocks of one kind each,
until the time is over; and checkpoints are discarded.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import pyarrow as pa
import torch
from pyarrow import fs as pafs

from pipeline_runtime.batches import Batch
from pipeline_runtime.config import Training
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.plan import Group
from pipeline_runtime.profiling.clock import read_clock
from pipeline_runtime.sources import Location
from pipeline_runtime.training.checkpoints.checkpoint import CheckpointStore
from pipeline_runtime.training.checkpoints.header import RunIdentity
from pipeline_runtime.training.context import TrainContext, Wiring
from pipeline_runtime.training.position import Position
from pipeline_runtime.training.stream import BatchStream, Cutting, agree_alone

# Rounds needed after the first, which warms up.
MIN_ROUNDS = 3
# The length of a block is chosen so that this many rounds fit the time.
_PLANNED_ROUNDS = 6
# In a block of one step, a single slow step would count too much.
_MIN_STEPS = 2
# After this multiple of the time, one round is enough: the steps of the loop are slow.
_MAX_OVERTIME = 3.0


class Kind(Enum):
    """The kind of a block's batches."""

    FROZEN = "frozen"  # tensors on the device
    SMALL = "small"  # the same with half the rows
    CHUNKS = "chunks"  # cut, collated and copied to the device, as in a run


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Consecutive steps of one kind.

    `seconds` excludes reports, and the copying of frozen batches.
    """

    kind: Kind
    rows: int
    steps: int
    seconds: float
    waited: Mapping[str, float]  # seconds of batching, collate and transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """The batches of each kind, and the chunks to cut further batches from."""

    frozen: Sequence[Batch]
    small: Sequence[Batch]  # empty: measure whole batches only
    chunks: Sequence[Chunk]
    batch_rows: int
    request_columns: tuple[str, ...]  # columns that batches hold once per request
    prefetch: bool  # pipelineOptions.debug.prefetch
    sparse: bool  # pipelineOptions.debug.sparse


class ReplayContext(TrainContext):
    """See the module's docstring; afterwards, `blocks` has the measurements."""

    def __init__(
        self,
        spec: Training,
        schema: pa.Schema,
        device: torch.device,
        stock: Stock,
        seconds: float,
    ) -> None:
        wiring = wire_alone(
            _open_stream(spec, stock),
            request_columns=stock.request_columns,
            prefetch=stock.prefetch,
            sparse=stock.sparse,
        )
        super().__init__(spec, schema, device, wiring)
        wiring.training.agree = agree_alone  # no checkpoint becomes due
        self.blocks: list[Block] = []
        self._training = wiring.training
        self._seconds = seconds
        self._kinds = [Kind.FROZEN, Kind.CHUNKS, *([Kind.SMALL] if stock.small else [])]
        self._sources = {
            Kind.FROZEN: itertools.cycle(stock.frozen),
            Kind.SMALL: itertools.cycle(stock.small),
        }
        self._rows = wiring.training.epoch_rows(0)
        self._began = time.perf_counter()

    @property
    def rounds(self) -> list[list[Block]]:
        """Rounds with one block of every kind, without the first and an incomplete last round."""
        size = len(self._kinds)
        whole = len(self.blocks) // size * size
        return [self.blocks[first : first + size] for first in range(size, whole, size)]

    def epochs(self) -> Iterator[int]:
        """Yield one epoch, which lasts as long as the measurement."""
        self._began = time.perf_counter()  # do not count the time before the first batch
        yield 0

    def batches(self) -> Generator[Batch]:
        """Yield batches until the time is over."""
        while not self._has_enough():
            yield from self._play(self._kinds[len(self.blocks) % len(self._kinds)])

    def _has_enough(self) -> bool:
        if len(self.blocks) % len(self._kinds):
            return False
        rounds, spent = len(self.rounds), time.perf_counter() - self._began
        if spent > _MAX_OVERTIME * self._seconds:
            return rounds >= 1
        return rounds >= MIN_ROUNDS and spent >= self._seconds

    def _play(self, kind: Kind) -> Iterator[Batch]:
        """Yield one block's batches. Raises the error of a value that does not fit its tensor."""
        seconds = self._seconds / _PLANNED_ROUNDS / len(self._kinds)
        before, paused = self._host_seconds(), self.waited.paused
        rows = steps = 0
        aside = 0.0
        self._synchronise()
        started, clock = time.perf_counter(), read_clock()
        while steps < _MIN_STEPS or time.perf_counter() - started < seconds:
            asked = time.perf_counter()
            batch = self._next_batch(kind)
            if kind is not Kind.CHUNKS:
                aside += time.perf_counter() - asked
            num_rows = len(batch["row_weight"])
            yield batch
            rows, steps = rows + num_rows, steps + 1
        self._synchronise()
        spent = read_clock() - clock
        # A GPU continues to work while this thread waits for a core.
        own = 1.0 if self.device.type == "cuda" else spent.own / spent.wall
        took = own * (spent.wall - aside - (self.waited.paused - paused))
        waited = {name: own * (now - before[name]) for name, now in self._host_seconds().items()}
        self.blocks.append(Block(kind=kind, rows=rows, steps=steps, seconds=took, waited=waited))

    def _next_batch(self, kind: Kind) -> Batch:
        if kind is Kind.CHUNKS:
            return self._make_batch(next(self._rows), self._training, self._collator)
        self._training.position.batches += 1
        # The loop may write to its batch, which is yielded again.
        return {name: tensor.clone() for name, tensor in next(self._sources[kind]).items()}

    def _host_seconds(self) -> dict[str, float]:
        waited = self.waited
        return {
            "batching": waited.batching,
            "collate": waited.collate,
            "transfer": waited.transfer,
        }

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NoStore(CheckpointStore):
    """A checkpoint store that discards the checkpoints of the loop."""

    def save(self, state: dict[str, Any], header: dict[str, Any], *, checked: bool = False) -> str:
        return self.location.uri

    def remove_old(self, newest: str) -> None:
        """Do nothing: there is no checkpoint."""


def wire_alone(
    training: BatchStream,
    *,
    request_columns: tuple[str, ...] = (),
    prefetch: bool = True,
    sparse: bool = False,
) -> Wiring:
    """Build the wiring of a single rank that trains and does nothing else.

    Args:
        training: source of the batches.
        request_columns: columns that batches hold once per request.
        prefetch, sparse: the `pipelineOptions` of these names.
    """
    nowhere = Location(uri="nowhere:", filesystem=pafs.LocalFileSystem(), path="")
    return Wiring(
        training=training,
        open_evaluation=None,
        store=_NoStore(location=nowhere),
        identity=RunIdentity(run_hash="", run_config={}, preserve_order=False, data_digest=""),
        step_names=(),
        resume=None,
        warn=lambda message: None,
        evaluated=lambda evaluation: None,
        stop_event=threading.Event(),
        request_columns=request_columns,
        prefetch=prefetch,
        sparse=sparse,
    )


def _open_stream(spec: Training, stock: Stock) -> BatchStream:
    """Open an endless stream of batches, cut from the stock's chunks."""
    return BatchStream(
        chunks=_repeat(stock.chunks),
        groups=[Group(epoch=0, index=-1, units=())],  # never reached
        cutting=Cutting(
            batch_size=stock.batch_rows,
            last_batch=spec.last_batch,
            weight_column=spec.weight_column,
        ),
        position=Position(),
        waited=Waited(),
    )


def _repeat(chunks: Sequence[Chunk]) -> Iterator[Chunk]:
    """Repeat the chunks forever, with new group numbers, so that the stream takes them as new."""
    for index, chunk in enumerate(itertools.cycle(chunks)):
        header = replace(chunk.header, epoch=0, group=index, chunk=0, is_last=True, counts=())
        yield replace(chunk, header=header)
