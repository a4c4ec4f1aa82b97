"""The feed over Ray Data: one streaming execution per rank, whose tasks read groups.

The dataset is a range of task numbers. Each task reads its share of the groups and yields their
chunks; stages that run apart are a `map_batches` each; `streaming_split` brings the chunks to the
trainer. All epochs are one execution, so the first chunks of the next epoch are made while this one
ends.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import pyarrow as pa
import ray
import ray.data
from ray.util.annotations import RayDeprecationWarning

from pipeline_runtime.config.step_model import MapResources
from pipeline_runtime.errors import LastmileError
from pipeline_runtime.feed.base import Waited, WorkerUsage
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.feed.making.group_reading import places_of
from pipeline_runtime.feed.making.work import read_group, run_stage
from pipeline_runtime.feed.over_ray.exchanging import exchange_by_tasks
from pipeline_runtime.feed.transport.wire import pack, unpack
from pipeline_runtime.plan.bucketed_sides import BucketedParts
from pipeline_runtime.plan.exchange import ExchangedParts
from pipeline_runtime.plan.groups import Group
from pipeline_runtime.plan.model import PlannedStep, Stage, StreamPlan
from pipeline_runtime.plan.part_files import share_files
from pipeline_runtime.sources import Location
from pipeline_runtime.steps.base import SideTable

# Ray needs about a millisecond per task to set up an execution. With a bounded number of tasks the
# time to the first batch does not grow with the table; a task then reads several groups in turn.
MAX_TASKS = 1024
# Any block with a row is larger than this, so Ray emits it at once, and a block is one chunk.
_ONE_CHUNK_BLOCKS_BYTES = 1
# A task whose process dies is retried, since nodes come and go. Ray would retry for ever, even if
# the rows themselves kill the process, as with a function that crashes.
MAX_TASK_RETRIES = 10
# Chunks that the trainer's process fetches ahead. Two hide the fetch; more only need memory.
_PREFETCH_CHUNKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RayDataOptions:
    """Options of executions on this cluster.

    Attributes:
        labels: of the nodes that may work on them.
        finish: called with every chunk by the task of the last stage; see `making.maker.Stream`.
        folder: the run's, which every node reaches: side tables are exchanged below it.
    """

    preserve_order: bool = False
    broadcast: bool = True
    labels: dict[str, str] | None = None
    finish: Callable[[Chunk], Chunk] | None = None
    folder: Location | None = None


def build_dataset(
    stream: StreamPlan,
    groups: Sequence[Group],
    chunk_rows: int,
    options: RayDataOptions,
    on_failure: Callable[[LastmileError], None],
) -> ray.data.Dataset:
    """Build a lazy dataset whose blocks are the packed chunks of these groups, in their order."""
    if options.broadcast:
        stream = broadcast_side_tables(stream, options.folder, options.labels)
    num_tasks, share = cut_into_tasks(len(groups))
    held = ray.put((stream, tuple(groups)))
    last = len(stream.stages) - 1

    def finish(index: int, chunk: Chunk) -> Chunk:
        return options.finish(chunk) if options.finish and index == last else chunk

    def read(block: pa.Table) -> Iterator[pa.Table]:
        plan, all_groups = ray.get(held)
        for task in block.column("id").to_pylist():
            for group in all_groups[task * share : (task + 1) * share]:
                with reporting(on_failure):
                    for chunk in read_group(plan, group, chunk_rows):
                        yield pack(finish(0, chunk))

    dataset = ray.data.range(num_tasks, override_num_blocks=num_tasks)
    dataset = _map(dataset, read, stream.stages[0])
    for index in range(1, len(stream.stages)):
        function = _stage_function(held, index, chunk_rows, on_failure, partial(finish, index))
        dataset = _map(dataset, function, stream.stages[index])
    _configure(dataset.context, options)
    return dataset


def cut_into_tasks(num_groups: int) -> tuple[int, int]:
    """Return the number of tasks, and the number of groups per task; the last may have fewer."""
    share = -(-num_groups // MAX_TASKS)
    return -(-num_groups // share), share


def _stage_function(
    held: Any,
    index: int,
    chunk_rows: int,
    on_failure: Callable[[LastmileError], None],
    finish: Callable[[Chunk], Chunk],
) -> Callable[[pa.Table], Iterator[pa.Table]]:
    def run(block: pa.Table) -> Iterator[pa.Table]:
        plan, all_groups = ray.get(held)
        by_key = {(group.epoch, group.index): group for group in all_groups}
        for chunk in unpack(block):
            group = by_key[chunk.header.epoch, chunk.header.group]
            places = places_of(group, chunk.header, chunk_rows)
            with reporting(on_failure):
                yield pack(finish(run_stage(plan, index, chunk, places)))

    return run


class reporting:  # noqa: N801 - a context manager, named as contextlib's are
    """Report an error to the driver before Ray wraps it in its own."""

    def __init__(self, on_failure: Callable[[LastmileError], None]) -> None:
        self._on_failure = on_failure

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, LastmileError):
            self._on_failure(error)


def _map(
    dataset: ray.data.Dataset, function: Callable[[pa.Table], Iterator[pa.Table]], stage: Stage
) -> ray.data.Dataset:
    with warnings.catch_warnings():
        # Ray has no other way to bound the retries of a task.
        warnings.filterwarnings("ignore", "`ray_remote_args` is deprecated", RayDeprecationWarning)
        return dataset.map_batches(
            function,
            batch_size=None,
            batch_format="pyarrow",
            zero_copy_batch=True,
            concurrency=stage.concurrency,
            max_retries=MAX_TASK_RETRIES,
            **_task_resources(stage.resources),
        )


def _task_resources(resources: MapResources | None) -> dict[str, Any]:
    if resources is None:
        return {}
    given = {
        "num_cpus": resources.cpu,
        "num_gpus": resources.gpu,
        "memory": resources.memory_bytes,
    }
    return {name: value for name, value in given.items() if value is not None}


def _configure(context: ray.data.DataContext, options: RayDataOptions) -> None:
    context.target_max_block_size = _ONE_CHUNK_BLOCKS_BYTES
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_options.preserve_order = options.preserve_order
    context.execution_options.label_selector = options.labels


@dataclass(frozen=True, slots=True)
class _ObjectLoader:
    """Gets a side table that the driver put into the object store."""

    reference: Any

    def __call__(self) -> pa.Table:
        return ray.get(self.reference)


def broadcast_side_tables(
    stream: StreamPlan, folder: Location | None, labels: dict[str, str] | None
) -> StreamPlan:
    """Read every side table once, before the workers do.

    One that is needed as a whole is read in this process, and workers map it from the object store.
    One that is exchanged is written to parts below the run's folder by tasks of Ray. The workers of
    a node share the parts that they read.
    """

    def share(step: PlannedStep) -> PlannedStep:
        side = step.transform.side_table
        if side is None:
            return step
        shared = _share(side, folder, labels)
        return replace(step, transform=replace(cast(Any, step.transform), side_table=shared))

    stages = tuple(
        replace(stage, steps=tuple(share(step) for step in stage.steps)) for stage in stream.stages
    )
    return replace(stream, stages=stages)


def _share(side: SideTable, folder: Location | None, labels: dict[str, str] | None) -> SideTable:
    parts = side.parts
    if isinstance(parts, ExchangedParts) and folder is not None:
        parts = exchange_by_tasks(parts, folder, labels)
    if isinstance(parts, BucketedParts):
        return replace(side, parts=replace(parts, files=share_files(side.digest)))
    if parts is not None or isinstance(side.load, _ObjectLoader):
        return side
    return replace(side, load=_ObjectLoader(ray.put(side.load())))


class RayDataFeed:
    """Chunks of one rank's dataset, with the time spent waiting for them."""

    def __init__(self, iterator: ray.data.DataIterator) -> None:
        self._iterator = iterator

    def chunks(self, waited: Waited, usage: WorkerUsage | None = None) -> Iterator[Chunk]:
        """Yield chunks as they are made; add the seconds blocked on each stage to `waited`."""
        blocks = iter(
            self._iterator.iter_batches(
                batch_size=None,  # type: ignore[arg-type]  # documented, not annotated
                batch_format="pyarrow",
                prefetch_batches=_PREFETCH_CHUNKS,
            )
        )
        while True:
            started, before = time.perf_counter(), self._transfer_seconds()
            block = next(blocks, None)
            blocked = time.perf_counter() - started
            transfer = min(blocked, max(0.0, self._transfer_seconds() - before))
            waited.transfer += transfer
            waited.production += blocked - transfer
            if block is None:
                return
            yield from unpack(block)

    def _transfer_seconds(self) -> float:
        """Return Ray's count of seconds that this thread was blocked on fetching blocks."""
        stats = getattr(self._iterator, "_iter_stats", None)
        timer = getattr(stats, "iter_blocked_data_transfer_s", None)
        return float(timer.get()) if timer is not None else 0.0
