"""Objects with arbitrary content of a tenant neither fail a pass nor block a finaliser."""

from __future__ import annotations

import asyncio
import base64
import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import pytest
from hostile import WRONG, break_some, places
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest
from property_tests import examples
from world import SETTINGS, World, running

from dataset_operator.api import FINALIZER, RAY_CLUSTER_LABEL, ROLE_LABEL
from dataset_operator.documents import Document
from dataset_operator.errors import KubeRefused, RayUnreachable
from dataset_operator.kube.client import Keep, keep_whole
from dataset_operator.kube.observe import observe
from dataset_operator.observed import Observed
from dataset_operator.plan import decide
from dataset_operator.plan.ending import RELEASE_SECONDS
from dataset_operator.reconcile import Reconciler
from dataset_operator.settings import OperatorSettings, parse_settings
from dataset_operator.shapes import fit_object, parse_status
from dataset_operator.telemetry.metrics import OperatorMetrics
from dataset_operator.telemetry.watched import Watched
from pipeline_runtime.config import KIND

KEPT = parse_settings({"runtimeImage": "runtime:1", "storageRoot": "s3://bucket/team/"})
TIME = "2026-01-01T00:00:00Z"


class Silent:
    """A head that does not answer."""

    async def get(self, name: str) -> Any:
        raise RayUnreachable("no answer")

    async def stop(self, name: str) -> None:
        raise RayUnreachable("no answer")


@dataclass
class Store:
    """An API server that holds one experiment and its objects, as they were written."""

    experiment: Document
    objects: dict[tuple[str, str], Document]
    lists: dict[str, list[Document]]
    refuses: bool = False  # refuses to list or get anything but the experiment
    finalizers: list[str] = field(default_factory=lambda: [FINALIZER])

    async def get(self, kind: str, namespace: str, name: str) -> Document | None:
        if kind == KIND:
            metadata = {**self.experiment["metadata"], "finalizers": self.finalizers}
            return {**self.experiment, "metadata": metadata}
        self._refuse()
        return self.objects.get((kind, name))

    async def list_objects(
        self, kind: str, namespace: str, selector: str, keep: Keep = keep_whole
    ) -> list[Document]:
        self._refuse()
        kept = map(keep, self.lists.get(kind, []))
        return [document for document in kept if document is not None]

    async def write_status(self, document: Document, status: Document) -> None:
        self.experiment["status"] = status

    async def write_finalizers(self, document: Document, names: list[str]) -> None:
        self.finalizers = names

    async def patch(self, *_: object) -> bool:
        return True

    async def ignore(self, *_: object) -> None: ...

    apply = create = try_out = delete = delete_observed = ignore

    def _refuse(self) -> None:
        if self.refuses:
            raise KubeRefused("forbidden")


def build_store(world: World) -> Store:
    owner, experiment = world.owner, copy.deepcopy(world.document)
    assert world.ray_cluster is not None
    token = base64.b64encode(b"token").decode()
    secret = {**world.ray_cluster["metadata"], "name": owner.token_secret}
    objects = {
        ("RayCluster", owner.ray_cluster): world.ray_cluster,
        ("Secret", owner.token_secret): {"metadata": secret, "data": {"auth_token": token}},
    }
    for name, child in world.children.items():
        objects[child["kind"], name] = {**child, "metadata": {**child["metadata"], "uid": name}}
    running_since = {"state": {"running": {"startedAt": TIME}}, "restartCount": 0}
    pods = [
        {
            "metadata": {
                "name": pod.name,
                "uid": pod.uid,
                "creationTimestamp": TIME,
                "labels": {RAY_CLUSTER_LABEL: owner.ray_cluster, ROLE_LABEL: pod.role},
            },
            "status": {
                "phase": "Running",
                "podIP": "10.0.0.1",
                "conditions": [
                    {"type": "Ready", "status": "True", "lastTransitionTime": TIME},
                    {"type": "PodScheduled", "status": "True", "lastTransitionTime": TIME},
                ],
                "containerStatuses": [running_since],
            },
        }
        for pod in world.observe().pods
    ]
    event = {
        "metadata": {"uid": "e", "resourceVersion": "1", "creationTimestamp": TIME},
        "involvedObject": {"kind": KIND, "name": owner.name, "uid": owner.uid},
        "lastTimestamp": TIME,
    }
    return Store(experiment, copy.deepcopy(objects), {"Pod": pods, "Event": [event]})


def trains() -> World:
    return running(KEPT)


def drains() -> World:
    world = running(KEPT, dataWorkers={"maxReplicas": 9})
    draining = [{"name": "dataworkers-1", "ip": "10.0.0.2", "time": TIME}]
    world.status["dataWorkers"] |= {"draining": draining, "drainingTo": 1}
    return world


def ends() -> World:
    world = running(KEPT)
    world.end_job("SUCCEEDED")
    world.history_ends = ""
    world.step()
    return world


STATES: dict[str, Callable[[], World]] = {"trains": trains, "drains": drains, "ends": ends}


def break_store(data: st.DataObject, store: Store) -> None:
    owned = [*store.objects.values(), *store.lists["Pod"], *store.lists["Event"]]
    break_some(data, [{"status": store.experiment["status"]}, *owned])


def look(store: Store, settings: OperatorSettings, world: World) -> None:
    """Run one pass."""
    known = Observed(document=copy.deepcopy(store.experiment), settings=settings)
    kube, head = cast(Any, store), cast(Any, lambda *_: Silent())
    observed, _ = asyncio.run(observe(kube, head, cast(Any, None), known, world.seal))
    decide(observed, world.now)
    metrics = OperatorMetrics(Watched())
    metrics.watched.see("ADDED", store.experiment)
    metrics.watched.record(store.experiment)
    assert generate_latest(metrics.registry)


def nest(depth: int) -> Any:
    """Return lists and mappings that are nested so deep."""
    value: Any = "soon"
    for _ in range(depth // 2):
        value = [{"time": value}]
    return value


# The parser of the operator returns hardly more levels (`kube.parsing`).
DEEPEST = nest(190)
# Each of these failed a pass before objects were parsed.
BROKEN: dict[str, tuple[str, str, Any]] = {
    "a cluster without a spec": ("RayCluster", "spec", None),
    "groups that are not a list": ("RayCluster", "spec.workerGroupSpecs", "x"),
    "a group without a name": ("RayCluster", "spec.workerGroupSpecs", [{"replicas": 1}]),
    "replicas that are not a number": ("RayCluster", "spec.workerGroupSpecs.1.replicas", "many"),
    "a cluster's conditions": ("RayCluster", "status", {"conditions": [1]}),
    "a cluster's annotations": ("RayCluster", "metadata.annotations", ["x"]),
    "an owner without a uid": ("RayCluster", "metadata.ownerReferences", [{"name": "x"}]),
    "a Secret without data": ("Secret", "data", None),
    "a token that is not base64": ("Secret", "data.auth_token", "!"),
    "a token that is not text": ("Secret", "data.auth_token", "/w=="),
    "a ConfigMap without data": ("ConfigMap", "data", None),
    "a ConfigMap without JSON": ("ConfigMap", "data", {"run": "1", "experiment.json": "{"}),
    "a ConfigMap of a number": ("ConfigMap", "data", {"run": "1", "experiment.json": "7"}),
    "a deep ConfigMap": ("ConfigMap", "data", {"run": "1", "experiment.json": "[" * 99_999}),
    "a pod's conditions": ("Pod", "status.conditions", [{"status": "True"}]),
    "a pod's times": ("Pod", "status.conditions.0.lastTransitionTime", "soon"),
    "a pod's containers": ("Pod", "status.containerStatuses", [None]),
    "a submission without a time": (KIND, "status.submission", {"id": "x"}),
    "a run without a hash": (KIND, "status.runHash", None),
    "a start that is not a time": (KIND, "status.startTime", "soon"),
    "a start without a zone": (KIND, "status.startTime", "2026-01-01T00:00:00"),
    "conditions without fields": (KIND, "status.conditions", [{"type": "Training"}]),
    "a status that is not a mapping": (KIND, "status", "x"),
    "seconds beyond any float": (KIND, "status.usage", {"gpuSeconds": 10**400}),
    "workers that are not a mapping": (KIND, "status.dataWorkers", [1]),
    "a deep cluster": ("RayCluster", "spec.workerGroupSpecs.1.template.spec", {"x": DEEPEST}),
    "a deep field of a cluster": ("RayCluster", "spec.x", DEEPEST),
    "a deep status": (KIND, "status.scaling", {"decisions": DEEPEST}),
    "a deep field of a status": (KIND, "status.x", DEEPEST),
    "a deep spec": (KIND, "spec.training", {"config": {"x": DEEPEST}}),
    "a deep template": (KIND, "spec.head", {"template": {"spec": DEEPEST}}),
    "a deep pod": ("Pod", "spec", {"hostNetwork": DEEPEST}),
}


def set_at(document: Any, path: str, value: Any) -> None:
    *above, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in above:
        document = document[part]
    document[last] = value


@pytest.mark.parametrize(("kind", "path", "value"), BROKEN.values(), ids=BROKEN)
def test_broken_objects_do_not_fail_a_pass(kind: str, path: str, value: Any) -> None:
    world = trains()
    world.document["metadata"]["resourceVersion"] = "1"
    store = build_store(world)
    documents = [document for (found, _), document in store.objects.items() if found == kind]
    for document in {"Pod": store.lists["Pod"], KIND: [store.experiment]}.get(kind, documents):
        set_at(document, path, value)
    look(store, KEPT, world)
    delete(store, world)
    assert store.finalizers == []


def build_state(state: Callable[[], World], has_pods: bool) -> tuple[World, Store]:
    world = state()
    world.document["metadata"]["resourceVersion"] = "1"
    store = build_store(world)
    if not has_pods:
        store.lists["Pod"] = []
    return world, store


@pytest.mark.parametrize("has_pods", [True, False])
@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_no_field_of_a_status_is_needed(state: Callable[[], World], has_pods: bool) -> None:
    world, store = build_state(state, has_pods)
    whole = store.experiment["status"]
    num_places = len(list(places(whole)))
    assert num_places > 20
    for index in range(num_places):
        store.experiment["status"] = copy.deepcopy(whole)
        holder, key = list(places(store.experiment["status"]))[index]
        del holder[key]
        look(store, KEPT, world)


@pytest.mark.parametrize("has_pods", [True, False])
@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_a_null_counts_as_absent_beside_a_wrong_field(
    state: Callable[[], World], has_pods: bool
) -> None:
    world, store = build_state(state, has_pods)
    whole = store.experiment["status"]
    for index in range(len(list(places(whole)))):
        store.experiment["status"] = copy.deepcopy(whole)
        holder, key = list(places(store.experiment["status"]))[index]
        holder[key] = None
        store.experiment["status"]["unreachableTime"] = 3
        look(store, KEPT, world)


QUIET = settings(max_examples=examples(30), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
@QUIET
@given(data=st.data())
def test_observing_foreign_objects_never_fails(
    state: Callable[[], World], data: st.DataObject
) -> None:
    world = state()
    world.document["metadata"]["resourceVersion"] = "1"
    store = build_store(world)
    break_store(data, store)
    look(store, KEPT, world)


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
@QUIET
@given(data=st.data())
def test_a_deletion_always_ends(state: Callable[[], World], data: st.DataObject) -> None:
    world = state()
    world.document["metadata"]["resourceVersion"] = "1"
    store = build_store(world)
    break_store(data, store)
    store.experiment["spec"] = data.draw(st.just(store.experiment["spec"]) | WRONG, "spec")
    delete(store, world)
    assert store.finalizers == []


def test_a_deletion_ends_although_nothing_can_be_observed() -> None:
    world = trains()
    store = build_store(world)
    store.refuses = True
    delete(store, world)
    assert store.finalizers == []


def delete(store: Store, world: World) -> None:
    """Delete the experiment, and run passes until a little after all timeouts."""
    store.experiment["metadata"] |= {"deletionTimestamp": TIME, "resourceVersion": "1"}
    for seconds in (0, RELEASE_SECONDS / 2, RELEASE_SECONDS):
        reconciler = Reconciler(
            kube=cast(Any, store),
            connect=cast(Any, lambda *_: Silent()),
            source=cast(Any, None),
            settings=KEPT,
            seal=world.seal,
            now=lambda seconds=seconds: world.now + timedelta(seconds=seconds),  # type: ignore[misc]
        )
        try:
            asyncio.run(reconciler.reconcile("team", "clicks"))
        except KubeRefused:
            assert store.refuses


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        ("Secret", {"metadata": "x"}),
        ("ConfigMap", []),
        ("RayCluster", {"metadata": {"name": "a", "uid": 7}}),
    ],
)
def test_an_object_without_metadata_counts_as_absent(kind: str, document: Any) -> None:
    assert fit_object(kind, document) is None


@pytest.mark.parametrize("token", ["", "!", "AAE=", "w6k=", "YQpi"], ids=str)
def test_a_secret_without_a_token_is_foreign(token: str) -> None:
    world = trains()
    store = build_store(world)
    store.objects["Secret", world.owner.token_secret]["data"] = {"auth_token": token}
    kube, head = cast(Any, store), cast(Any, lambda *_: Silent())
    known = Observed(document=store.experiment, settings=KEPT)
    observed, jobs = asyncio.run(observe(kube, head, cast(Any, None), known, world.seal))
    assert (observed.has_token, jobs) == (False, None)
    assert f"Secret {world.owner.token_secret}" in observed.foreign


def test_parsing_keeps_valid_objects_unchanged() -> None:
    world = drains()
    assert parse_status(world.status).to_document() == world.status
    assert fit_object("RayCluster", world.ray_cluster) == world.ray_cluster
    assert world.settings is not SETTINGS
