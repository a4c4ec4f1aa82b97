"""The function that Ray Train runs on every rank: build a context and call the entrypoint.

Its only input is a `WorkerPlan`; rows come through the feed that the driver chose.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
import ray.train
import torch

from pipeline_runtime.config import Training
from pipeline_runtime.errors import Interrupted, LastmileError, TrainingError
from pipeline_runtime.feed.base import FeedSource, Waited, WorkerUsage
from pipeline_runtime.feed.pieces import Piece, ReadyPiece
from pipeline_runtime.feed.work import name_of, user_traceback
from pipeline_runtime.monitor import Evaluated, Order
from pipeline_runtime.plan.groups import Group
from pipeline_runtime.plan.model import StreamPlan
from pipeline_runtime.training.checkpoint import CheckpointStore
from pipeline_runtime.training.checkpoint_header import CheckpointHeader
from pipeline_runtime.training.context import RunIdentity, TrainContext, Wiring
from pipeline_runtime.training.entrypoint import load_entrypoint
from pipeline_runtime.training.position import Position
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
    monitor: Any
    prefetch: bool = True
    sparse: bool = False


def train_worker(config: dict[str, WorkerPlan]) -> None:
    """Run one rank to its end. Raises the error of the entrypoint or the feed."""
    plan = config["plan"]
    with _telling(plan):
        context = _build_context(plan)
        pusher = _Pusher(plan.monitor, context)
        pusher.start()
        try:
            call_entrypoint(plan.training.entrypoint, context)
            context.records.is_finished = True
        finally:
            pusher.finish()


@contextmanager
def _telling(plan: WorkerPlan) -> Iterator[None]:
    """Report the error that ended this rank to the monitor, before Ray wraps it.

    A requested stop is not raised as a failure.
    """
    try:
        yield
    except Interrupted as stop:
        ray.get(plan.monitor.fail.remote("Interrupted", str(stop)))
    except ray.exceptions.RayError:
        raise  # a data worker has reported the reason to the monitor
    except LastmileError as error:
        ray.get(plan.monitor.fail.remote(type(error).__name__, str(error)))
        raise


def call_entrypoint(path: str, context: TrainContext) -> None:
    """Call the entrypoint. If it raises, raise TrainingError with the user's traceback first."""
    try:
        load_entrypoint(path)(context)
    except (LastmileError, ray.exceptions.RayError):
        raise
    except Exception as error:
        message = f"{user_traceback(error)}spec.training.entrypoint: {path} raised"
        raise TrainingError(message) from error


def _build_context(plan: WorkerPlan) -> TrainContext:
    rank = ray.train.get_context().get_world_rank()
    device = ray.train.torch.get_device() if torch.cuda.is_available() else torch.device("cpu")
    wiring = Wiring(
        training=_open_training(plan, rank),
        open_evaluation=_evaluation_opener(plan, rank) if plan.evaluation else None,
        store=plan.store,
        identity=plan.identity,
        step_names=("the read", *map(name_of, plan.stream.steps)),
        resume=(plan.resume, plan.store.load(plan.resume)) if plan.resume else None,
        warn=lambda message: ray.get(plan.monitor.warn.remote(message)),
        evaluated=lambda evaluation: _send_evaluation(plan.monitor, evaluation),
        stop_event=threading.Event(),
        request_columns=plan.stream.request_columns,
        prefetch=plan.prefetch,
        sparse=plan.sparse,
    )
    return TrainContext(plan.training, plan.stream.output_schema, device, wiring)


def _send_evaluation(monitor: Any, evaluation: Evaluated) -> None:
    ray.get(monitor.evaluated.remote(evaluation))


def _open_training(plan: WorkerPlan, rank: int) -> BatchStream:
    waited, usage = Waited(), WorkerUsage()
    return BatchStream(
        pieces=_pieces(plan, "training", rank, waited, usage),
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
    )


def _evaluation_opener(plan: WorkerPlan, rank: int) -> Callable[[Waited], BatchStream]:
    groups = plan.evaluation_groups[rank]

    def open_evaluation(waited: Waited) -> BatchStream:
        return BatchStream(
            pieces=_pieces(plan, "evaluation", rank, waited, WorkerUsage()),
            groups=groups,
            cutting=Cutting(batch_size=plan.training.batch_size, last_batch="Pad"),
            position=Position(),
            waited=waited,
        )

    return open_evaluation


def _pieces(
    plan: WorkerPlan, role: str, rank: int, waited: Waited, usage: WorkerUsage
) -> Iterator[Piece | ReadyPiece]:
    """Open the rank's pieces; those of an evaluation in order, so that its sums repeat exactly."""
    is_training = role == "training"
    groups = (plan.groups if is_training else plan.evaluation_groups)[rank]
    if not groups:
        return iter(())
    in_order = plan.identity.preserve_order if is_training else True
    return plan.feeds.open(role, rank, groups, in_order=in_order).pieces(waited, usage)


class _Pusher:
    """Pushes a rank's snapshots from a thread, so that the loop never waits for the monitor."""

    def __init__(self, monitor: Any, context: TrainContext) -> None:
        self._monitor = monitor
        self._context = context
        self._raylet_pid = os.getppid()
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lastmile-monitor", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Push the last snapshot and end the thread."""
        self._finished.set()
        self._thread.join()
        self._push()

    def _run(self) -> None:
        while not self._finished.wait(PUSH_SECONDS):
            if os.getppid() != self._raylet_pid:
                # The driver and its Ray were killed. Ray takes seconds to end this process, which
                # meanwhile would write and remove checkpoints beside a run that resumes.
                os._exit(1)
            self._push()

    def _push(self) -> None:
        pending = self._context.records.pending
        points = [pending.popleft() for _ in range(len(pending))]
        order = ray.get(self._monitor.push.remote(self._context.snapshot(), points))
        if order is Order.STOP:
            self._context.stop_event.set()
        elif order is Order.ABORT:
            # The loop may hang in a step. Unlike after os._exit, Ray then reports no lost worker.
            ray.kill(ray.get_runtime_context().current_actor)
