"""The interface between a consumer of rows and the engine that makes them.

The training loop takes chunks from a `Feed` and counts the time that it waits for them. Engines
(readers as threads, processes or actors, and Ray Data) implement it. Rows and headers are the same
for every engine; readers make batches of a chunk's rows if the plan says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Protocol

from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.plan.groups import Group


@dataclass(slots=True)
class Waited:
    """Seconds of the trainer since the run began, by what it did."""

    compute: float = 0.0  # the entrypoint's own work between two batches
    production: float = 0.0  # blocked on rows that no worker has made yet; more workers help
    transfer: float = 0.0  # blocked on moving rows that are ready, to this process or the device
    batching: float = 0.0  # cutting and joining chunks into batches
    collate: float = 0.0  # rows to tensors, where no reader did it
    paused: float = 0.0  # evaluation, checkpoints, reports


@dataclass(slots=True)
class WorkerUsage:
    """Seconds of readers since the run began, by state, for the chunks of one rank."""

    read: float = 0.0  # reading and decoding
    compute: float = 0.0  # the steps, and batches made of rows
    blocked_output: float = 0.0  # as many chunks as allowed were ahead of the trainer
    idle: float = 0.0  # nothing to do: no group to lease, or the next call had not arrived
    inference: float = 0.0  # steps waited for inference workers
    warming_read: float = 0.0  # of read, by readers that had just started
    warming_compute: float = 0.0  # of compute, by those
    warming_inference: float = 0.0  # of inference, by those
    warming_rows: int = 0  # of rows, by those
    rows: int = 0  # delivered
    units: int = 0  # row groups delivered to the end
    ready: int = 0  # readers that answer, now
    workers: int = 0  # data workers that have delivered a chunk and answer, now
    workers_readers: int = 0  # readers of these
    # When each reader delivered its first chunk, by a monotonic clock, and from which data workers.
    began: dict[str, float] = field(default_factory=dict)
    delivered: set[str] = field(default_factory=set)

    def figures(self) -> dict[str, float]:
        """Return the numbers by name."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, int | float)}


class Feed(Protocol):
    """One rank's stream of chunks."""

    def chunks(self, waited: Waited, usage: WorkerUsage | None = None) -> Iterator[Chunk]:
        """Yield every chunk of the rank's groups once; add to `waited.production` and `.transfer`.

        Args:
            usage: the engine adds the time of its readers here, if it knows it.
        """
        ...


class FeedSource(Protocol):
    """An engine, as the process of a rank receives it; picklable."""

    def open(self, role: str, rank: int, groups: Sequence[Group], *, in_order: bool) -> Feed:
        """Open the rank's feed of these groups of a stream.

        Args:
            role: training or evaluation.
            in_order: chunks come in the groups' order, not as they are made.
        """
        ...
