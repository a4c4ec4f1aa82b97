"""Inference workers as Ray actors: processes that load models once and score rows.

`serving` has the work of an inference worker, and describes the way of a request. `ModelPool`, an
actor beside the driver, keeps the inference workers of one group: on a cluster that Lastmile runs,
one per GPU (or one per pod without any) on the nodes that have the group's resource, and elsewhere
a few processes on any nodes. `RemoteModel`, which goes to the data workers inside of the step, gets
the list of inference workers from the pool and calls them directly. It sends a request again if its
inference worker is lost, or finishes no batch within `progressDeadlineSeconds`; the pool replaces
that worker. After a few times the request fails, since its rows may be the cause.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pipeline_runtime.config import InferenceWorkers
from pipeline_runtime.config.cluster import DEFAULT_INFERENCE_WORKER_CPUS, INFERENCE_RESOURCE
from pipeline_runtime.errors import FeedError, LastmileError, StepError
from pipeline_runtime.feed.over_ray.actor_pool import ActorPool, Found
from pipeline_runtime.plan.model import PlannedStep, StreamPlan
from pipeline_runtime.steps.base import ServedModel
from pipeline_runtime.steps.predict.serving import Answer, ModelHost, from_ipc, to_ipc

# Concurrent requests of an inference worker; others wait in Ray's queue of its calls.
_MAX_OPEN_REQUESTS = 64
_WATCHING = "watching"
# Times that a request is sent. Losing several workers by chance is unlikely; rows that kill one
# would kill each.
MAX_TRIES = 4
# Seconds between two looks of a data worker at the list of inference workers, and at the progress
# of the one that it waits for,
_LOOK_SECONDS = 2.0
# and while there is none.
_START_SECONDS = 0.2
# A new node with a GPU, its image and the model take minutes.
_MAX_START_SECONDS = 1800.0
# A call that answers at once, but for a process that is blocked.
_ANSWER_SECONDS = 5.0
# The pool looks at the nodes of the cluster this often, however many data workers ask.
_NODES_SECONDS = 0.5
_MAX_FAILED_STARTS = 5
_MAX_POOL_RESTARTS = 10

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
    def progress(self) -> int:
        """Return the number of batches so far."""
        assert isinstance(self._host, ModelHost)
        return self._host.num_batches

    def finish(self) -> None:
        """Answer after the requests that were there before."""
        if isinstance(self._host, ModelHost):
            self._host.wait_until_idle()


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


class ModelPool(ActorPool):
    """The actor's class; `place_models` creates it."""

    prefix = "inference-worker"

    def __init__(self, places: Places) -> None:
        super().__init__()
        self._places = places
        self._found: Found | None = None
        self._looked = float("-inf")
        self._failed_starts = 0
        self._failure: LastmileError | None = None

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteModel:
    """A model on inference workers; see `steps.base.ModelClient`.

    Attributes:
        pool: the handle of the group's `ModelPool`.
        models: the reference of the group's models.
        key: key of this model among them.
    """

    pool: Any
    models: Any
    key: str
    group: str
    deadline_seconds: float

    def begin(self, rows: pa.Table) -> Callable[[], pa.Table]:
        """Send rows; see `steps.base.ModelClient`."""
        crew = _find_crew(self)
        content = to_ipc(rows)
        first = crew.send(self.key, content)

        def finish() -> pa.Table:
            sent = first
            for number in range(1, MAX_TRIES + 1):
                answer = crew.wait(sent)
                if isinstance(answer, BaseException):
                    raise answer
                if answer is not None:
                    return answer
                if number < MAX_TRIES:
                    sent = crew.send(self.key, content)
            raise StepError(
                f"{MAX_TRIES} inference workers of {self.group!r} died, or finished no batch "
                f"within {self.deadline_seconds:,.0f} s, while they scored {rows.num_rows:,} rows; "
                "the model may need more memory (spec.inferenceWorkers), a longer "
                "progressDeadlineSeconds, or crashes on these rows"
            )

        return finish


@dataclass(frozen=True, slots=True)
class _Sent:
    name: str
    actor: Any
    reference: Any


class _Crew:
    """The inference workers of a group, as the threads of this process see them."""

    def __init__(self, model: RemoteModel) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._actors: dict[str, Any] = {}
        self._open = Counter[str]()  # requests of this process
        self._lost: set[str] = set()
        self._looked = float("-inf")

    def send(self, key: str, content: pa.Buffer) -> _Sent:
        """Send a request to the worker with the fewest of this process.

        Raises the error for which there is no worker.
        """
        deadline = time.monotonic() + _MAX_START_SECONDS
        while True:
            self._look()
            with self._lock:
                if self._actors:
                    fewest = min(self._open[name] for name in self._actors)
                    least = [name for name in self._actors if self._open[name] == fewest]
                    name = random.choice(least)
                    self._open[name] += 1
                    actor = self._actors[name]
                    break
            if time.monotonic() > deadline:
                raise StepError(
                    f"no inference worker of {self._model.group!r} has come up for "
                    f"{_MAX_START_SECONDS:,.0f} s; look at its pods, and at the quota of the "
                    "namespace"
                )
            time.sleep(_START_SECONDS)
        return _Sent(name, actor, actor.score.remote(key, content))

    def wait(self, sent: _Sent) -> Answer | None:
        """Return the answer; None if the worker was lost, or made no progress for too long."""
        try:
            return self._wait(sent)
        finally:
            with self._lock:
                self._open[sent.name] -= 1

    def _wait(self, sent: _Sent) -> Answer | None:
        seen, since, asked = -1, time.monotonic(), None
        while True:
            ready, _ = ray.wait([sent.reference], timeout=_LOOK_SECONDS)
            if ready:
                try:
                    found = ray.get(sent.reference)
                except ray.exceptions.RayTaskError:
                    raise  # a fault of Lastmile's own
                except ray.exceptions.RayError:
                    self._lose(sent.name)
                    return None
                return found if isinstance(found, BaseException) else from_ipc(found)
            if asked is None:
                asked = sent.actor.progress.remote()
            if ray.wait([asked], timeout=_ANSWER_SECONDS)[0]:
                counted, asked = _read_progress(asked), None
                if counted != seen:
                    seen, since = counted, time.monotonic()
            if time.monotonic() - since > self._model.deadline_seconds:
                self._lose(sent.name)
                return None
            self._look()

    def _lose(self, name: str) -> None:
        with self._lock:
            self._lost.add(name)
            self._actors.pop(name, None)
            self._looked = float("-inf")

    def _look(self) -> None:
        """Ask the pool for its workers, from time to time. Raises the error that it reports."""
        with self._lock:
            due = _START_SECONDS if not self._actors else _LOOK_SECONDS
            if time.monotonic() - self._looked < due:
                return
            self._looked = time.monotonic()
            lost = sorted(self._lost)
        try:
            found: Found | LastmileError = ray.get(
                self._model.pool.find.remote([self._model.models], lost)
            )
        except ray.exceptions.RayActorError:
            return  # Ray restarts the pool
        if isinstance(found, LastmileError):
            raise found
        with self._lock:
            self._actors = {n: each for n, each in found.actors.items() if n not in self._lost}


def _read_progress(reference: Any) -> int:
    try:
        counted: int = ray.get(reference)
    except ray.exceptions.RayError:
        return -1  # the request's own reference reports the loss
    return counted


_CREWS: dict[str, _Crew] = {}
_CREWS_LOCK = threading.Lock()


def _find_crew(model: RemoteModel) -> _Crew:
    """Return the crew of a model's pool in this process."""
    with _CREWS_LOCK:
        return _CREWS.setdefault(model.pool._actor_id.hex(), _Crew(model))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedModels:
    """Streams whose models are on inference workers.

    Attributes:
        streams: by role.
        pools: they end with their handles, and the inference workers with them.
    """

    streams: dict[str, StreamPlan]
    pools: tuple[Any, ...] = ()

    def close(self) -> None:
        """End the inference workers."""
        for pool in self.pools:
            ray.kill(pool)


def place_models(
    streams: Mapping[str, StreamPlan],
    groups: Sequence[InferenceWorkers],
    *,
    is_cluster: bool,
    on_note: Callable[[str], None],
) -> PlacedModels:
    """Start the inference workers that streams need, and connect the streams to them.

    Args:
        is_cluster: True on a cluster that Lastmile runs, whose pods of a group are waited for.
        on_note: called with lines for people.
    """
    served = {
        (role, step.path, path): model
        for role, stream in streams.items()
        for step in stream.steps
        for path, model in step.transform.served.items()
    }
    clients: dict[tuple[str, str, str], RemoteModel] = {}
    pools = []
    for group in groups:
        models = {"/".join(place): m for place, m in served.items() if m.group == group.name}
        if not models:
            continue
        places = Places.of(group, is_cluster=is_cluster)
        pool, held = _start_pool(places), ray.put(models)
        pools.append(pool)
        if not is_cluster:
            on_note(_describe(places))
        for place in (place for place in served if "/".join(place) in models):
            clients[place] = RemoteModel(
                pool=pool,
                models=held,
                key="/".join(place),
                group=group.name,
                deadline_seconds=group.progress_deadline_seconds,
            )
    connected = {role: _connect(stream, role, clients) for role, stream in streams.items()}
    return PlacedModels(streams=connected, pools=tuple(pools))


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
