"""Writers on the data workers of a Ray cluster.

Readers are those of a training (`feed.over_ray`): each stores the rows of its chunks itself, and
only a record of them comes back. The merge's tasks are tasks of Ray on the same nodes, after the
readers have left their CPUs. What a lost worker was doing is done again by another one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pipeline_runtime.errors import FeedError, LastmileError, ManifestError, Problem
from pipeline_runtime.feed.base import Feed
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.feed.over_ray.actor_pool import draining_nodes
from pipeline_runtime.feed.over_ray.actor_readers import ActorReaders, start_pool
from pipeline_runtime.feed.over_ray.model_pool import OnReading, PlacedModels
from pipeline_runtime.feed.over_ray.ray_data import (
    RayDataFeed,
    RayDataOptions,
    broadcast_side_tables,
    build_dataset,
)
from pipeline_runtime.feed.over_ray.reader_actor import Reporter
from pipeline_runtime.feed.transport.wire import Sending
from pipeline_runtime.output import names
from pipeline_runtime.output.job import ROLE, Writers
from pipeline_runtime.output.merge import FileFormat, Task, run_task
from pipeline_runtime.output.records import StagedFile
from pipeline_runtime.output.storage import Storage
from pipeline_runtime.plan import Group, Plan
from pipeline_runtime.run.placement import find_placement, is_in_pod

# The driver looks at signals and metrics this often.
_WAIT_SECONDS = 1.0
# Times that a merge task whose worker dies is tried again; as many as a group of rows.
_MAX_RETRIES = 10
# A claim has about 60 bytes.
_MAX_CLAIM_BYTES = 1 << 16


def place_models(
    plan: Plan, *, on_note: Callable[[str], None], on_reading: OnReading
) -> AbstractContextManager[PlacedModels]:
    """Return the inference workers of a run for all of its commits, which end with the context."""
    return closing(
        PlacedModels(
            plan.inference_workers,
            is_cluster=is_in_pod(),
            on_note=on_note,
            on_reading=on_reading,
        )
    )


@contextmanager
def open_ray_writers(
    plan: Plan,
    stream: Stream,
    staged: Storage,
    *,
    staging_field: str,
    placed: PlacedModels,
) -> Iterator[Writers]:
    """Yield the data workers as writers. Ray must be connected.

    Args:
        staged: folder of the run's staged files, which every node must reach.
        staging_field: the field of the manifest that decides where it is.
        placed: starts the inference workers that the stream needs, and outlives the writers.

    Raises, and turns Ray's errors into, a LastmileError.
    """
    # Importing Ray Data has set a level of its own.
    logging.getLogger("ray.data").setLevel(logging.getLogger("ray").level)
    labels = find_placement(0, wants_gpus=False).data
    failures = None
    try:
        _check_reach(staged, staging_field, labels)
        stream = replace(stream, plan=placed.connect({ROLE: stream.plan})[ROLE])
        if plan.feed.engine == "RayData":
            failures = _start_failures()
            options = RayDataOptions(
                broadcast=plan.broadcast,
                labels=labels,
                finish=stream.finish,
                folder=staged.location,
            )
            datasets = _Datasets(
                stream=stream, options=options, on_failure=partial(_report, failures)
            )
            yield Writers(feed=datasets, merge=MergeOnRay(labels, lambda: None))
            return
        if plan.broadcast:
            shared = broadcast_side_tables(stream.plan, staged.location, labels)
            stream = replace(stream, plan=shared)
        pool, held = start_pool(
            {ROLE: stream}, Reporter(on_failure=_ignore), labels, num_trainers=0
        )
        try:
            feed = ActorReaders(
                pool=pool,
                streams=held,
                chunk_rows=stream.chunk_rows,
                sending=Sending.of(plan),
            )
            # Readers end with their pool, and leave their CPUs to the merge.
            yield Writers(feed=feed, merge=MergeOnRay(labels, lambda: ray.kill(pool)))
        finally:
            ray.kill(pool)
    except ray.exceptions.RayTaskError as error:
        raise _find_cause(error, failures) from error
    except ray.exceptions.RayError as error:
        raise FeedError(f"Ray ended the run: {error}; run again with --resume") from error


def _find_cause(error: Exception, failures: Any) -> LastmileError:
    """Return the error that a data worker raised before Ray wrapped it."""
    cause = getattr(error, "cause", None)
    if not isinstance(cause, LastmileError) and failures is not None:
        cause = ray.get(failures.read.remote())
    return (
        cause if isinstance(cause, LastmileError) else FeedError(f"a data worker failed: {error}")
    )


class _FirstFailure:
    """An actor that keeps the first failure: Ray Data wraps errors so that their kind is lost."""

    def __init__(self) -> None:
        self._found: LastmileError | None = None

    def report(self, error: LastmileError) -> None:
        self._found = self._found or error

    def read(self) -> LastmileError | None:
        return self._found


def _start_failures() -> Any:
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    remote: Any = ray.remote(_FirstFailure)
    return remote.options(num_cpus=0, scheduling_strategy=here).remote()


def _report(failures: Any, error: LastmileError) -> None:
    ray.get(failures.report.remote(error))


def _ignore(error: LastmileError) -> None:
    """The driver itself takes the chunks, and with them each failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Datasets:
    """Opens an execution of Ray Data; see `feed.base.FeedSource`."""

    stream: Stream
    options: RayDataOptions
    on_failure: Callable[[LastmileError], None]

    def open(self, role: str, rank: int, groups: Sequence[Group], *, in_order: bool) -> Feed:
        stream = self.stream
        dataset = build_dataset(
            stream.plan, groups, stream.chunk_rows, self.options, self.on_failure
        )
        return RayDataFeed(dataset.iterator())


@dataclass(frozen=True, slots=True)
class MergeOnRay:
    """Runs tasks on the data workers, as many at a time as these have CPUs; see `merge.Merge`.

    Attributes:
        labels: of the data workers' nodes; None: any node.
        on_start: called before the first task.
    """

    labels: Mapping[str, str] | None
    on_start: Callable[[], None]

    def __call__(
        self,
        storage: Storage,
        tasks: Sequence[Task],
        form: FileFormat,
        on_wait: Callable[[], None],
    ) -> Iterator[tuple[Task, tuple[StagedFile, ...]]]:
        self.on_start()
        labels = dict(self.labels) if self.labels else None
        remote: Any = ray.remote(run_task)
        run = remote.options(num_cpus=1, max_retries=_MAX_RETRIES, label_selector=labels)
        waiting, running = deque(tasks), dict[Any, Task]()
        try:
            while waiting or running:
                room = max(1, _count_cpus(self.labels)) - len(running)
                for _ in range(min(room, len(waiting))):
                    task = waiting.popleft()
                    running[run.remote(storage, task, form)] = task
                done, _ = ray.wait(list(running), timeout=_WAIT_SECONDS)
                on_wait()
                for reference in done:
                    yield running.pop(reference), ray.get(reference)
        finally:
            for reference in running:
                ray.cancel(reference, force=True)


def _list_nodes(labels: Mapping[str, str] | None) -> list[dict[str, Any]]:
    """Return the nodes that data work may run on."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    wanted = (labels or {}).items()
    return [node for node in nodes if node["Alive"] and wanted <= node["Labels"].items()]


def _count_cpus(labels: Mapping[str, str] | None) -> int:
    """Return the CPUs of the data workers that take new work."""
    drained = draining_nodes()
    nodes = [node for node in _list_nodes(labels) if node["NodeID"] not in drained]
    return sum(int(node["Resources"].get("CPU", 0)) for node in nodes)


def _check_reach(staged: Storage, field: str, labels: Mapping[str, str] | None) -> None:
    """Raise ManifestError if rows are stored in a folder that other nodes do not have."""
    here = ray.get_runtime_context().get_node_id()
    others = [node["NodeID"] for node in _list_nodes(labels) if node["NodeID"] != here]
    if not staged.is_local or not others:
        return
    place = NodeAffinitySchedulingStrategy(others[0], soft=True)
    remote: Any = ray.remote(_has_claim)
    if not ray.get(remote.options(num_cpus=0, scheduling_strategy=place).remote(staged)):
        message = (
            f"must be a place that every node of the cluster reaches, but {staged.uri} is not on "
            "the data workers; name a folder of an object store or of a shared file system"
        )
        raise ManifestError([Problem(path=field, message=message)])


def _has_claim(staged: Storage) -> bool:
    return staged.read(names.CLAIM_FILE, _MAX_CLAIM_BYTES) is not None
