"""One rank of a run from its beginning to its end: build a context, and train with it.

Training is to call the entrypoint, or to run the script.

Its input is a `WorkerPlan`; rows come through the feed that the driver chose. The process around
it, one of Ray Train or the driver's own, is a `Runtime`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from pipeline_runtime.config import Training
from pipeline_runtime.errors import Interrupted, LastmileError, TrainingError
from pipeline_runtime.feed.base import FeedSource, Waited, WorkerUsage
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.feed.making.work import name_of, user_traceback
from pipeline_runtime.monitor import Order
from pipeline_runtime.plan.groups import Group
from pipeline_runtime.plan.model import StreamPlan
from pipeline_runtime.sources import Location
from pipeline_runtime.training.checkpoints.checkpoint import CheckpointStore
from pipeline_runtime.training.checkpoints.header import CheckpointHeader, RunIdentity
from pipeline_runtime.training.checkpoints.history import CheckpointHistory
from pipeline_runtime.training.context import TrainContext, Wiring
from pipeline_runtime.training.current import Run, join_ranks
from pipeline_runtime.training.entrypoint import load_entrypoint
from pipeline_runtime.training.measured import Measured, find_observers
from pipeline_runtime.training.position import Position
from pipeline_runtime.training.ranks.runtime import Runtime
from pipeline_runtime.training.script import run_script
from pipeline_runtime.training.stream import BatchStream, Cutting

# Period in which a trainer reports to the monitor, and learns whether to stop.
PUSH_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """The input of every rank; groups and positions have one item per rank."""

    training: Training
    stream: StreamPlan
    feeds: FeedSource
    groups: tuple[tuple[Group, ...], ...]
    positions: tuple[Position, ...]
    evaluation: StreamPlan | None
    evaluation_groups: tuple[tuple[Group, ...], ...]
    store: CheckpointStore
    identity: RunIdentity
    resume: CheckpointHeader | None
    function: Callable[[TrainContext], object] | None = None  # the entrypoint, if it has no name
    evaluated_rows: Location | None = None  # folder of the rows that each rank evaluated
    prefetch: bool = True
    sparse: bool = False


def train_worker(plan: WorkerPlan, runtime: Runtime) -> None:
    """Run one rank to its end. Raises the error of the entrypoint or the feed."""
    with _reporting(runtime), _open_training(plan, runtime.rank) as training:
        pusher = _Pusher(runtime)
        context = _build_context(plan, runtime, training, pusher)
        pusher.start(context)
        try:
            epochs = [group.epoch for groups in plan.groups for group in groups]
            train(
                plan.training,
                context,
                runtime.environment,
                num_batches=count_batches(plan),
                first_epoch=min(epochs, default=None),
                function=plan.function,
            )
            context.warn_without_best()
            pusher.measured = context.dump_measured()
            context.records.is_finished = True
        finally:
            context.close()
            pusher.finish()


@contextmanager
def _reporting(runtime: Runtime) -> Iterator[None]:
    """Report the error that ends this rank to the monitor, before Ray wraps it.

    A requested stop is not raised as a failure.
    """
    try:
        yield
    except Interrupted as stop:
        runtime.fail("Interrupted", str(stop))
    except LastmileError as error:
        if not _is_of_ray(error):  # else a data worker has reported the reason
            runtime.fail(type(error).__name__, str(error))
        raise


def train(
    training: Training,
    context: TrainContext,
    environment: Mapping[str, str],
    num_batches: Mapping[int, int] | None = None,
    first_epoch: int | None = None,
    function: Callable[[TrainContext], object] | None = None,
) -> None:
    """Call the entrypoint, or run the script.

    Args:
        environment: the script's variables of torch.distributed.
        num_batches: batches of each epoch, for the script; None if they are unknown.
        first_epoch: the first epoch that has rows left, for the script.
        function: the entrypoint; None: the one that `training` names.

    If it raises, raise TrainingError with the user's traceback first.
    """
    try:
        if training.script is None:
            (function or load_entrypoint(training.entrypoint))(context)
        else:
            run_script(training, Run(context, num_batches, first_epoch), environment)
    except LastmileError:
        raise
    except (Exception, SystemExit) as error:
        if _is_of_ray(error):
            raise
        ended = "raised"
        if isinstance(error, SystemExit):
            ended = f"ended the program (exit code {error.code!r}); return, or raise what is wrong"
        message = f"{user_traceback(error)}{training.program} {ended}"
        raise TrainingError(message) from error


def _is_of_ray(error: BaseException) -> bool:
    """Return whether Ray raised an error, of which most runs know nothing."""
    exceptions = sys.modules.get("ray.exceptions")
    return exceptions is not None and isinstance(error, exceptions.RayError)


def _build_context(
    plan: WorkerPlan, runtime: Runtime, training: BatchStream, pusher: _Pusher
) -> TrainContext:
    parts = (plan.resume.history or ()) if plan.resume else ()
    wiring = Wiring(
        training=training,
        open_evaluation=_evaluation_opener(plan, runtime.rank) if plan.evaluation else None,
        store=plan.store,
        identity=plan.identity,
        step_names=("the read", *map(name_of, plan.stream.steps)),
        resume=(plan.resume, plan.store.load(plan.resume)) if plan.resume else None,
        warn=runtime.warn,
        evaluated=runtime.evaluated,
        stop_event=threading.Event(),
        history=CheckpointHistory(plan.store, parts, pusher.take_history),
        rank=runtime.rank,
        world_size=len(plan.groups),
        join=partial(join_ranks, len(plan.groups)) if plan.training.script else lambda: None,
        evaluated_rows=plan.evaluated_rows,
        request_columns=plan.stream.request_columns,
        prefetch=plan.prefetch,
        sparse=plan.sparse,
    )
    return TrainContext(plan.training, plan.stream.output_schema, runtime.device, wiring)


@contextmanager
def _open_training(plan: WorkerPlan, rank: int) -> Iterator[BatchStream]:
    """Yield the rank's stream, and let its readers go at the end, however that comes."""
    waited, usage = Waited(), WorkerUsage()
    chunks = _chunks(plan, "training", rank, waited, usage)
    stream = BatchStream(
        chunks=chunks,
        groups=plan.groups[rank],
        cutting=Cutting(
            batch_size=plan.training.batch_size,
            last_batch=plan.training.last_batch,
            weight_column=plan.training.weight_column,
            preserve_order=plan.identity.preserve_order,
        ),
        position=plan.positions[rank],
        waited=waited,
        usage=usage,
        measured=Measured(observers) if (observers := find_observers(plan.stream.steps)) else None,
    )
    with closing(chunks):
        yield stream


def _evaluation_opener(plan: WorkerPlan, rank: int) -> Callable[[Waited], BatchStream]:
    groups = plan.evaluation_groups[rank]

    def open_evaluation(waited: Waited) -> BatchStream:
        return BatchStream(
            chunks=_chunks(plan, "evaluation", rank, waited, WorkerUsage()),
            groups=groups,
            cutting=Cutting(batch_size=plan.training.batch_size, last_batch="Pad"),
            position=Position(),
            waited=waited,
        )

    return open_evaluation


def _chunks(
    plan: WorkerPlan, role: str, rank: int, waited: Waited, usage: WorkerUsage
) -> Generator[Chunk]:
    """Yield the rank's chunks; those of an evaluation in order, so that its sums repeat exactly."""
    is_training = role == "training"
    groups = (plan.groups if is_training else plan.evaluation_groups)[rank]
    if groups:
        in_order = plan.identity.preserve_order if is_training else True
        feed = plan.feeds.open(role, rank, groups, in_order=in_order)
        yield from feed.chunks(waited, usage)


def count_batches(plan: WorkerPlan) -> dict[int, int] | None:
    """Return the batches of each epoch, those before a resume included.

    None if a step may change the number of rows.
    """
    if any(step.transform.changes_rows for step in plan.stream.steps):
        return None
    size, drops = plan.training.batch_size, plan.training.last_batch == "Drop"
    by_rank = [
        _count_rows(groups, position)
        for groups, position in zip(plan.groups, plan.positions, strict=True)
    ]
    counts = {}
    for epoch in set().union(*by_rank):
        rows = [each.get(epoch, 0) for each in by_rank]
        counts[epoch] = min(rows) // size if drops else -(-max(rows) // size)
    resumed = plan.positions[0]
    counts[resumed.epoch] = counts.get(resumed.epoch, 0) + resumed.batches - resumed.epoch_start
    return counts


def _count_rows(groups: Sequence[Group], position: Position) -> dict[int, int]:
    """Return a rank's remaining rows of each epoch."""
    rows: dict[int, int] = {}
    for group in groups:
        rows[group.epoch] = rows.get(group.epoch, 0) + sum(unit.num_rows for unit in group.units)
    if position.epoch in rows:
        rows[position.epoch] -= sum(sum(each.rows.values()) for each in position.open.values())
    return rows


class _Pusher:
    """Pushes a rank's snapshots from a thread, so that the loop never waits for the monitor."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._context: TrainContext | None = None
        self.measured: tuple[bytes, ...] = ()  # goes with the last snapshot alone
        self._is_pushing = threading.Lock()
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lastmile-monitor", daemon=True)

    def start(self, context: TrainContext) -> None:
        """Begin to push the snapshots of a context."""
        self._context = context
        self._thread.start()

    def finish(self) -> None:
        """Push the last snapshot and end the thread."""
        self._finished.set()
        self._thread.join()
        self._push(self.measured)

    def _run(self) -> None:
        while not self._finished.wait(PUSH_SECONDS):
            self._runtime.check_driver()
            self._push()

    def take_history(self) -> pa.Table:
        """Push all that was recorded until now; return the rows of the history that are new."""
        self._push()
        return self._runtime.take_history()

    def _push(self, measured: tuple[bytes, ...] = ()) -> None:
        assert self._context is not None  # `start` was called
        with self._is_pushing:  # in order: no thread overtakes another with its points
            pending = self._context.records.pending
            points = [pending.popleft() for _ in range(len(pending))]
            snapshot = replace(self._context.snapshot(), measured=measured)
            order = self._runtime.push(snapshot, points)
        if order is Order.STOP:
            self._context.stop_event.set()
        elif order is Order.ABORT:
            self._runtime.abort()
