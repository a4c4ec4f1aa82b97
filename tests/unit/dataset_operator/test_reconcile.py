"""Passes for an experiment that is deleted while they run."""

import asyncio
import threading
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from counted_calls import counting
from world import SETTINGS, build_document, running

from dataset_operator.documents import Document
from dataset_operator.errors import KubeRefused
from dataset_operator.plan import decide
from dataset_operator.reconcile import Reconciler
from pipeline_runtime.config import KIND
from pipeline_runtime.config.identity.run_hash import run_config


@dataclass
class Server:
    """An API server that refuses owned objects; the experiment is `later` once one was refused."""

    later: Document | None
    document: Document | None = field(default_factory=build_document)
    statuses: list[Document] = field(default_factory=list)

    async def get(self, kind: str, namespace: str, name: str) -> Document | None:
        return self.document if kind == KIND else None

    async def list_objects(self, *_: object) -> list[Document]:
        return []

    async def write_status(self, document: Document, status: Document) -> None:
        self.statuses.append(status)

    async def refuse(self, document: Document) -> None:
        if document["kind"] != "Event":
            self.document = self.later
            raise KubeRefused("forbidden: error looking up service account")

    async def try_out(self, document: Document) -> None: ...

    apply = create = refuse


def build_reconciler(server: Server) -> Reconciler:
    nothing = cast(Any, None)
    kube = cast(Any, server)
    return Reconciler(kube=kube, connect=nothing, source=nothing, settings=SETTINGS)


def reconcile(server: Server) -> float | None:
    return asyncio.run(build_reconciler(server).reconcile("team", "clicks"))


def build_namesake() -> Document:
    document = build_document()
    document["metadata"]["uid"] = "another"
    return document


@pytest.mark.parametrize("later", [None, build_namesake()], ids=["gone", "another of its name"])
def test_a_refusal_for_a_deleted_experiment_is_not_a_failure(later: Document | None) -> None:
    server = Server(later=later)
    assert reconcile(server) is None
    assert len(server.statuses) == 1  # one write of the pass, none for the refusal


def test_a_refusal_is_reported_and_retried() -> None:
    server = Server(later=build_document())
    with pytest.raises(KubeRefused):
        reconcile(server)
    assert "service account" in str(server.statuses[-1])


@pytest.mark.parametrize("later", [None, build_namesake()], ids=["gone", "another of its name"])
def test_a_refused_submission_fails_no_other_experiment(later: Document | None) -> None:
    server = Server(later=later, document=later)
    observed = running().observe()
    assert asyncio.run(build_reconciler(server)._fail_attempt(observed, "refused")) is None
    assert server.statuses == []


def test_passes_plan_in_threads_and_hash_a_spec_once() -> None:
    reconciler = build_reconciler(Server(later=build_document()))

    async def story() -> None:
        for _ in range(3):
            with pytest.raises(KubeRefused):
                await reconciler.reconcile("team", "clicks")

    with counting(decide, run_config) as calls:
        asyncio.run(story())
    assert calls.by_name == {"decide": 6, "run_config": 1}  # one more plan for each refusal
    assert threading.current_thread().name not in calls.threads
