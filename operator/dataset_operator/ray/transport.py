"""Defines HTTP requests to a pod's port, and checks the answers.

The pod runs a user's code, so its answers are not trusted: their time and size are bounded, and
redirects are not followed. `endpoints` sends the requests.
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
# Twice the size of Ray's own metrics, a head's largest page, after a few jobs.
MAX_ANSWER_BYTES = 1 << 20
# Ray accepts this header besides `Authorization`, which the API server's proxy removes (Ray 2.60,
# http_token_authentication.py).
_TOKEN_HEADER = "X-Ray-Authorization"
_CHUNK_BYTES = 1 << 16
_MAX_QUOTED_CHARS = 300
# A missing token, a busy server, or a proxy without a backend: Ray itself has not answered.
_NO_ANSWER = frozenset({401, 403, 429, 502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request to a pod's port.

    Attributes:
        body: sent as it is if it is bytes, else as JSON.
        max_bytes: of the answer; a larger one is refused.
        family: read only this family of a metrics page, from its first `max_bytes`; "": read the
            whole answer.
        tail_bytes: keep only so many bytes from the end of the answer; 0: keep the whole answer.
        seconds: until the whole answer has arrived.
    """

    method: str
    port: int
    path: str
    body: Mapping[str, Any] | bytes | None = None
    token: str = ""
    max_bytes: int = MAX_ANSWER_BYTES
    family: str = ""
    tail_bytes: int = 0
    seconds: float = REQUEST_SECONDS

    def __str__(self) -> str:
        return f"{self.method} :{self.port}{self.path}"

    @property
    def timeout(self) -> aiohttp.ClientTimeout:
        """The time limit as an aiohttp timeout."""
        return aiohttp.ClientTimeout(total=self.seconds)

    def headers(self) -> dict[str, str]:
        """Return the headers: the content type, and the token if there is one."""
        kind = "application/octet-stream" if isinstance(self.body, bytes) else "application/json"
        token = {_TOKEN_HEADER: f"Bearer {self.token}"} if self.token else {}
        return {"Content-Type": kind, **token}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a request.

    Attributes:
        wait_seconds: Retry-After of a busy server, bounded.
    """

    status: int
    content: bytes
    wait_seconds: float = 0.0

    @property
    def text(self) -> str:
        """The beginning of the content, for messages."""
        return self.content.decode(errors="replace").strip()[:_MAX_QUOTED_CHARS]


class Endpoint(Protocol):
    """The ports of a pod."""

    async def send(self, request: Request) -> Answer:
        """Send a request. Raises RayUnreachable if nothing answers, or something other than Ray."""


async def read_answer(request: Request, response: aiohttp.ClientResponse) -> Answer:
    """Read the part of the answer that the request asks for, and release the response.

    Raises RayUnreachable.
    """
    async with response:
        is_page = request.family and response.status == 200
        content = await (_read_family if is_page else _read_whole)(request, response)
    if response.history:
        raise RayUnreachable(f"{request}: redirected to {response.url}")
    wait = bound_wait(parse_retry_after(response.status, response.headers))
    return Answer(status=response.status, content=content, wait_seconds=wait)


async def _read_whole(request: Request, response: aiohttp.ClientResponse) -> bytes:
    content, num_bytes = bytearray(), 0
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        content += chunk
        num_bytes += len(chunk)
        if num_bytes > request.max_bytes:
            raise RayUnreachable(f"{request}: the answer is larger than {request.max_bytes} B")
        if request.tail_bytes:
            del content[: -request.tail_bytes]
    return bytes(content)


async def _read_family(request: Request, response: aiohttp.ClientResponse) -> bytes:
    """Read up to the end of the family, and leave the rest: the connection is closed instead."""
    reader, num_bytes = FamilyReader(request.family), 0
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        reader.feed(chunk)
        num_bytes += len(chunk)
        if reader.is_done or num_bytes > request.max_bytes:
            break
    return reader.end()


def check_answer(request: Request, answer: Answer) -> Answer:
    """Return the answer if Ray itself gave it. Raises RayUnreachable."""
    if 300 <= answer.status < 400 or answer.status in _NO_ANSWER:
        failure = RayUnreachable(f"{request}: HTTP {answer.status}: {answer.text}")
        failure.retry_after_seconds = answer.wait_seconds
        raise failure
    return answer


def failure_of(request: Request, error: Exception) -> RayUnreachable:
    """Convert a transport's error to RayUnreachable."""
    return RayUnreachable(f"{request}: {str(error) or type(error).__name__}")
