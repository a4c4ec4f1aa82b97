"""One pass over groups by the trainer's side, in this process, and its measurements.

A rank's own path: `ReaderFeed` leases groups to the pool's readers and takes their chunks out of
the object store, `BatchStream` cuts batches, `Collator` makes tensors that may be written to. A
pass is measured in its steady part, which leaves out two chunks of each reader at either end, when
readers start and when some have no work left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray
import torch
from ray.experimental import get_local_object_locations

from benchmarks.dataloading.workloads import BATCH_SIZE
from benchmarks.scaling.cpu_time import COORDINATOR, TRAINER, cpu_seconds_by_kind
from benchmarks.scaling.readers import Readers
from benchmarks.scaling.units import Source
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.feed.over_ray.actor_readers import ActorCrew
from pipeline_runtime.feed.reader_feed import ReaderFeed
from pipeline_runtime.feed.transport.wire import Sending
from pipeline_runtime.plan.groups import Group
from pipeline_runtime.training.collating import Collator
from pipeline_runtime.training.position import Position
from pipeline_runtime.training.stream import BatchStream, Cutting


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """The arrival of a chunk at the trainer, by `time.perf_counter`; `node` is Ray's id."""

    at: float
    node: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """Rows and seconds of the steady part of a pass, and CPU seconds by `cpu_time.KINDS`.

    The coordinator is the pool, which looks after the readers; the trainer leases its groups
    itself.
    """

    rows: int
    seconds: float
    cpu_seconds: Mapping[str, float]

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds

    @property
    def cpu_seconds_per_row(self) -> float:
        """CPU seconds of the trainer and the coordinator."""
        return (self.cpu_seconds[TRAINER] + self.cpu_seconds[COORDINATOR]) / self.rows


@dataclass(slots=True, kw_only=True)
class Meter:
    """Arrivals of a pass, and CPU seconds at both ends of its steady part.

    Args:
        look: returns the CPU seconds by kind up to now.
        skipped: chunks before the steady part, and after it.
        num_chunks: in all, more than twice `skipped`.
    """

    look: Callable[[], Mapping[str, float]]
    skipped: int
    num_chunks: int
    arrivals: list[Arrival] = field(default_factory=list)
    _looks: list[Mapping[str, float]] = field(default_factory=list)

    def add(self, node: str, rows: int) -> None:
        """Record a chunk that has just arrived."""
        self.arrivals.append(Arrival(at=time.perf_counter(), node=node, rows=rows))
        if len(self.arrivals) in (self.skipped, self.num_chunks - self.skipped):
            self._looks.append(self.look())

    def steady(self) -> Steady:
        """Return the steady part, once all chunks have arrived."""
        before, *during = self.arrivals[self.skipped - 1 : -self.skipped]
        start, end = self._looks
        return Steady(
            rows=sum(each.rows for each in during),
            seconds=during[-1].at - before.at,
            cpu_seconds={kind: end[kind] - start[kind] for kind in end},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Results of a pass: its steady part, and bytes, checksum and waits of the whole."""

    steady: Steady
    num_bytes: int
    checksum: dict[str, Any]  # see training.position
    waited: Waited


def start_meter(readers: Readers, groups: Sequence[Group], num_readers: int) -> Meter:
    """Return a meter of a pass over groups of one chunk each."""
    look = partial(cpu_seconds_by_kind, readers.pid)
    return Meter(look=look, skipped=2 * num_readers, num_chunks=len(groups))


def run_pass(
    readers: Readers,
    source: Source,
    groups: Sequence[Group],
    meter: Meter,
    sending: Sending | None = None,
) -> Pass:
    """Take all rows of the groups as tensors. Raises FeedError if no reader makes them."""
    waited, position, num_bytes = Waited(), Position(), 0
    feed = ReaderFeed(
        crew=_MeteredCrew(readers, meter, sending or Sending()),
        role=source.units,
        groups=groups,
        chunk_rows=source.stream.chunk_rows,
        in_order=False,
    )
    stream = BatchStream(
        chunks=feed.chunks(waited),
        groups=groups,
        cutting=Cutting(batch_size=BATCH_SIZE, last_batch="Pad"),
        position=position,
        waited=waited,
    )
    collator = Collator(torch.device("cpu"), weight_column=None, label_column=None, ahead=True)
    for epoch in range(groups[-1].epoch + 1):
        for rows in stream.epoch_rows(epoch):
            assert rows is not None  # a single rank has rows at every step
            batch = collator.make(rows, stream.following(), waited)
            num_bytes += sum(tensor.nbytes for tensor in batch.values())
    checksum = position.checksum.to_json()
    return Pass(steady=meter.steady(), num_bytes=num_bytes, checksum=checksum, waited=waited)


class _MeteredCrew(ActorCrew):
    """The pool's readers, whose chunks are metered."""

    def __init__(self, readers: Readers, meter: Meter, sending: Sending) -> None:
        super().__init__(readers.pool, readers.streams, sending)
        self._meter = meter
        self._own_node = ray.get_runtime_context().get_node_id()

    def take(self, ticket: Any, waited: Waited) -> Sequence[Chunk]:
        """See Crew."""
        known = get_local_object_locations([ticket]).get(ticket, {}).get("node_ids", [])
        makers = [node for node in known if node != self._own_node]  # it was pulled here too
        chunks = super().take(ticket, waited)
        for chunk in chunks:
            self._meter.add(makers[0] if makers else "", chunk.header.num_rows)
        return chunks
