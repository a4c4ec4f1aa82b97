"""One HTTP request to a port of a cluster's pod, and what counts as an answer to it.

What answers there is a pod that runs a user's code, so nothing of it is trusted: the time and the
size of an answer are bounded, redirects are not followed. `endpoints` says how a port is reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp

from dataset_operator.errors import RayUnreachable
from dataset_operator.ray.families import FamilyReader
from dataset_operator.retrying import bound_wait, parse_retry_after

REQUEST_SECONDS = 10.0
# Ray's own metrics, the largest page of a head, take half of it after a few jobs (platform facts).
MAX_ANSWER_BYTES = 1 << 20
# Taken as well as `Authorization`, which the API server's proxy eats (Ray 2.60,
# http_token_authentication.py).
_TOKEN_HEADER = "X-Ray-Authorization"
_CHUNK_BYTES = 1 << 16
_MAX_QUOTED_CHARS = 300
# Refused for want of a token, too busy, or nobody behind a proxy: Ray itself has not answered.
_NO_ANSWER = frozenset({401, 403, 429, 502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of a pod; `body` is sent as JSON, or as it is if it is bytes.

    Attributes:
        family: the one that is read of a page of metrics, up to `max_bytes` of the page; "": what
            is answered is wanted whole, and may have no more.
    """

    method: str
    port: int
    path: str
    body: Mapping[str, Any] | bytes | None = None
    token: str = ""
    max_bytes: int = MAX_ANSWER_BYTES  # of the answer
    family: str = ""
    seconds: float = REQUEST_SECONDS  # until the answer is there, whole

    def __str__(self) -> str:
        return f"{self.method} :{self.port}{self.path}"

    @property
    def timeout(self) -> aiohttp.ClientTimeout:
        """Its bound as the transports want it."""
        return aiohttp.ClientTimeout(total=self.seconds)

    def headers(self) -> dict[str, str]:
        """The content's type, and the token if there is one."""
        kind = "application/octet-stream" if isinstance(self.body, bytes) else "application/json"
        token = {_TOKEN_HEADER: f"Bearer {self.token}"} if self.token else {}
        return {"Content-Type": kind, **token}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back.

    Attributes:
        wait_seconds: for how long a busy server asks to be left alone.
    """

    status: int
    content: bytes
    wait_seconds: float = 0.0

    @property
    def text(self) -> str:
        """Its beginning, for messages."""
        return self.content.decode(errors="replace").strip()[:_MAX_QUOTED_CHARS]


class Endpoint(Protocol):
    """A pod's ports, however they are reached."""

    async def send(self, request: Request) -> Answer:
        """Raises RayUnreachable if nothing answers, or what answers is not what was asked."""


async def read_answer(request: Request, response: aiohttp.ClientResponse) -> Answer:
    """The answer, whole or one family; the response is released. Raises RayUnreachable."""
    async with response:
        is_page = request.family and response.status == 200
        content = await (_read_family if is_page else _read_whole)(request, response)
    if response.history:
        raise RayUnreachable(f"{request}: redirected to {response.url}")
    wait = bound_wait(parse_retry_after(response.status, response.headers))
    return Answer(status=response.status, content=content, wait_seconds=wait)


async def _read_whole(request: Request, response: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        content += chunk
        if len(content) > request.max_bytes:
            raise RayUnreachable(f"{request}: the answer is larger than {request.max_bytes} B")
    return bytes(content)


async def _read_family(request: Request, response: aiohttp.ClientResponse) -> bytes:
    """What comes after it is not read: the connection is closed instead."""
    reader, num_bytes = FamilyReader(request.family), 0
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        reader.feed(chunk)
        num_bytes += len(chunk)
        if reader.is_done or num_bytes > request.max_bytes:
            break
    return reader.end()


def check_answer(request: Request, answer: Answer) -> Answer:
    """The answer, if it is one of Ray's. Raises RayUnreachable."""
    if 300 <= answer.status < 400 or answer.status in _NO_ANSWER:
        failure = RayUnreachable(f"{request}: HTTP {answer.status}: {answer.text}")
        failure.retry_after_seconds = answer.wait_seconds
        raise failure
    return answer


def failure_of(request: Request, error: Exception) -> RayUnreachable:
    """A transport's error as ours."""
    return RayUnreachable(f"{request}: {str(error) or type(error).__name__}")
