"""Inference workers as Ray actors: processes that load models once and score rows.

`serving` has the work of an inference worker, and describes the way of a request. `ModelPool`, an
actor beside the driver, keeps the inference workers of one group: on a cluster that Lastmile runs,
one per GPU (or one per pod without any) on the nodes that have the group's resource, and elsewhere
a few processes on any nodes. `RemoteModel` calls them from the data workers, and the pool replaces
those that it reports as lost. While a run goes on, the driver asks the pools for the counts of
their workers, which become metrics.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pyarrow as pa
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pipeline_runtime.config import InferenceWorkers
from pipeline_runtime.config.cluster import DEFAULT_INFERENCE_WORKER_CPUS, INFERENCE_RESOURCE
from pipeline_runtime.errors import FeedError, LastmileError, StepError
from pipeline_runtime.feed.over_ray.actor_pool import ActorPool, Found
from pipeline_runtime.feed.over_ray.remote_model import RemoteModel
from pipeline_runtime.plan.model import PlannedStep, StreamPlan
from pipeline_runtime.steps.base import ServedModel
from pipeline_runtime.steps.predict.serving import ModelHost, from_ipc, to_ipc
from pipeline_runtime.steps.predict.serving_counts import ServingCounts

# Concurrent requests of an inference worker; others wait in Ray's queue of its calls.
_MAX_OPEN_REQUESTS = 64
_WATCHING = "watching"
# The pool looks at the nodes of the cluster this often, however many data workers ask.
_NODES_SECONDS = 0.5
_MAX_FAILED_STARTS = 5
_MAX_POOL_RESTARTS = 10
# Seconds between two readings of the workers' counts,
_READ_SECONDS = 5.0
# and that the pool waits for the answers; a worker answers at once unless its process is blocked.
_ANSWER_SECONDS = 1.0
# The pool itself answers after that, and after its other calls.
_POOL_SECONDS = 5.0

Models = Mapping[str, ServedModel]
# Ray's resources of each node, by the node's id.
Nodes = Mapping[str, Mapping[str, float]]


class ModelServer:
    """The actor's class: one inference worker."""

    def __init__(self, models: Models, num_threads: int) -> None:
        _limit_threads(num_threads)
        self._host = self._load(models)

    def _load(self, models: Models) -> ModelHost | LastmileError:
        """Load the models; keep the error, since Ray would wrap what a constructor raises."""
        try:
            if any(model.needs_cuda for model in models.values()):
                _check_cuda()
            return ModelHost(models)
        except LastmileError as error:
            return error

    def ping(self) -> LastmileError | None:
        """Answer once the models are loaded; return why they could not be."""
        return self._host if isinstance(self._host, LastmileError) else None

    def score(self, key: str, rows: pa.Buffer) -> pa.Buffer | BaseException:
        """Return the outputs of a model for rows in Arrow's IPC format, or the model's error."""
        assert isinstance(self._host, ModelHost)
        answer = self._host.score(key, from_ipc(rows))
        return to_ipc(answer) if isinstance(answer, pa.Table) else answer

    @ray.method(concurrency_group=_WATCHING)
    def progress(self) -> ServingCounts:
        """Return the work so far."""
        assert isinstance(self._host, ModelHost)
        return self._host.counts

    def finish(self) -> ServingCounts:
        """Return the work of the worker after the requests that were there before."""
        if not isinstance(self._host, ModelHost):
            return ServingCounts()
        self._host.wait_until_idle()
        return self._host.counts


def _limit_threads(number: int) -> None:
    import torch  # models use it, and those that do not have loaded it with their classes

    torch.set_num_threads(number)


def _check_cuda() -> None:
    import torch

    if not torch.cuda.is_available():
        raise StepError(
            "must run where torch finds a GPU with device: CUDA, but the inference workers find "
            "none; set inferenceWorkers.gpusPerReplica, or device: Auto"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The nodes and the resources of a group's inference workers.

    Attributes:
        group: name of the group.
        most: largest number of inference workers where no node has the group's resource.
        cpus: CPUs of each.
        gpus: GPUs of each pod.
        is_cluster: True on a cluster that Lastmile runs, where pods of the group join in time.
    """

    group: str
    most: int
    cpus: int
    gpus: int
    is_cluster: bool

    @classmethod
    def of(cls, group: InferenceWorkers, *, is_cluster: bool) -> Places:
        """Return the places of a group."""
        gpus, cpus = group.gpus_per_replica, group.find_cpus() or 1
        if is_cluster:  # one for each GPU of a pod
            cpus = max(1, (group.find_cpus() or DEFAULT_INFERENCE_WORKER_CPUS) // max(1, gpus))
        return cls(
            group=group.name,
            most=group.max_replicas,
            cpus=cpus,
            gpus=gpus,
            is_cluster=is_cluster,
        )

    @property
    def resource(self) -> str:
        """Ray's resource of the nodes of the group."""
        return f"{INFERENCE_RESOURCE}{self.group}"

    def count(self, nodes: Nodes) -> dict[str, int]:
        """Return the number of inference workers on each node that has some."""
        room = {node: int(has.get(self.resource, 0)) for node, has in nodes.items()}
        if self.is_cluster or any(room.values()):
            return {node: number for node, number in room.items() if number}
        left = {node: int(has.get("CPU", 0)) // self.cpus for node, has in nodes.items()}
        gpus = {node: int(has.get("GPU", 0)) // max(1, self.gpus) for node, has in nodes.items()}
        if self.gpus and any(gpus.values()):
            left = {node: min(left[node], gpus[node]) for node in nodes if gpus[node]}
        for _ in range(max(1, min(self.most, sum(left.values())))):
            node = max(left, key=lambda each: (left[each], each))
            left[node] -= 1
            room[node] += 1
        return {node: number for node, number in room.items() if number}

    def build_options(self, node: str, nodes: Nodes) -> dict[str, Any]:
        """Return Ray's options of an inference worker on a node."""
        has = nodes.get(node, {})
        options: dict[str, Any] = {"num_cpus": 0}
        if self.resource in has:
            options["resources"] = {self.resource: 1}
            options["num_gpus"] = min(1, int(has.get("GPU", 0)))
        elif self.gpus and has.get("GPU", 0) >= self.gpus:
            options["num_gpus"] = self.gpus
        return options


def _list_nodes() -> Nodes:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return {node["NodeID"]: node["Resources"] for node in nodes if node["Alive"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReading:
    """The counts of a pool's workers.

    Attributes:
        workers: names of those that take requests now; None once the pool is ended.
        counts: the last known counts of all workers so far, by name. A name is unique in a run.
    """

    workers: tuple[str, ...] | None
    counts: Mapping[str, ServingCounts] = field(default_factory=dict)


# Takes the reading of a group.
OnReading = Callable[[str, PoolReading], None]


class ModelPool(ActorPool):
    """The actor's class; `PlacedModels` creates it."""

    prefix = "inference-worker"

    def __init__(self, places: Places) -> None:
        super().__init__()
        self._places = places
        self._found: Found | None = None
        self._looked = float("-inf")
        self._failed_starts = 0
        self._failure: LastmileError | None = None
        self._counts: dict[str, ServingCounts] = {}
        self._asked: dict[str, Any] = {}  # open questions for counts, by worker

    def find(self, held: Any, lost: Sequence[str]) -> Found | LastmileError:
        """Return the inference workers, or the reason for which there are none.

        Args:
            held: references of the models, in a list.
            lost: names of workers to replace.
        """
        is_due = time.monotonic() - self._looked >= _NODES_SECONDS
        if self._found is None or is_due or not self._actors.keys().isdisjoint(lost):
            self._looked = time.monotonic()
            self._found = self._find(held, lost)
        return self._failure or self._found

    def read(self) -> PoolReading:
        """Return the counts of the workers; one that does not answer keeps its last ones."""
        for name, started in self._actors.items():
            if started.starting is None and name not in self._asked:
                self._asked[name] = started.actor.progress.remote()
        questions = list(self._asked.values())
        if questions:
            ray.wait(questions, num_returns=len(questions), timeout=_ANSWER_SECONDS)
        dead = {name for name in list(self._asked) if not self._take_answer(name)}
        asked = {name for name, started in self._actors.items() if started.can_be_asked}
        return PoolReading(workers=tuple(asked - dead), counts=self._counts)

    def _take_answer(self, name: str) -> bool:
        """Take the counts of a worker if it has answered; return False if it is dead."""
        if not ray.wait([self._asked[name]], timeout=0)[0]:
            return True
        try:
            self._counts[name] = ray.get(self._asked.pop(name))
        except ray.exceptions.RayError:
            return False
        return True

    def _note_end(self, name: str, answer: Any) -> None:
        self._counts[name] = answer
        self._asked.pop(name, None)  # an answer to it is older

    def _room(self) -> dict[str, int]:
        return {} if self._failure else self._places.count(_list_nodes())

    def _create(self, node: str, held: Any) -> Any:
        options = {
            **self._places.build_options(node, _list_nodes()),
            "max_concurrency": _MAX_OPEN_REQUESTS,
            "concurrency_groups": {_WATCHING: 1},
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
        }
        server: Any = ray.remote(**options)(ModelServer)
        return server.remote(*held, self._places.cpus)

    def _note_start(self, answer: Any) -> None:
        self._failed_starts = 0
        if isinstance(answer, LastmileError):  # the models cannot be loaded; so say all others
            self._failure = answer

    def _fail_start(self, error: Exception) -> None:
        self._failed_starts += 1
        if self._failed_starts >= _MAX_FAILED_STARTS:
            self._failure = FeedError(
                f"no inference worker of {self._places.group!r} comes up, {self._failed_starts} "
                f"tries: {error}; raise the memory in spec.inferenceWorkers"
            )


class _Watch(threading.Thread):
    """Reads the counts of pools until it is stopped, in a thread.

    Args:
        pools: by group; more may come.
    """

    def __init__(self, pools: Mapping[str, _Pool], on_reading: OnReading) -> None:
        super().__init__(name="lastmile-inference", daemon=True)
        self._pools = pools
        self._on_reading = on_reading
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.wait(_READ_SECONDS):
            self._read()

    def stop(self) -> None:
        """Read for the last time, and end the thread, which may not call Ray after its end."""
        self._is_over.set()
        self.join()
        self._read()
        for group in self._pools:
            self._on_reading(group, PoolReading(workers=None))

    def _read(self) -> None:
        pools = dict(self._pools)
        asked = {pool.handle.read.remote(): group for group, pool in pools.items()}
        ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_POOL_SECONDS)
        for reference in ready:
            try:
                reading = ray.get(reference)
            except ray.exceptions.RayError:
                reading = PoolReading(workers=())  # its workers died with it; Ray restarts the pool
            self._on_reading(asked[reference], reading)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """The inference workers of a group.

    Attributes:
        handle: of `ModelPool`; the pool ends with it, and its workers with the pool.
        models: by their keys.
        held: the reference of `models`.
    """

    handle: Any
    models: Models
    held: Any


class PlacedModels:
    """The inference workers of a run, which serve all streams with the same models.

    Args:
        is_cluster: True on a cluster that Lastmile runs, whose pods of a group are waited for.
        on_note: called with lines for people.
        on_reading: called by a thread with the counts of each group, every few seconds.
    """

    def __init__(
        self,
        groups: Sequence[InferenceWorkers],
        *,
        is_cluster: bool,
        on_note: Callable[[str], None],
        on_reading: OnReading,
    ) -> None:
        self._groups = groups
        self._is_cluster = is_cluster
        self._on_note = on_note
        self._on_reading = on_reading
        self._pools: dict[str, _Pool] = {}
        self._watch: _Watch | None = None

    def connect(self, streams: Mapping[str, StreamPlan]) -> dict[str, StreamPlan]:
        """Return streams whose models are on inference workers, after starting those.

        The workers of a call before go on if their models are the same.
        """
        served = {
            (role, step.path, path): model
            for role, stream in streams.items()
            for step in stream.steps
            for path, model in step.transform.served.items()
        }
        clients: dict[tuple[str, str, str], RemoteModel] = {}
        for group in self._groups:
            models = {place: m for place, m in served.items() if m.group == group.name}
            if not models:
                continue
            pool = self._find_pool(group, {"/".join(place): m for place, m in models.items()})
            for place in models:
                clients[place] = RemoteModel(
                    pool=pool.handle,
                    models=pool.held,
                    key="/".join(place),
                    group=group.name,
                    deadline_seconds=group.progress_deadline_seconds,
                )
        return {role: _connect(stream, role, clients) for role, stream in streams.items()}

    def _find_pool(self, group: InferenceWorkers, models: Models) -> _Pool:
        """Return the pool of a group with these models, which is started if it is not there."""
        found = self._pools.get(group.name)
        if found is not None and found.models == models:
            return found
        if found is not None:
            ray.kill(found.handle)
        places = Places.of(group, is_cluster=self._is_cluster)
        pool = _Pool(handle=_start_pool(places), models=models, held=ray.put(models))
        self._pools[group.name] = pool
        if not self._is_cluster:
            self._on_note(_describe(places))
        self._on_reading(group.name, PoolReading(workers=()))  # its workers are still to start
        if self._watch is None:
            self._watch = _Watch(self._pools, self._on_reading)
            self._watch.start()
        return pool

    def close(self) -> None:
        """End the inference workers, after the last reading of their counts."""
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        for pool in self._pools.values():
            ray.kill(pool.handle)
        self._pools.clear()


def _start_pool(places: Places) -> Any:
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"num_cpus": 0, "scheduling_strategy": here, "max_restarts": _MAX_POOL_RESTARTS}
    remote: Any = ray.remote(ModelPool)
    return remote.options(**options).remote(places)


def _describe(places: Places) -> str:
    number = sum(places.count(_list_nodes()).values())
    return (
        f"inference workers {places.group}: {number} processes on this Ray cluster (maxReplicas "
        f"{places.most}, {places.cpus} CPUs each)"
    )


def _connect(
    stream: StreamPlan, role: str, clients: Mapping[tuple[str, str, str], RemoteModel]
) -> StreamPlan:
    """Return the stream whose steps have the clients of their models."""

    def connect(step: PlannedStep) -> PlannedStep:
        if not step.transform.served:
            return step
        mine = {path: clients[role, step.path, path] for path in step.transform.served}
        return replace(step, transform=cast(Any, step.transform).connect(mine))

    stages = tuple(
        replace(stage, steps=tuple(map(connect, stage.steps))) for stage in stream.stages
    )
    return replace(stream, stages=stages)
