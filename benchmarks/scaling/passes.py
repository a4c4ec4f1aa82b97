"""One pass over groups by the trainer's side, in this process, and its measurements.

A rank's own path: `ReaderFeed` leases groups to the pool's readers and takes their chunks out of
the object store, `BatchStream` cuts batches, `Collator` makes tensors that may be written to. A
pass is measured in its steady part, which leaves out two chunks of each reader at either end, when
readers start and when some have no work left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from benchmarks.dataloading.workloads import BATCH_SIZE
from benchmarks.harness.machine import tree_cpu_seconds
from benchmarks.harness.rounds import Sample
from benchmarks.scaling.readers import Readers, Source
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.feed.over_ray.actor_readers import ActorCrew
from pipeline_runtime.feed.reader_feed import ReaderFeed
from pipeline_runtime.feed.transport.wire import Sending
from pipeline_runtime.plan.groups import Group
from pipeline_runtime.training.collating import Collator
from pipeline_runtime.training.position import Position
from pipeline_runtime.training.stream import BatchStream, Cutting

RATE, CPU = "rowsPerSecond", "cpuSeconds"  # the latter for a million rows


@dataclass(slots=True, kw_only=True)
class Meter:
    """Rows and seconds of the steady part of a pass, without `skipped` chunks at either end."""

    look: Callable[[], float]  # returns the CPU seconds up to now
    skipped: int
    num_chunks: int
    _ends: list[tuple[float, float, int]] = field(default_factory=list)  # seconds, CPU, rows so far

    def watch(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """Yield the chunks of the pass."""
        rows = 0
        for number, chunk in enumerate(chunks, start=1):
            rows += chunk.header.num_rows
            if number in (self.skipped, self.num_chunks - self.skipped):
                self._ends.append((time.perf_counter(), self.look(), rows))
            yield chunk

    def values(self) -> dict[str, float]:
        """Return the metrics, once all chunks have arrived."""
        first, last = self._ends
        seconds, cpu, rows = (after - before for before, after in zip(first, last, strict=True))
        return {RATE: rows / seconds, CPU: cpu / rows * 1e6}


def run_pass(
    readers: Readers, source: Source, groups: Sequence[Group], num_readers: int, sending: Sending
) -> Sample:
    """Take all rows of groups of one chunk each as tensors."""

    def look() -> float:
        """Return the CPU seconds of the trainer, and of the pool, which looks after the readers."""
        return time.process_time() + (tree_cpu_seconds(readers.pid) or 0.0)

    meter = Meter(look=look, skipped=2 * num_readers, num_chunks=len(groups))
    waited, position = Waited(), Position()
    feed = ReaderFeed(
        crew=ActorCrew(readers.pool, readers.streams, sending),
        role=source.units,
        groups=groups,
        chunk_rows=source.stream.chunk_rows,
        in_order=False,
    )
    stream = BatchStream(
        chunks=meter.watch(feed.chunks(waited)),
        groups=groups,
        cutting=Cutting(batch_size=BATCH_SIZE, last_batch="Pad"),
        position=position,
        waited=waited,
    )
    collator = Collator(torch.device("cpu"), weight_column=None, label_column=None, ahead=True)
    for epoch in range(groups[-1].epoch + 1):
        for rows in stream.epoch_rows(epoch):
            assert rows is not None  # a single rank has rows at every step
            collator.make(rows, stream.following(), waited)
    return Sample(meter.values(), position.checksum.to_json())
