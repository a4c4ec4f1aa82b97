"""The few requests to a box's servers that start it; tests use kubectl or a real client.

Straight HTTP, because every kubectl costs a process, discovery and a parse of KubeRay's megabytes
of CRDs, which together would be most of the time that a box takes to come up.
"""

import http.client
import json
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from tools.cluster.errors import RequestError

# What the API server answers while it sets up the storage of a kind.
LATER = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}
RETRY_SECONDS = 0.2
TIMEOUT_SECONDS = 60.0  # of one request; a busy machine takes seconds over a large CRD


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server of a box.

    Attributes:
        host: its address.
        port: its port.
        tls: the authority of the server and the certificate of the client; None for plain HTTP.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None

    def is_ready(self, path: str) -> bool:
        """Return whether the server answers 200 on `path`; False without an answer."""
        try:
            return self._send("GET", path, None, "")[0] == HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False

    def get(self, path: str) -> dict[str, Any] | None:
        """Return an object of the API, None if there is none, or not yet."""
        status, body = self._send("GET", path, None, "")
        if status == HTTPStatus.NOT_FOUND or status in LATER:
            return None
        return _parse("GET", path, status, body)

    def create(
        self, path: str, body: bytes, content_type: str = "application/json"
    ) -> dict[str, Any]:
        """Create an object in the collection at `path` and return it.

        Raises:
            RequestError: the server refuses it.
        """
        deadline = time.monotonic() + TIMEOUT_SECONDS
        status, said = self._send("POST", path, body, content_type)
        while status in LATER and time.monotonic() < deadline:
            time.sleep(RETRY_SECONDS)
            status, said = self._send("POST", path, body, content_type)
        return _parse("POST", path, status, said)

    def patch(self, path: str, changes: Mapping[str, object]) -> None:
        """Change fields of an object, or of a part of it that has a path of its own.

        Raises:
            RequestError: the server refuses it.
        """
        body = json.dumps(changes).encode()
        status, said = self._send("PATCH", path, body, "application/merge-patch+json")
        _parse("PATCH", path, status, said)

    def _send(
        self, method: str, path: str, body: bytes | None, content_type: str
    ) -> tuple[int, bytes]:
        connection = self._connect()
        try:
            headers = {"Content-Type": content_type} if content_type else {}
            connection.request(method, path, body, {"Accept": "application/json", **headers})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        if self.tls is None:
            return http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_SECONDS)
        return http.client.HTTPSConnection(
            self.host, self.port, timeout=TIMEOUT_SECONDS, context=self.tls
        )


def _parse(method: str, path: str, status: int, body: bytes) -> dict[str, Any]:
    if status not in {HTTPStatus.OK, HTTPStatus.CREATED}:
        raise RequestError(f"{method} {path}", status, body.decode(errors="replace"))
    parsed: dict[str, Any] = json.loads(body)
    return parsed
