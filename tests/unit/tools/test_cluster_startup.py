"""Objects of a new control plane, whose API server answers badly at first."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tools.cluster.box import RequestError
from tools.cluster.startup import Server

NODE = {"metadata": {"name": "node-0"}}
CONFLICT = (HTTPStatus.CONFLICT, {"reason": "AlreadyExists", "details": {"name": "node-0"}})
CREATED = (HTTPStatus.CREATED, NODE)


@contextmanager
def answering(*answers: tuple[HTTPStatus, object]) -> Iterator[tuple[Server, list[str]]]:
    """Yield a server that gives these answers in order, and the requests that it got."""
    waiting, requests = list(answers), list[str]()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            requests.append(f"{self.command} {self.path}")
            status, body = waiting.pop(0)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        do_GET = do_POST = answer

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever, args=[0.01])
        thread.start()
        try:
            yield Server(host="127.0.0.1", port=served.server_port, tls=None), requests
        finally:
            served.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "status",
    [
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        HTTPStatus.GATEWAY_TIMEOUT,
    ],
)
def test_an_unfinished_creation_is_retried(status: HTTPStatus) -> None:
    with answering((status, {}), CREATED) as (server, requests):
        assert server.create("/nodes", b"{}") == NODE
    assert requests == ["POST /nodes", "POST /nodes"]


def test_an_object_created_without_an_answer_is_returned() -> None:
    answers: list[tuple[HTTPStatus, object]] = [
        (HTTPStatus.GATEWAY_TIMEOUT, {}),
        CONFLICT,
        (HTTPStatus.OK, NODE),
    ]
    with answering(*answers) as (server, requests):
        assert server.create("/nodes", b"{}") == NODE
    assert requests[-1] == "GET /nodes/node-0"


def test_an_object_of_another_is_refused() -> None:
    with answering(CONFLICT) as (server, _), pytest.raises(RequestError, match="AlreadyExists"):
        server.create("/nodes", b"{}")
