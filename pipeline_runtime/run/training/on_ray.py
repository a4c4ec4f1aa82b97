"""The trainers of a run as workers of Ray Train: several ranks, a cluster, or feeds that need Ray.

`driver` watches them; `in_process` is the other way to run a prepared run.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
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

from pipeline_runtime.feed.base import FeedSource
from pipeline_runtime.feed.local.thread_readers import ThreadReaders, threads_per_rank
from pipeline_runtime.feed.over_ray.actor_readers import ActorReaders, start_pool
from pipeline_runtime.feed.over_ray.data_config import (
    DatasetShards,
    OneTrainerDataConfig,
    dataset_name,
)
from pipeline_runtime.feed.over_ray.model_pool import PlacedModels
from pipeline_runtime.feed.over_ray.ray_data import (
    RayDataOptions,
    broadcast_side_tables,
    build_dataset,
)
from pipeline_runtime.feed.over_ray.reader_actor import Reporter
from pipeline_runtime.feed.transport.wire import Sending
from pipeline_runtime.monitor import MonitorState, Order
from pipeline_runtime.plan import Group, StreamPlan
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.placement import Placement, find_placement, is_in_pod
from pipeline_runtime.run.training.feeds import (
    build_streams,
    build_thread_streams,
    build_worker_plan,
)
from pipeline_runtime.run.training.prepare import PreparedRun
from pipeline_runtime.training.ranks.ray_runtime import (
    ScriptConfig,
    failure_reporter,
    output_reporter,
    start_monitor,
    train_on_ray,
)
from pipeline_runtime.training.recorder import Past, Recorder

# An aborted trainer ends with its next push; Ray Train looks every second or two.
ABORT_SECONDS = 15.0
# Where Ray keeps what its processes wrote, on the machine where they ran.
_RAY_LOGS = "Ray's logs below /tmp/ray/session_latest/logs"
_NO_CUDA = (
    "Ray counts GPUs on the trainers, torch finds no CUDA there: they train on their CPUs; check "
    "the image's torch and the nodes' driver"
)


class RayTrainers:
    """The trainers; see `driver.Trainers`. Ray must be connected."""

    def __init__(
        self, run: PreparedRun, options: RunOptions, past: Past, on_note: Callable[[str], None]
    ) -> None:
        self._monitor = start_monitor(Recorder(past))
        self._placed = PlacedModels(
            run.plan.inference_workers,
            is_cluster=is_in_pod(),
            on_note=on_note,
            on_reading=options.inference.record,
        )
        try:
            streams = self._placed.connect(run.plan.streams)
            run = replace(run, plan=replace(run.plan, streams=streams))
            self._fit = _Fit(_build_trainer(run, options, self._monitor))
        except BaseException:
            self._placed.close()
            raise
        self._fit.start()

    def wait(self, seconds: float) -> bool:
        self._fit.join(seconds)
        return not self._fit.is_alive()

    def read(self) -> MonitorState:
        state: MonitorState = ray.get(self._monitor.read.remote())
        return state

    def stop(self) -> None:
        self._monitor.order.remote(Order.STOP)

    def abort(self) -> bool:
        """End the trainers where they are, and wait for Ray Train to notice.

        A thread that is still in `fit` when Ray is shut down would end this whole process: Ray
        exits with code 1, without a word, when it is called after its end.
        """
        self._monitor.order.remote(Order.ABORT)
        return self.wait(ABORT_SECONDS)

    def explain(self) -> str | None:
        return None if self._fit.error is None else _explain_ray_failure(self._fit.error)

    def close(self) -> None:
        # The end of the training is known, whatever has become of Ray.
        with contextlib.suppress(ray.exceptions.RayError):
            self._placed.close()


class _Fit(threading.Thread):
    """`fit` in a thread, so that the main thread can watch and take signals."""

    def __init__(self, trainer: TorchTrainer) -> None:
        super().__init__(name="lastmile-fit", daemon=True)
        self._trainer = trainer
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._trainer.fit()
        except Exception as error:  # noqa: BLE001 - the watching thread explains it
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


def _explain_ray_failure(error: BaseException) -> str:
    """Explain a failure that no code of ours reported, such as the death of a process."""
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
    """Return whether a trainer's failure is the death of its process, which Ray wraps."""
    failure = getattr(failure, "health_check_failure", failure)
    return isinstance(failure, ray.exceptions.RayActorError)


def _build_trainer(run: PreparedRun, options: RunOptions, monitor: Any) -> TorchTrainer:
    gpus = run.experiment.spec.trainers.gpus_per_replica > 0
    place = find_placement(run.world_size, wants_gpus=gpus)
    if place.takes_gpus and not place.has_cuda:
        ray.get(monitor.warn.remote(_NO_CUDA))
    feeds, datasets = _build_feeds(run, options, monitor, place)
    return _Trainer(
        train_on_ray,
        without=frozenset(_unused_helpers(options, datasets)),
        train_loop_config={"plan": build_worker_plan(run, feeds), "monitor": monitor},
        scaling_config=ScalingConfig(
            num_workers=run.world_size,
            use_gpu=place.takes_gpus,
            resources_per_worker={"CPU": 1, "GPU": 1} if place.takes_gpus else {"CPU": 1},
            label_selector=place.training,  # type: ignore[call-arg]  # of Ray Train's own class
        ),
        torch_config=_build_torch_config(run, place),
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


def _build_torch_config(run: PreparedRun, place: Placement) -> TorchConfig:
    if run.experiment.spec.training.script is not None:
        return ScriptConfig()
    return TorchConfig(backend="cpu:gloo,cuda:nccl" if place.has_cuda else "gloo")


def _unused_helpers(options: RunOptions, datasets: Mapping[str, Any]) -> Iterator[str]:
    """Ray Train's callbacks that start a process for nothing."""
    if not datasets:
        yield "DatasetsCallback"  # hands out the shards of the datasets
    if options.is_on_this_machine:
        yield "PlacementGroupCleanerCallback"  # for when the driver dies; this Ray dies with it


def _storage(run: PreparedRun, options: RunOptions) -> dict[str, Any]:
    """Return the storage of Ray Train's own few files, which every rank's node can reach."""
    if options.is_on_this_machine:
        return {"storage_path": str(options.output.absolute() / "ray")}
    location = run.run_location.join("ray")
    return {"storage_path": location.path, "storage_filesystem": location.filesystem}


def _build_feeds(
    run: PreparedRun, options: RunOptions, monitor: Any, place: Placement
) -> tuple[FeedSource, dict[str, Any]]:
    """Build the source of the ranks' feeds, and the datasets if Ray Train hands them over."""
    if run.plan.feed.engine == "RayData":
        return DatasetShards(), _datasets(run, monitor, place.data)
    streams = build_streams(run)
    sending = Sending.of(run.plan, to_gpus=place.has_cuda)
    if run.plan.feed.may_be_threads and options.is_on_this_machine:
        threads = ThreadReaders(
            streams=build_thread_streams(run), num_threads=threads_per_rank(run.world_size)
        )
        return threads, {}
    if run.plan.broadcast:
        streams = {
            role: replace(
                stream, plan=broadcast_side_tables(stream.plan, run.run_location, place.data)
            )
            for role, stream in streams.items()
        }
    reporter = Reporter(on_failure=failure_reporter(monitor), on_output=output_reporter(monitor))
    pool, held = start_pool(streams, reporter, place.data, run.world_size)
    readers = ActorReaders(pool=pool, streams=held, chunk_rows=run.chunk_rows, sending=sending)
    return readers, {}


def _datasets(run: PreparedRun, monitor: Any, labels: dict[str, str] | None) -> dict[str, Any]:
    def build(stream: StreamPlan, groups: tuple[Group, ...], *, ordered: bool) -> ray.data.Dataset:
        data_options = RayDataOptions(
            preserve_order=ordered,
            broadcast=run.plan.broadcast,
            labels=labels,
            folder=run.run_location,
        )
        return build_dataset(
            stream, groups, run.chunk_rows, data_options, failure_reporter(monitor)
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
