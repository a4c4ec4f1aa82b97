"""Carry a prepared run out: start Ray Train on its ranks, watch it, and say how it ended.

`Trainer.fit` runs in a thread; this one watches the monitor, feeds the display, the metrics and the
history, and turns Ctrl-C into a stop with a checkpoint. Whatever happens ends in an `Outcome`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import ray
import ray.data
from ray.train import (
    FailureConfig,
    PreemptionError,
    RunConfig,
    ScalingConfig,
    WorkerGroupError,
)
from ray.train.torch import TorchConfig, TorchTrainer

from pipeline_runtime.feed.actor_readers import ActorReaders, start_pool
from pipeline_runtime.feed.base import FeedSource
from pipeline_runtime.feed.batching import batching_of
from pipeline_runtime.feed.data_config import DatasetShards, OneTrainerDataConfig, dataset_name
from pipeline_runtime.feed.maker import Stream
from pipeline_runtime.feed.ray_data import RayDataOptions, broadcast_side_tables, build_dataset
from pipeline_runtime.feed.switching import SwitchingReaders
from pipeline_runtime.feed.thread_readers import ThreadReaders, threads_per_rank
from pipeline_runtime.feed.wire import Sending
from pipeline_runtime.monitor import MonitorState, Order, failure_reporter, start_monitor
from pipeline_runtime.plan import Group, StreamPlan
from pipeline_runtime.run.placement import Placement, find_placement
from pipeline_runtime.run.prepare import PreparedRun, RunOptions
from pipeline_runtime.training.worker import WorkerPlan, train_worker

# How often the driver looks at the monitor.
WATCH_SECONDS = 0.5
# After Ctrl-C the trainers have this long for a step and a checkpoint.
STOP_SECONDS = 60.0
# An aborted trainer ends with its next push; Ray Train looks every second or two.
ABORT_SECONDS = 15.0
# Where Ray keeps what its processes wrote, on the machine where they ran.
_RAY_LOGS = "Ray's logs below /tmp/ray/session_latest/logs"
_NO_CUDA = (
    "Ray counts GPUs on the trainers, torch finds no CUDA there: they train on their CPUs; check "
    "the image's torch and the nodes' driver"
)
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended."""

    kind: str  # Complete | Failed | Interrupted
    error: str | None
    error_kind: str | None  # the exception's class, see errors.py
    state: MonitorState


@dataclass(slots=True)
class StopRequest:
    """Ctrl-C, once or twice."""

    count: int = 0

    def add(self, *_: Any) -> None:
        """A signal handler."""
        self.count += 1


class _Fit(threading.Thread):
    """`fit` in a thread, so that the main one can watch and take signals."""

    def __init__(self, trainer: TorchTrainer) -> None:
        super().__init__(name="lastmile-fit", daemon=True)
        self._trainer = trainer
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._trainer.fit()
        except Exception as error:  # noqa: BLE001 - handed to the thread that watches, which judges it
            self.error = error


class _Trainer(TorchTrainer):
    """Ray Train without those of its helpers that a run has no use for: each is one more process,
    which imports for seconds before the first batch.
    """

    def __init__(self, *args: Any, without: Collection[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._without = without

    def _create_default_callbacks(self) -> list[Any]:
        """Ray's own list, less those named; a Ray that calls it otherwise has them all."""
        callbacks: list[Any] = super()._create_default_callbacks()  # type: ignore[misc]  # in v2
        return [each for each in callbacks if type(each).__name__ not in self._without]


def execute(
    run: PreparedRun,
    options: RunOptions,
    stop: StopRequest,
    watch: Callable[[MonitorState], None],
) -> Outcome:
    """Run to the end; `watch` is called with every reading of the monitor, the last included."""
    monitor = start_monitor()
    fit = _Fit(_build_trainer(run, options, monitor))
    fit.start()
    aborted = _watch(fit, monitor, stop, watch)
    state: MonitorState = ray.get(monitor.read.remote())
    watch(state)
    return _judge(fit, state, aborted=aborted)


def _watch(
    fit: _Fit, monitor: Any, stop: StopRequest, watch: Callable[[MonitorState], None]
) -> bool:
    """Look until the fit ends, or its time to stop is over; whether it was given up."""
    deadline = None
    while fit.is_alive():
        fit.join(WATCH_SECONDS)
        watch(ray.get(monitor.read.remote()))
        if stop.count and deadline is None:
            deadline = time.monotonic() + STOP_SECONDS
            monitor.order.remote(Order.STOP)
        if deadline is not None and (stop.count > 1 or time.monotonic() > deadline):
            _abort(fit, monitor)
            return True
    return False


def _abort(fit: _Fit, monitor: Any) -> None:
    """End the trainers where they are, and wait for Ray Train to see it.

    A thread that is still in `fit` when Ray is shut down would end this whole process: Ray exits
    with code 1, without a word, when it is called after its end.
    """
    monitor.order.remote(Order.ABORT)
    fit.join(ABORT_SECONDS)


def _judge(fit: _Fit, state: MonitorState, *, aborted: bool) -> Outcome:
    if aborted or state.failure_kind == "Interrupted":
        return Outcome(
            kind="Interrupted", error=state.failure, error_kind="Interrupted", state=state
        )
    if fit.error is None and state.failure is None:
        return Outcome(kind="Complete", error=None, error_kind=None, state=state)
    error = state.failure or _explain_ray_failure(fit.error)
    kind = state.failure_kind or "FeedError"
    return Outcome(kind="Failed", error=error, error_kind=kind, state=state)


def _explain_ray_failure(error: BaseException | None) -> str:
    """Ray failed where none of our own code could say why: a trainer's process died, say."""
    if isinstance(error, PreemptionError):
        return f"a trainer's node was drained: {error}; --resume goes on from the last checkpoint"
    if isinstance(error, WorkerGroupError):
        rank, failure = min(error.worker_failures.items())
        if _is_death(failure):
            return (
                f"trainer rank {rank}: its process died; it was killed (for want of memory, say) "
                f"or crashed in native code: see {_RAY_LOGS}; --resume goes on from the last "
                "checkpoint"
            )
    return f"Ray ended the run: {error}; see {_RAY_LOGS}"


def _is_death(failure: BaseException | None) -> bool:
    """Whether a trainer's failure is the death of its process, which Ray wraps when it polls it."""
    failure = getattr(failure, "health_check_failure", failure)
    return isinstance(failure, ray.exceptions.RayActorError)


def _build_trainer(run: PreparedRun, options: RunOptions, monitor: Any) -> TorchTrainer:
    gpus = run.experiment.spec.trainers.gpus_per_replica > 0
    place = find_placement(run.world_size, wants_gpus=gpus)
    if place.takes_gpus and not place.has_cuda:
        ray.get(monitor.warn.remote(_NO_CUDA))
    feeds, datasets = _build_feeds(run, options, monitor, place)
    plan = WorkerPlan(
        training=run.experiment.spec.training,
        stream=run.plan.training,
        feeds=feeds,
        groups=run.groups,
        positions=run.positions,
        evaluation=run.plan.evaluation,
        evaluation_groups=run.evaluation_groups,
        store=run.store,
        identity=run.identity,
        resume=run.resume,
        monitor=monitor,
        prefetch=run.plan.prefetch,
        sparse=run.plan.delivery.sparse,
    )
    return _Trainer(
        train_worker,
        without=frozenset(_unused_helpers(options, datasets)),
        train_loop_config={"plan": plan},
        scaling_config=ScalingConfig(
            num_workers=run.world_size,
            use_gpu=place.takes_gpus,
            resources_per_worker={"CPU": 1, "GPU": 1} if place.takes_gpus else {"CPU": 1},
            label_selector=place.training,  # type: ignore[call-arg]  # of Ray Train's own class
        ),
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if place.has_cuda else "gloo"),
        run_config=RunConfig(
            name=run.run_location.path.rsplit("/", 1)[-1],
            # Whoever tries again goes on from the last checkpoint. Ray Train would begin where this
            # attempt did; after the drain of a node it does so without end unless told not to.
            failure_config=FailureConfig(
                max_failures=0,
                max_preemption_failures=0,  # type: ignore[call-arg]  # of Ray Train's own class
            ),
            **_storage(run, options),
        ),
        datasets=datasets,
        dataset_config=OneTrainerDataConfig() if datasets else None,
    )


def _unused_helpers(options: RunOptions, datasets: Mapping[str, Any]) -> Iterator[str]:
    """Ray Train's callbacks that start a process for nothing."""
    if not datasets:
        yield "DatasetsCallback"  # hands out the shards of the datasets
    if options.address == "local":
        yield "PlacementGroupCleanerCallback"  # for when the driver dies; this Ray dies with it


def _storage(run: PreparedRun, options: RunOptions) -> dict[str, Any]:
    """Where Ray Train keeps its own few files: a place that every rank's node can reach."""
    if options.address == "local":
        return {"storage_path": str(options.output.absolute() / "ray")}
    location = run.run_location.join("ray")
    return {"storage_path": location.path, "storage_filesystem": location.filesystem}


def _build_feeds(
    run: PreparedRun, options: RunOptions, monitor: Any, place: Placement
) -> tuple[FeedSource, dict[str, Any]]:
    """What ranks open their feeds by, and the datasets that Ray Train hands them if it is they."""
    if run.plan.feed.engine == "RayData":
        return DatasetShards(), _datasets(run, monitor, place.data)
    plans = {"training": run.plan.training, "evaluation": run.plan.evaluation}
    training = run.experiment.spec.training
    streams = {
        role: Stream(
            plan=plan,
            piece_rows=run.piece_rows,
            batching=batching_of(run.plan.delivery, plan, training),
        )
        for role, plan in plans.items()
        if plan is not None
    }
    delivery = run.plan.delivery
    sending = Sending(
        sparse=delivery.sparse,
        compression=delivery.compression,
        batched_calls=delivery.batched_calls,
        shared_memory=delivery.shared_memory,
        to_gpus=place.has_cuda,
        reads_ahead=run.plan.training.reads_ahead,
    )
    if run.plan.feed.may_be_threads and options.address == "local":
        threads = ThreadReaders(streams=streams, num_threads=threads_per_rank(run.world_size))
        # Several ranks wait for each other in every step, which says nothing of their readers.
        if not run.plan.feed.may_switch or run.world_size > 1:
            return threads, {}
        switching = SwitchingReaders(
            threads=threads,
            sending=sending,
            broadcast=run.plan.broadcast,
            on_failure=failure_reporter(monitor),
        )
        return switching, {}
    if run.plan.broadcast:
        streams = {
            role: replace(stream, plan=broadcast_side_tables(stream.plan))
            for role, stream in streams.items()
        }
    pool, held = start_pool(streams, failure_reporter(monitor), place.data, run.world_size)
    readers = ActorReaders(pool=pool, streams=held, piece_rows=run.piece_rows, sending=sending)
    return readers, {}


def _datasets(run: PreparedRun, monitor: Any, labels: dict[str, str] | None) -> dict[str, Any]:
    def build(stream: StreamPlan, groups: tuple[Group, ...], *, ordered: bool) -> ray.data.Dataset:
        data_options = RayDataOptions(
            preserve_order=ordered, broadcast=run.plan.broadcast, labels=labels
        )
        return build_dataset(
            stream, groups, run.piece_rows, data_options, failure_reporter(monitor)
        )

    datasets = {
        dataset_name("training", rank): build(
            run.plan.training, groups, ordered=run.plan.preserve_order
        )
        for rank, groups in enumerate(run.groups)
        if groups
    }
    if run.plan.evaluation is not None:
        # Always in order, so that an evaluation's floating-point sums repeat.
        datasets |= {
            dataset_name("evaluation", rank): build(run.plan.evaluation, groups, ordered=True)
            for rank, groups in enumerate(run.evaluation_groups)
            if groups
        }
    return datasets
