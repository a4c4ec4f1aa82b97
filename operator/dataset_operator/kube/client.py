"""A client for plain documents, over the official one's transport and credentials.

Every call is one request with a deadline. Creating an object that exists counts as done, and so
does deleting one that does not. Other failures become the exceptions of `errors`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import aiohttp
from kubernetes.aio.client import ApiClient, ApiException

from dataset_operator.api import FIELD_MANAGER, RAY_API_VERSION
from dataset_operator.documents import Document
from dataset_operator.errors import (
    KubeConflict,
    KubeRefused,
    KubeUnavailable,
    OperatorError,
)
from dataset_operator.kube.bounds import (
    LARGE_BYTES,
    MAX_OBJECT_BYTES,
    PAGE_SIZE,
    fetch_page,
    read_bounded,
)
from dataset_operator.kube.metadata import LIST, ONE
from dataset_operator.kube.parsing import parse_json
from dataset_operator.retrying import bound_wait, parse_retry_after, spread
from dataset_operator.scheduling import places
from pipeline_runtime.config import API_VERSION, KIND

# Longer than an overloaded API server needs, shorter than a pass may hang.
REQUEST_SECONDS = 30.0
LEAST_WAIT_SECONDS = 1.0  # if the API server asks to wait: the unit of Retry-After
_JSON = "application/json"
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
# The message, with HTTP 500, of a server-side apply of a field that the schema does not have.
_UNTYPED = "failed to create typed patch object"
# kind → (apiVersion, plural)
_KINDS: dict[str, tuple[str, str]] = {
    "ConfigMap": ("v1", "configmaps"),
    "Event": ("v1", "events"),
    "Pod": ("v1", "pods"),
    "Secret": ("v1", "secrets"),
    "ServiceAccount": ("v1", "serviceaccounts"),
    "Lease": ("coordination.k8s.io/v1", "leases"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
    "RayCluster": (RAY_API_VERSION, "rayclusters"),
    KIND: (API_VERSION, "datasetexperiments"),
}
Query = Iterable[tuple[str, str]]
# Returns the used part of an object; None if nothing of it is used.
Keep = Callable[[Document], Document | None]
_MANAGED: Query = (("fieldManager", FIELD_MANAGER),)
# Records a request: method, path, HTTP status (0: no answer), seconds.
Observe = Callable[[str, str, int, float], None]


def keep_whole(document: Document) -> Document:
    """Keep all of an object."""
    return document


def _ignore(method: str, path: str, status: int, seconds: float) -> None:
    pass


class Kube(Protocol):
    """The requests of the operator to an API server."""

    async def get(self, kind: str, namespace: str, name: str) -> Document | None:
        """Return an object; None if it does not exist."""

    async def list_objects(
        self, kind: str, namespace: str, selector: str, keep: Keep = keep_whole
    ) -> list[Document]:
        """Return the used parts of the objects with these labels (`key=value,…`).

        `keep` is called page by page, so that only one page of whole objects is in memory.
        """

    async def create(self, document: Document) -> None:
        """Create an object, unless it exists."""

    async def apply(self, document: Document) -> None:
        """Server-side apply as the operator's field manager."""

    async def try_out(self, document: Document) -> None:
        """Do a dry run of `apply`: store nothing, but raise KubeRefused as it would."""

    async def patch(self, kind: str, namespace: str, name: str, patch: Document) -> bool:
        """Merge a patch into an object; with metadata.resourceVersion, only into that version.

        Return False if the object did not change: a default of the API server, or an admission
        webhook, has restored what the patch removes.
        """

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """Delete the object with this uid and, in the background, the objects that it owns."""

    async def delete_observed(self, document: Mapping[str, Any]) -> None:
        """Delete an object, unless it changed since it was observed, which is a KubeConflict."""

    async def write_status(self, document: Mapping[str, Any], status: Document) -> str:
        """Replace the status of an object; return its new resourceVersion.

        Raises KubeConflict if the object changed since it was observed.
        """

    async def write_finalizers(self, document: Mapping[str, Any], names: list[str]) -> None:
        """Replace the finalisers of an object, unless it changed since it was observed."""


class KubeClient:
    """`Kube` over HTTP, and the requests that only the commands make.

    Args:
        client: the official client, which holds the credentials.
        manager: the field manager of its writes.
        observe: records every request.
        request_seconds: how long a request may take.
        retry_seconds: for how long a request is sent again while the API server is too busy and
            asks to wait. Commands wait; a pass of the operator fails, and is tried again later.
    """

    def __init__(
        self,
        client: ApiClient,
        *,
        manager: str = FIELD_MANAGER,
        observe: Observe = _ignore,
        request_seconds: float = REQUEST_SECONDS,
        retry_seconds: float = 0.0,
    ) -> None:
        self._client = client
        self._manager = manager
        self._observe = observe
        self._request_seconds = request_seconds
        self._retry_seconds = retry_seconds

    async def get(self, kind: str, namespace: str, name: str) -> Document | None:
        """See Kube."""
        path = _path(kind, namespace, name)
        status, document = await self._get(path)
        if status != 404:
            return document
        if not (document.get("details") or {}).get("name"):
            raise KubeUnavailable(
                f"{path}: the API server does not serve {kind}; is its CRD there?"
            )
        return None

    async def _get(self, path: str) -> tuple[int, Document]:
        """Fetch an object; fetch a large one as soon as this pass has a place for it."""
        if not places.may_hold_large():
            status, document = await self._send("GET", path, max_bytes=LARGE_BYTES)
            if document is not None:
                return status, document
            await places.take()
        return await self._request("GET", path)

    async def list_objects(
        self,
        kind: str,
        namespace: str,
        selector: str,
        keep: Keep = keep_whole,
        *,
        fields: str = "",
    ) -> list[Document]:
        """See Kube; `fields` selects by fields (`key=value,…`), which some kinds support."""
        given = (("labelSelector", selector), ("fieldSelector", fields))
        query = [(name, value) for name, value in given if value]
        found: list[Document] = []
        async for page in self._list_pages(_path(kind, namespace), query, _JSON):
            found += [kept for item in page if (kept := keep(item)) is not None]
            del page  # before the next is fetched
        return found

    async def list_metadata(self, kind: str, namespace: str) -> AsyncIterator[Document]:
        """Yield the metadata of all objects of a kind; in all namespaces if none is named."""
        async for page in self._list_pages(_path(kind, namespace), [], LIST):
            for item in page:
                yield item["metadata"]

    async def _list_pages(
        self, path: str, query: list[tuple[str, str]], accept: str
    ) -> AsyncIterator[list[Document]]:
        """Yield the pages of a list; a page has as many objects as fit into a bounded answer."""
        limit, token = PAGE_SIZE, ""

        async def fetch(most: int, max_bytes: int) -> Document | None:
            asked = [*query, ("limit", str(most)), *([("continue", token)] if token else [])]
            sent = {"Accept": accept}
            _, page = await self._send("GET", path, query=asked, headers=sent, max_bytes=max_bytes)
            return page

        while True:
            page, limit = await fetch_page(fetch, limit)
            if page is None:
                raise _build_oversized(f"GET {path}")
            items, token = page.get("items") or [], page.get("metadata", {}).get("continue")
            del page
            yield items
            del items
            if not token:
                return
            limit = min(2 * limit, PAGE_SIZE)

    async def is_served(self, kind: str) -> bool:
        """Return whether the API server knows the kind: its CRD is installed."""
        version, plural = _KINDS[kind]
        _, found = await self._request("GET", f"/apis/{version}")
        return any(resource["name"] == plural for resource in found.get("resources", ()))

    async def ask_service(
        self, namespace: str, service: str, path: str, headers: Mapping[str, str]
    ) -> Document | None:
        """Return the answer of a Service (`name:port`) by the API server's proxy; None if 404."""
        path = f"/api/v1/namespaces/{namespace}/services/{service}/proxy{path}"
        status, document = await self._request("GET", path, headers=headers)
        return None if status == 404 else document

    async def create(self, document: Document) -> None:
        """See Kube."""
        path = _path(document["kind"], document["metadata"]["namespace"])
        query = [("fieldManager", FIELD_MANAGER), ("fieldValidation", "Strict")]
        await self._write("POST", path, document, query=query, done=(409,))

    async def create_new(self, document: Document) -> Document:
        """Create an object; return it as stored. Raises KubeConflict if it exists."""
        path = _path(document["kind"], document["metadata"]["namespace"])
        _, stored = await self._request("POST", path, document, query=_MANAGED)
        return stored

    async def replace(self, document: Document) -> Document:
        """Replace the whole object; return it as stored. Raises KubeConflict if it changed."""
        _, stored = await self._request("PUT", _path_of(document), document, query=_MANAGED)
        return stored

    async def apply(self, document: Document, *, force: bool = True) -> None:
        """See Kube; without `force`, KubeConflict if another manager owns a field of it."""
        query = [
            ("fieldManager", self._manager),
            ("fieldValidation", "Strict"),
            ("force", str(force).lower()),
        ]
        await self._write("PATCH", _path_of(document), document, query=query, content=_APPLY)

    async def try_out(self, document: Document) -> None:
        """See Kube."""
        query = [("fieldManager", self._manager), ("fieldValidation", "Strict")]
        query += [("force", "true"), ("dryRun", "All")]
        await self._write("PATCH", _path_of(document), document, query=query, content=_APPLY)

    async def patch(self, kind: str, namespace: str, name: str, patch: Document) -> bool:
        """See Kube."""
        query = [("fieldManager", self._manager), ("fieldValidation", "Strict")]
        path = _path(kind, namespace, name)
        _, after = await self._write("PATCH", path, patch, query=query, content=_MERGE)
        before = patch.get("metadata", {}).get("resourceVersion")
        return bool(after["metadata"]["resourceVersion"] != before)

    async def delete(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """See Kube."""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        await self._request("DELETE", _path(kind, namespace, name), body, done=(404, 409))

    async def delete_observed(self, document: Mapping[str, Any]) -> None:
        """See Kube."""
        metadata = document["metadata"]
        same = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        body = {"propagationPolicy": "Background", "preconditions": same}
        await self._request("DELETE", _path_of(document), body, done=(404,))

    async def write_status(self, document: Mapping[str, Any], status: Document) -> str:
        """See Kube."""
        # The API server uses the status alone, and refuses a request of more than 3 MiB.
        named = ("name", "namespace", "uid", "resourceVersion")
        body = {
            "apiVersion": document["apiVersion"],
            "kind": document["kind"],
            "metadata": {name: document["metadata"][name] for name in named},
            "status": status,
        }
        path = f"{_path_of(document)}/status"
        _, after = await self._write("PUT", path, body, query=_MANAGED)
        return str(after["metadata"]["resourceVersion"])

    async def write_finalizers(self, document: Mapping[str, Any], names: list[str]) -> None:
        """See Kube."""
        version = document["metadata"]["resourceVersion"]
        patch = {"metadata": {"finalizers": names, "resourceVersion": version}}
        await self._write("PATCH", _path_of(document), patch, content=_MERGE, done=(404,))

    async def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, **more: Any
    ) -> tuple[int, Document]:
        """Send a request; raise KubeUnavailable if the answer exceeds the bound of all answers."""
        status, document = await self._send(method, path, body, **more)
        if document is None:
            raise _build_oversized(f"{method} {path}")
        return status, document

    async def _write(
        self, method: str, path: str, body: Mapping[str, Any], **more: Any
    ) -> tuple[int, Document]:
        """Send a write; ask for the metadata alone in the answer."""
        return await self._request(method, path, body, headers={"Accept": ONE}, **more)

    async def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Query = (),
        content: str = _JSON,
        headers: Mapping[str, str] = _NO_HEADERS,
        done: tuple[int, ...] = (),
        max_bytes: int = MAX_OBJECT_BYTES,
    ) -> tuple[int, Document | None]:
        """Send a request, again for as long as the API server asks to wait.

        Returns: the HTTP status, and the answer or None if it has more than `max_bytes`.
        """
        sent = {"Accept": _JSON, "Content-Type": content, **headers}
        deadline = time.monotonic() + self._retry_seconds
        while True:
            status, text, wait = await self._send_once(method, path, body, query, sent, max_bytes)
            # A write that was answered with 503 may have been carried out, so do not repeat it.
            may_repeat = status == 429 or method == "GET"
            if wait is None or not may_repeat or time.monotonic() + wait > deadline:
                break
            await asyncio.sleep(wait)
        if text is None:
            return status, None
        document = await _parse(text)
        if status < 300 or status in done or (method == "GET" and status == 404):
            return status, document
        failure = _failure(status, document.get("message") or f"{method} {path}: HTTP {status}")
        failure.retry_after_seconds = bound_wait(wait)
        raise failure

    async def _send_once(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Query,
        headers: Mapping[str, str],
        max_bytes: int,
    ) -> tuple[int, bytes | None, float | None]:
        """Send a request once.

        Returns: the HTTP status; the body, or None if it has more than `max_bytes`; and the seconds
            to wait before the request is repeated, or None if the API server does not ask for it.

        Raises:
            KubeUnavailable: there is no answer.
        """
        status, started = 0, time.monotonic()
        try:
            serialized = await self._client.param_serialize(
                method,
                path,
                query_params=list(query),
                header_params=dict(headers),
                body=dict(body) if body is not None else None,
                auth_settings=["BearerToken"],
            )
            response = await self._client.call_api(
                *serialized, _request_timeout=self._request_seconds
            )
            status = response.status
            text = await read_bounded(response.response, max_bytes)
            return status, text, _find_wait(status, response.headers)
        except ApiException as error:
            status = error.status or 0
            return status, (error.body or "").encode(), None
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise KubeUnavailable(
                f"{method} {path}: {str(error) or type(error).__name__}"
            ) from error
        finally:
            self._observe(method, path, status, time.monotonic() - started)


def _find_wait(status: int, headers: Mapping[str, str]) -> float | None:
    """Return how many seconds the API server asks to wait; None if it does not ask.

    It has not carried out a request that it answers with 429: it is overloaded, or a CRD is new.
    Waits differ at random, so that requests which were refused together are not repeated together.
    """
    seconds = parse_retry_after(status, headers)
    return None if seconds is None else spread(max(seconds, LEAST_WAIT_SECONDS))


def _build_oversized(request: str) -> KubeUnavailable:
    return KubeUnavailable(f"{request}: the answer has more than {MAX_OBJECT_BYTES} bytes")


def _failure(status: int, message: str) -> OperatorError:
    # The object was deleted or changed, or the next page of a list has expired: observe again.
    if status in (404, 409, 410):
        return KubeConflict(message)
    is_invalid = status in (400, 422) or _UNTYPED in message
    if not is_invalid and (status in (0, 408, 429) or status >= 500):
        return KubeUnavailable(message)
    return KubeRefused(message, is_invalid=is_invalid)


async def _parse(text: bytes) -> Document:
    try:
        document = await parse_json(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _path(kind: str, namespace: str, name: str = "") -> str:
    version, plural = _KINDS[kind]
    group = f"/apis/{version}" if "/" in version else f"/api/{version}"
    path = f"{group}/namespaces/{namespace}/{plural}" if namespace else f"{group}/{plural}"
    return f"{path}/{name}" if name else path


def _path_of(document: Mapping[str, Any]) -> str:
    metadata = document["metadata"]
    return _path(document["kind"], metadata["namespace"], metadata["name"])
