"""The HTTP session that Kopf lists and watches with: metadata alone, in bounded pages.

Kopf asks for whole objects, 500 a page, and each of its workers holds the last one for seconds. By
this session it gets only the metadata, cut as it arrives to the part that wakes a pass
(`metadata.shrink`). The pass then fetches the object itself.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, cast

import aiohttp
import kopf
from yarl import URL

from dataset_operator.errors import KubeUnavailable
from dataset_operator.kube.bounds import MAX_OBJECT_BYTES, fetch_page, read_bounded
from dataset_operator.kube.metadata import LIST, ONE, shrink
from dataset_operator.kube.parsing import parse_json

# Logs in for Kopf's requests; called again if the API server refuses the credentials.
LogIn = Callable[[], Awaitable[kopf.ConnectionInfo]]
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Session(kopf.AiohttpSession):
    """A session for Kopf, which compares sessions by their credentials to drop refused ones."""

    info: kopf.ConnectionInfo
    aiohttp_session: aiohttp.ClientSession = field(compare=False)


def watch_metadata(
    log_in: LogIn, traces: Sequence[aiohttp.TraceConfig] = ()
) -> Callable[[], Awaitable[kopf.AiohttpSession]]:
    """Build a login for Kopf whose session lists and watches metadata; Kopf closes the session.

    Args:
        traces: traces of the session, such as the guard before every write (`election.guard`).
    """

    async def log_in_for_metadata() -> kopf.AiohttpSession:
        info = await log_in()
        session = aiohttp.ClientSession(  # as Kopf makes it (kopf/_cogs/clients/auth.py)
            connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
            headers=info.as_http_headers(),
            proxy=info.proxy_url,
            trust_env=info.trust_env,
            trace_configs=list(traces),
        )
        return _Session(
            server=info.server,
            default_namespace=info.default_namespace,
            info=info,
            aiohttp_session=cast(aiohttp.ClientSession, MetadataSession(session)),
        )

    return log_in_for_metadata


class MetadataSession:
    """The part of `aiohttp.ClientSession` that Kopf uses (kopf/_cogs/clients/api.py, auth.py)."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._limits: dict[
            str, int
        ] = {}  # number of objects of the next page, by the path of the list

    @property
    def headers(self) -> Any:
        """See aiohttp."""
        return self._session.headers

    @property
    def closed(self) -> bool:
        """See aiohttp."""
        return self._session.closed

    async def close(self) -> None:
        """See aiohttp."""
        await self._session.close()

    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, **more: Any
    ) -> Any:
        """Send a request; answers of lists and watches have only small metadata."""
        target = URL(url)
        is_read = method.upper() == "GET"
        if is_read and "watch" in target.query:
            sent = {**(headers or {}), "Accept": ONE}
            answer = await self._session.get(target, headers=sent, **more)
            return answer if answer.status >= 300 else _Stream(answer)
        if is_read and "limit" in target.query:
            return await self._list(target, {**(headers or {}), "Accept": LIST}, more)
        return await self._session.request(method, target, headers=headers, **more)

    async def _list(self, url: URL, headers: Mapping[str, str], more: Mapping[str, Any]) -> Any:
        async def fetch(limit: int, max_bytes: int) -> Any:
            answer = await self._session.get(url.update_query(limit=limit), headers=headers, **more)
            if answer.status >= 300:
                return answer
            async with answer:
                text = await read_bounded(answer, max_bytes)
            return None if text is None else _Page(await _shrink_page(text))

        most = int(url.query["limit"])
        page, limit = await fetch_page(fetch, min(most, self._limits.get(url.path, most)))
        self._limits[url.path] = 2 * limit
        if page is None:
            raise KubeUnavailable(f"GET {url}: an object has more than {MAX_OBJECT_BYTES} bytes")
        return page


async def _shrink_page(text: bytes) -> dict[str, Any]:
    page: dict[str, Any] = await parse_json(text)
    items = page.get("items") or ()  # null if there are none
    return {**page, "items": [{"metadata": shrink(item["metadata"])} for item in items]}


@dataclass(slots=True)
class _Page:
    """A page of a list, in the form of an answer that Kopf expects."""

    document: dict[str, Any]
    status: int = 200

    async def json(self) -> dict[str, Any]:
        """Return the page."""
        return self.document

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


@dataclass(slots=True)
class _Stream:
    """A watch, in the form of an answer that Kopf expects: it is its own content."""

    answer: aiohttp.ClientResponse

    @property
    def status(self) -> int:
        """See aiohttp."""
        return self.answer.status

    @property
    def content(self) -> Self:
        """See aiohttp."""
        return self

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Yield events, a line each."""
        async for line in split_lines(self.answer.content.iter_chunked(size)):
            yield await _shrink_event(line) + b"\n"

    def close(self) -> None:
        """See aiohttp."""
        self.answer.close()

    async def __aenter__(self) -> Self:
        await self.answer.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.answer.__aexit__(*error)


async def _shrink_event(line: bytes) -> bytes:
    event: dict[str, Any] = await parse_json(line)
    if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
        event["object"] = {"metadata": shrink(event["object"]["metadata"])}
    return json.dumps(event).encode()


async def split_lines(
    pieces: AsyncIterable[bytes], max_bytes: int = MAX_OBJECT_BYTES
) -> AsyncIterator[bytes]:
    """Yield the lines that are not empty; drop one that has more than `max_bytes`."""
    begun, is_dropped = bytearray(), False
    async for piece in pieces:
        *ends, rest = piece.split(b"\n")
        for end in ends:
            line = bytes(begun) + end
            begun.clear()
            if line and not is_dropped:
                yield line
            is_dropped = False
        if not is_dropped:
            begun += rest
        if len(begun) > max_bytes:
            _LOG.warning("ignored an event of a watch that has more than %d bytes", max_bytes)
            begun.clear()
            is_dropped = True
