"""Requests of Kopf's session to the API server, and the parts of the answers that it keeps."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import kopf
import pytest
from aiohttp import web
from kopf._cogs.clients import api, auth, fetching, watching
from kopf._cogs.structs.credentials import Vault, VaultKey
from kopf._cogs.structs.references import Resource
from local_http import serving

from dataset_operator.api import EXPERIMENT_LABEL
from dataset_operator.handlers import build_kopf_settings
from dataset_operator.kube import bounds
from dataset_operator.kube.bounds import PAGE_SIZE
from dataset_operator.kube.watching import MetadataSession, split_lines, watch_metadata

PODS = Resource("", "v1", "pods", kind="Pod", namespaced=True)
PAGE_BYTES, LARGE = 64 << 10, 16 << 10  # instead of megabytes
PARTIAL = "application/json;as=PartialObjectMetadata"
Answer = Callable[[web.Request], Awaitable[web.Response]]


def build_pod(index: int, num_bytes: int = 10) -> dict[str, Any]:
    """Return a pod's metadata with so many bytes that are not ours."""
    return {
        "metadata": {
            "name": f"pod-{index}",
            "namespace": "team",
            "uid": f"uid-{index}",
            "resourceVersion": str(index),
            "labels": {EXPERIMENT_LABEL: "clicks", "long": "x" * num_bytes},
            "managedFields": [{"manager": "y" * num_bytes}],
        }
    }


@dataclass
class Server:
    """An API server that lists and watches these pods, and records its requests."""

    pods: list[dict[str, Any]]
    asked: list[web.Request] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request)
        if "watch" in request.query:
            events = [{"type": "MODIFIED", "object": pod} for pod in self.pods]
            return web.Response(text="".join(json.dumps(event) + "\n" for event in events))
        if "limit" not in request.query:
            return web.json_response({"resources": []})
        start, limit = int(request.query.get("continue", 0)), int(request.query["limit"])
        end = start + limit
        token = str(end) if end < len(self.pods) else ""
        metadata = {"resourceVersion": "9", "continue": token}
        items = self.pods[start:end] or None
        return web.json_response({"kind": "List", "metadata": metadata, "items": items})

    @property
    def limits(self) -> list[int]:
        """Return the number of requested objects, page by page."""
        return [int(request.query["limit"]) for request in self.asked]


def play(answer: Answer, story: Callable[[], Awaitable[None]]) -> None:
    """Run a story in which `answer` answers the requests of Kopf."""

    async def run() -> None:
        async with serving(answer) as url:

            async def log_in() -> kopf.ConnectionInfo:
                return kopf.ConnectionInfo(server=url, token="t")

            info = await watch_metadata(log_in)()
            vault = Vault({VaultKey("ours"): info})
            auth.vault_var.set(vault)
            await story()
            await vault.close()

    asyncio.run(run())


async def list_pods() -> list[Any]:
    settings, found = build_kopf_settings(), list[Any]()
    pages = fetching.fetch_objs(
        settings=settings, resource=PODS, namespace="team", logger=watching.logger
    )
    async for page, version in pages:
        assert version == "9"
        found += page
    return found


async def watch_pods() -> list[Any]:
    stream = watching.watch_objs(
        settings=build_kopf_settings(),
        resource=PODS,
        namespace="team",
        operator_pause_waiter=asyncio.get_running_loop().create_future(),
    )
    return [event async for event in stream]


@pytest.mark.parametrize(("num_bytes", "look"), [(10, list_pods), (LARGE, watch_pods)])
def test_lists_and_watches_ask_for_metadata_and_keep_little(
    num_bytes: int, look: Callable[[], Awaitable[list[Any]]]
) -> None:
    server = Server([build_pod(index, num_bytes) for index in range(3)])

    async def story() -> None:
        found = await look()
        objects = [each.get("object", each) for each in found]
        assert [each["metadata"]["name"] for each in objects] == ["pod-0", "pod-1", "pod-2"]
        for each in objects:
            assert each["metadata"]["labels"] == {EXPERIMENT_LABEL: "clicks"}
        assert len(json.dumps(found)) < 2_000

    play(server.answer, story)
    assert all(PARTIAL in request.headers["Accept"] for request in server.asked)


@pytest.mark.parametrize("look", [list_pods, watch_pods])
def test_a_deep_object_ends_no_list_and_no_watch(
    look: Callable[[], Awaitable[list[Any]]],
) -> None:
    pods = [build_pod(index) for index in range(3)]
    pods[1]["metadata"]["managedFields"] = ["deep"]
    server = Server(pods)

    async def answer(request: web.Request) -> web.Response:
        found = await server.answer(request)
        assert isinstance(found.text, str)
        fields = '{"f:a":' * 60_000 + "1" + "}" * 60_000
        return web.Response(text=found.text.replace('"deep"', fields))

    async def story() -> None:
        found = await look()
        names = [each.get("object", each)["metadata"]["name"] for each in found]
        assert names == ["pod-0", "pod-1", "pod-2"]

    play(answer, story)


def test_other_requests_are_unchanged() -> None:
    server = Server([])

    async def story() -> None:
        settings = build_kopf_settings()
        assert await api.get("/api/v1", settings=settings, logger=watching.logger) == {
            "resources": []
        }
        url = "/api/v1/namespaces/team/pods/a"
        await api.patch(url, settings=settings, payload={}, logger=watching.logger)

    play(server.answer, story)
    assert [request.method for request in server.asked] == ["GET", "PATCH"]
    assert not any(PARTIAL in request.headers["Accept"] for request in server.asked)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_PAGE_BYTES", PAGE_BYTES)


@pytest.mark.usefixtures("small_pages")
def test_a_page_that_is_too_large_is_split() -> None:
    server = Server([build_pod(index, LARGE) for index in range(7)])

    async def story() -> None:
        names = [pod["metadata"]["name"] for pod in await list_pods()]
        assert names == [f"pod-{index}" for index in range(7)]

    play(server.answer, story)
    assert server.limits[0] == PAGE_SIZE
    assert server.limits[-1] * 2 * LARGE <= 2 * PAGE_BYTES


@pytest.mark.usefixtures("small_pages")
def test_a_single_object_may_be_larger_than_a_page() -> None:
    server = Server([build_pod(index, PAGE_BYTES) for index in range(2)])

    async def story() -> None:
        assert len(await list_pods()) == 2

    play(server.answer, story)


def test_kopf_handles_refusals() -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"kind": "Status", "message": "no"}, status=403)

    async def story() -> None:
        async with serving(refuse) as url, aiohttp.ClientSession() as session:
            ours = MetadataSession(session)
            for query in ("limit=5", "watch=true"):
                answer = await ours.request("get", f"{url}/api/v1/pods?{query}")
                assert (answer.status, (await answer.json())["message"]) == (403, "no")

    asyncio.run(story())


def test_only_the_line_that_is_too_long_is_dropped() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"a\nb", b"b\n\ncc", b"c" * 20, b"c\nd\n", b"e"):
            yield piece

    async def story() -> list[bytes]:
        return [line async for line in split_lines(pieces(), max_bytes=10)]

    assert asyncio.run(story()) == [b"a", b"bb", b"d"]
