"""One session: readers and a training on the rows, each on a core of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import ray
import torch

from benchmarks.dataloading.measuring.epochs import find_steady
from benchmarks.dataloading.workloads import DENSE, WHOLE_CATEGORIES, Workload, build_experiment
from benchmarks.harness.errors import BenchmarkError
from pipeline_runtime.batches import ROW_WEIGHT, Batch
from pipeline_runtime.config import Training
from pipeline_runtime.errors import LastmileError
from pipeline_runtime.feed.base import FeedSource, Waited
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.feed.local.thread_readers import ThreadReaders, threads_per_rank
from pipeline_runtime.feed.making.batching import batching_of
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.feed.over_ray.actor_readers import ActorReaders, start_pool
from pipeline_runtime.feed.over_ray.reader_actor import Reporter
from pipeline_runtime.hashing import Checksum
from pipeline_runtime.plan import Plan, build_plan
from pipeline_runtime.profiling.replay import wire_alone
from pipeline_runtime.training.context import TrainContext
from pipeline_runtime.training.position import Position
from pipeline_runtime.training.ranking.trainer import train_loop
from pipeline_runtime.training.stream import BatchStream, Cutting, agree_alone

THREADS, PROCESSES = READERS = "threads", "processes"
FROZEN: Final = "frozen"  # batches in memory
NUM_FROZEN: Final = 64
# The feed's threads start with the first batches, on the core that this thread has then.
_PIN_AFTER: Final = 3
_SEQUENCE: Final = {"column": "user_sequence", "target": "item_id"}


def _model(dense: int, categories: int, hidden: int, *, sequence: bool) -> dict[str, Any]:
    return {
        "dense": list(DENSE[:dense]),
        "categorical": ["item_id", "position", *WHOLE_CATEGORIES][: 2 + categories],
        "sequences": [_SEQUENCE] if sequence else [],
        "hidden": [hidden, max(1, hidden // 2)],
    }


# By their cost, from small models for a laptop to large ones.
MODELS: Final = (
    _model(4, -2, 4, sequence=False),
    _model(20, -2, 16, sequence=False),
    _model(4, 0, 16, sequence=False),
    _model(20, 0, 64, sequence=False),
    _model(20, 4, 128, sequence=False),
    *(_model(20, 8, hidden, sequence=False) for hidden in (128, 256, 512)),
    *(_model(20, 8, hidden, sequence=True) for hidden in (64, 128, 256, 512, 768, 1024, 1536)),
)


class Session(TrainContext):
    """A context that records when batches were requested; its thread ends on the trainer's core."""

    def __init__(
        self, spec: Training, plan: Plan, readers: FeedSource, cores: tuple[int, int]
    ) -> None:
        stream = _open_stream(spec, plan, readers)
        super().__init__(spec, plan.training.output_schema, torch.device("cpu"), wire_alone(stream))
        stream.agree = agree_alone  # no checkpoint falls due
        self.frozen: Iterator[Batch] | None = None  # instead of those of the readers
        self.taken: list[tuple[float, int]] = []  # when, and how many rows had come by then
        self.cpu_seconds = 0.0  # of this process, all batches long
        self._stream = stream
        self._cores = cores

    def epochs(self) -> Iterator[int]:
        """Yield the only epoch."""
        yield 0

    def batches(self) -> Generator[Batch, None, None]:
        """Yield the epoch's batches, or the frozen ones."""
        trainer, data = self._cores
        os.sched_setaffinity(0, {data})
        started, cpu, rows = time.perf_counter(), time.process_time(), 0
        for index, batch in enumerate(self.frozen or super().batches()):
            if index == _PIN_AFTER:
                os.sched_setaffinity(0, {trainer})
            rows += len(batch[ROW_WEIGHT])
            self.taken.append((time.perf_counter() - started, rows))
            yield batch
        self.cpu_seconds = time.process_time() - cpu

    @property
    def rows_per_second(self) -> float:
        """Delivered rows per second, in the middle 80 % of the rows."""
        steady = find_steady(self.taken, self.taken[-1][0])
        return steady.rows / steady.seconds

    @property
    def waited_share(self) -> float:
        """Share of the trainer's time spent waiting for rows to be made."""
        return self._stream.waited.production / self.taken[-1][0]

    @property
    def checksum(self) -> Checksum:
        """Checksum of all taken rows."""
        return self._stream.position.checksum


def _open_stream(spec: Training, plan: Plan, readers: FeedSource) -> BatchStream:
    """Open the stream that `training.ranks.worker` opens for the only rank of a machine."""
    groups = plan.training.groups(0, plan.training.chunk_rows)
    waited = Waited()

    def open_later() -> Iterator[Chunk]:
        """Open the feed with the first batch, on the core that this thread has then."""
        yield from readers.open("training", 0, groups, in_order=False).chunks(waited)

    return BatchStream(
        chunks=open_later(),
        groups=groups,
        cutting=Cutting(
            batch_size=spec.batch_size,
            last_batch=spec.last_batch,
            weight_column=spec.weight_column,
        ),
        position=Position(),
        waited=waited,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One level of work on one table; the cores are the trainer's and the data's."""

    spec: Training
    plan: Plan
    readers: Mapping[str, FeedSource]
    cores: tuple[int, int]
    frozen: list[Batch] = field(default_factory=list)

    def run(
        self, source: str, model: Mapping[str, Any] | None = None, *, steps: int | None = None
    ) -> Session:
        """Take all batches of the readers, or so many frozen ones, and train a model on them.

        Args:
            source: of the batches, one of `READERS` or `FROZEN`.
            model: without one, nothing is done with the batches.
        """
        spec = self.spec.model_copy(update={"config": dict(model or {})})
        readers = self.readers[THREADS if source == FROZEN else source]
        session = Session(spec, self.plan, readers, self.cores)
        if source == FROZEN:
            session.frozen = itertools.islice(itertools.cycle(self.frozen), steps)
        try:
            if model:
                train_loop(session)
            else:
                for _ in session.batches():
                    pass
        finally:
            os.sched_setaffinity(0, set(self.cores))
        return session

    def freeze(self) -> None:
        """Keep the first batches of an epoch, all different."""
        session = Session(self.spec, self.plan, self.readers[THREADS], self.cores)
        for batch in itertools.islice(session.batches(), NUM_FROZEN):
            self.frozen.append({name: tensor.clone() for name, tensor in batch.items()})
        os.sched_setaffinity(0, set(self.cores))


def find_cores() -> tuple[int, int]:
    """Return the cores of the trainer and of the data."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise BenchmarkError("the trainer and the data need a core each, but there is one")
    return cores[0], cores[1]


@contextlib.contextmanager
def open_bench(workload: Workload, cores: tuple[int, int]) -> Iterator[Bench]:
    """Open readers of both kinds; Ray has the data's core."""

    def fail(error: LastmileError) -> None:  # travels by value
        raise error

    spec = build_experiment(workload).spec.training
    plan = build_plan(build_experiment(workload), workload.root)
    rows = plan.training
    batching = batching_of(plan.delivery, rows, spec)
    streams = {"training": Stream(plan=rows, chunk_rows=rows.chunk_rows, batching=batching)}
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cores[1]})
    # Ray is told of two cores, one of which is the trainer's.
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        pool, held = start_pool(streams, Reporter(on_failure=fail), labels=None, num_trainers=1)
        os.sched_setaffinity(0, everywhere)
        readers: dict[str, FeedSource] = {
            THREADS: ThreadReaders(streams=streams, num_threads=threads_per_rank(1)),
            PROCESSES: ActorReaders(pool=pool, streams=held, chunk_rows=rows.chunk_rows),
        }
        bench = Bench(spec=spec, plan=plan, readers=readers, cores=cores)
        bench.freeze()
        yield bench
    finally:
        ray.shutdown()
