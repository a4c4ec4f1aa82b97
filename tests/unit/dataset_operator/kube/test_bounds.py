"""The client bounds the size of answers, and few passes hold large objects at the same time."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration
from local_http import serving

from dataset_operator.api import ROLE_LABEL
from dataset_operator.errors import KubeConflict, KubeUnavailable
from dataset_operator.kube import bounds
from dataset_operator.kube.bounds import (
    LARGE_BYTES,
    MAX_OBJECT_BYTES,
    PAGE_SIZE,
)
from dataset_operator.kube.client import KubeClient
from dataset_operator.kube.head_pods import find_head_address
from dataset_operator.kube.past import look_back
from dataset_operator.kube.pods import keep_member
from dataset_operator.names import Owner
from dataset_operator.scheduling.places import Places

PAGE_BYTES, LARGE = 64 << 10, 16 << 10  # instead of megabytes


@dataclass
class Server:
    """An API server: every list has `objects`, and every single object has `num_bytes`."""

    objects: list[Any] = field(default_factory=list)
    num_bytes: int = 0
    expires: bool = False
    asked: list[web.Request] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request)
        if request.can_read_body:
            self.bodies.append(await request.json())
        if "limit" not in request.query:
            metadata = {"resourceVersion": "7"}
            return web.json_response({"metadata": metadata, "a": "x" * self.num_bytes})
        start, limit = int(request.query.get("continue", 0)), int(request.query["limit"])
        if start and self.expires:
            return web.json_response({"message": "too old"}, status=410)
        end = start + limit
        token = str(end) if end < len(self.objects) else ""
        items = self.objects[start:end]
        return web.json_response({"metadata": {"continue": token}, "items": items})


@asynccontextmanager
async def asking(server: Server) -> AsyncIterator[KubeClient]:
    async with serving(server.answer) as url, ApiClient(Configuration(host=url)) as client:
        yield KubeClient(client)


def build_pod(index: int, **more: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"pod-{index}",
            "uid": str(index),
            "labels": {ROLE_LABEL: "head"},
            "annotations": {"long": "x" * LARGE},
        },
        "spec": {"containers": []},
        "status": {"phase": "Running", "message": "y" * LARGE},
        **more,
    }


def test_large_pods_are_listed_in_small_pages_and_kept_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "MAX_PAGE_BYTES", PAGE_BYTES)
    server = Server([build_pod(index) for index in range(6)])

    async def story() -> None:
        async with asking(server) as kube:
            found = await kube.list_objects("Pod", "team", "a=b", keep_member)
        assert [pod["metadata"]["name"] for pod in found] == [f"pod-{index}" for index in range(6)]
        assert len(json.dumps(found)) < 6 * 2_000

    asyncio.run(story())
    limits = [int(request.query["limit"]) for request in server.asked]
    assert limits[0] == PAGE_SIZE
    assert limits[-1] * 2 * LARGE <= 2 * PAGE_BYTES
    assert {request.query["labelSelector"] for request in server.asked} == {"a=b"}


def test_small_pods_are_listed_in_one_request() -> None:
    server = Server([{"metadata": {"name": str(index)}} for index in range(200)])

    async def story() -> None:
        async with asking(server) as kube:
            assert len(await kube.list_objects("Pod", "team", "")) == 200

    asyncio.run(story())
    assert len(server.asked) == 1


def test_an_expired_page_is_a_conflict() -> None:
    server = Server([{"metadata": {}}] * (PAGE_SIZE + 1), expires=True)

    async def story() -> None:
        async with asking(server) as kube:
            with pytest.raises(KubeConflict):
                await kube.list_objects("Pod", "team", "")

    asyncio.run(story())


def test_an_oversized_answer_is_an_error() -> None:
    async def story() -> None:
        async with asking(Server(num_bytes=MAX_OBJECT_BYTES)) as kube:
            with pytest.raises(KubeUnavailable, match="bytes"):
                await kube.get("RayCluster", "team", "clicks")

    asyncio.run(story())


def test_writes_ask_for_metadata_only() -> None:
    server = Server()
    document = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"namespace": "team", "name": "a", "uid": "u", "resourceVersion": "6"},
        "spec": {"long": "x" * LARGE},
    }

    async def story() -> None:
        async with asking(server) as kube:
            assert await kube.write_status(document, {}) == "7"
            await kube.apply(document)
            assert await kube.patch("RayCluster", "team", "a", {"metadata": {}})

    asyncio.run(story())
    assert "spec" not in server.bodies[0]  # a write of the status sends nothing else
    assert all("as=PartialObjectMetadata;" in each.headers["Accept"] for each in server.asked)


@pytest.mark.parametrize(
    ("num_bytes", "num_namespaces", "num_at_once", "num_requests"),
    [
        pytest.param(1024, 1, 6, 2, id="small objects"),
        pytest.param(LARGE_BYTES + 1, 1, 1, 3, id="large ones of one namespace"),
        pytest.param(LARGE_BYTES + 1, 3, 2, 3, id="large ones of several"),
    ],
)
def test_passes_over_large_objects_take_turns(
    num_bytes: int, num_namespaces: int, num_at_once: int, num_requests: int
) -> None:
    server, most = Server(num_bytes=num_bytes), 0

    async def story() -> None:
        nonlocal most
        places, holding = Places(), 0
        together = asyncio.Barrier(num_at_once)

        async def run_pass(kube: KubeClient, namespace: str) -> None:
            nonlocal most, holding
            async with places.serving(namespace):
                for _ in range(2):
                    await kube.get("RayCluster", namespace, "clicks")
                holding += 1
                most = max(most, holding)
                await together.wait()
                holding -= 1

        async with asking(server) as kube, asyncio.TaskGroup() as tasks:
            for index in range(6):
                tasks.create_task(run_pass(kube, f"team-{index % num_namespaces}"))

    asyncio.run(story())
    assert most == num_at_once
    assert len(server.asked) == 6 * num_requests


TIME = "2026-11-21T00:00:00Z"


def test_history_events_are_bounded_in_number_and_size() -> None:
    owner = Owner(name="clicks", namespace="team", uid="u")

    def build_event(uid: str) -> dict[str, Any]:
        return {
            "metadata": {"uid": "e", "resourceVersion": "1", "creationTimestamp": TIME},
            "involvedObject": {"uid": uid},
            "message": "x" * 10_000,
        }

    events = [build_event("u") for _ in range(1_500)] + [build_event("other")] * 100

    async def story() -> None:
        async with asking(Server(events)) as kube:
            happened = await look_back(kube, owner, [])
        assert len(happened.events) == 1_000
        assert len(json.dumps(happened.events)) < 1_000 * 1_500

    asyncio.run(story())


def test_pruned_pods_keep_the_fields_that_locate_the_head() -> None:
    owners = [{"kind": "RayCluster", "uid": "cluster"}]
    pod = build_pod(0, status={"podIP": "10.0.0.7", "phase": "Running"})
    pod["metadata"]["ownerReferences"] = owners
    cluster = {"metadata": {"uid": "cluster"}}
    small = keep_member(pod)
    assert small is not None
    assert find_head_address(cluster, [small]) == "10.0.0.7"
    shared = keep_member({**pod, "spec": {"hostNetwork": True}})
    assert shared is not None
    assert find_head_address(cluster, [shared]) == ""
