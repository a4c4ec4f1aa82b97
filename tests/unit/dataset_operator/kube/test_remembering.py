"""Answers of the API server that are reused for a while, and changes that drop them."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from clocks import Clock

from dataset_operator.documents import Document
from dataset_operator.kube.remembering import RememberingKube

POLICY = ("NetworkPolicy", "team", "clicks-1")
SECRET = ("Secret", "team", "clicks-1-token")


@dataclass
class Server:
    """An API server that records requests; `changes` happen just before it answers."""

    objects: dict[tuple[str, str, str], Document] = field(default_factory=dict)
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    before_answer: Any = None

    async def get(self, kind: str, namespace: str, name: str) -> Document | None:
        self.asked.append((kind, namespace, name))
        found = self.objects.get((kind, namespace, name))
        if self.before_answer is not None:
            self.before_answer()
        await asyncio.sleep(0)
        return found

    async def nothing(self, *_: object) -> None:
        pass

    apply = create = patch = delete = delete_observed = nothing


def build(key: tuple[str, str, str], generation: int = 1, **more: Any) -> Document:
    kind, namespace, name = key
    metadata = {"namespace": namespace, "name": name, "generation": generation}
    return {"kind": kind, "metadata": metadata, **more}


def remembering(*documents: Document) -> tuple[RememberingKube, Server, Clock]:
    server, clock = Server(), Clock()
    for document in documents:
        metadata = document["metadata"]
        server.objects[document["kind"], metadata["namespace"], metadata["name"]] = document
    kube: Any = server
    return RememberingKube(kube, clock=clock), server, clock


def look(kube: RememberingKube, *keys: tuple[str, str, str]) -> list[Document | None]:
    async def get_all() -> list[Document | None]:
        return [await kube.get(*key) for key in keys]

    return asyncio.run(get_all())


@pytest.mark.parametrize(
    ("document", "seconds"),
    [
        pytest.param(build(POLICY, spec={"a": 1}), 300, id="a guard, five minutes"),
        pytest.param(build(SECRET, immutable=True), 60, id="a Secret, which is not watched, one"),
    ],
)
def test_answers_are_reused_for_a_while(document: Document, seconds: float) -> None:
    kube, server, clock = remembering(document)
    [key] = server.objects

    assert look(kube, key, key) == [document, document]
    clock.now += seconds - 1
    look(kube, key)
    assert len(server.asked) == 1

    clock.now += 1
    look(kube, key)
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(build(("RayCluster", "team", "c")), id="a cluster"),
        pytest.param(build(("DatasetExperiment", "team", "c")), id="an experiment"),
        pytest.param(build(("ConfigMap", "team", "c")), id="a config that may be edited"),
        pytest.param(build(("ConfigMap", "team", "c"), immutable=False), id="one that says so"),
    ],
)
def test_objects_that_decisions_depend_on_are_always_fetched(document: Document) -> None:
    kube, server, _ = remembering(document)
    [key] = server.objects
    look(kube, key, key)
    assert server.asked == [key, key]


@pytest.mark.parametrize(("num_bytes", "num_requests"), [(1 << 10, 1), (1 << 20, 2)])
def test_a_large_object_is_not_kept(num_bytes: int, num_requests: int) -> None:
    kube, server, _ = remembering(build(POLICY, spec={"a": "x" * num_bytes}))
    look(kube, POLICY, POLICY)
    assert len(server.asked) == num_requests


def test_absent_objects_are_fetched_again() -> None:
    kube, server, _ = remembering()
    assert look(kube, POLICY, POLICY) == [None, None]
    assert len(server.asked) == 2


def test_callers_cannot_change_a_shared_answer() -> None:
    kube, _, _ = remembering(build(POLICY, spec={"a": 1}))
    first, second = look(kube, POLICY, POLICY)
    assert first == second
    assert second is not None
    second["spec"]["a"] = 2
    assert look(kube, POLICY) == [build(POLICY, spec={"a": 1})]


WRITES: dict[str, Any] = {
    "an edit": lambda kube: kube.see("NetworkPolicy", "MODIFIED", build(POLICY, generation=2)),
    "its end": lambda kube: kube.see("NetworkPolicy", "DELETED", build(POLICY)),
    "a list": lambda kube: kube.see("NetworkPolicy", None, build(POLICY)),
    "apply": lambda kube: asyncio.run(kube.apply(build(POLICY))),
    "create": lambda kube: asyncio.run(kube.create(build(POLICY))),
    "patch": lambda kube: asyncio.run(kube.patch(*POLICY, {})),
    "delete": lambda kube: asyncio.run(kube.delete(*POLICY, "uid")),
    "delete as observed": lambda kube: asyncio.run(kube.delete_observed(build(POLICY))),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_change_drops_the_answer(write: str) -> None:
    kube, server, _ = remembering(build(POLICY))
    look(kube, POLICY)
    WRITES[write](kube)
    look(kube, POLICY)
    assert len(server.asked) == 2


def test_status_writes_of_others_keep_the_answer() -> None:
    budget = ("PodDisruptionBudget", "team", "clicks-1-head")
    kube, server, _ = remembering(build(budget, spec={"a": 1}))
    look(kube, budget)

    document = build(budget, spec={"a": 1}, status={"currentHealthy": 1})
    document["metadata"] |= {"resourceVersion": "7", "managedFields": [{"manager": "kcm"}]}
    assert not kube.see("PodDisruptionBudget", "MODIFIED", document)
    look(kube, budget)
    assert len(server.asked) == 1

    document["metadata"]["ownerReferences"] = []
    assert kube.see("PodDisruptionBudget", "MODIFIED", document)


def test_an_answer_overtaken_by_a_change_is_not_kept() -> None:
    kube, server, _ = remembering(build(POLICY))
    server.before_answer = lambda: kube.see("NetworkPolicy", "MODIFIED", build(POLICY))
    look(kube, POLICY, POLICY)
    assert len(server.asked) == 2


def test_unused_answers_are_dropped() -> None:
    others = [build(("NetworkPolicy", "team", f"gone-{index}")) for index in range(100)]
    kube, server, clock = remembering(*others, build(POLICY))
    look(kube, *server.objects)
    clock.now += 300
    look(kube, POLICY)
    assert len(kube._looks) == 1
