"""A real Iceberg REST catalog on this machine, and a proxy before it that checks tokens and fails.

The server is upstream's implementation (`java/IcebergRestServer.java`), which accepts everybody.
Tests talk to a proxy in their own process: it wants a token, and answers as a broken network, a
busy server or a concurrent writer would if a test asks for it.
"""

from __future__ import annotations

import http.client
import json
import re
import secrets
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

from loopback import free_ports
from server_process import running_server

SOURCES = Path(__file__).parent / "java"
# It is ready in three; Java compiles the source first, and other tests use the cores too.
START_SECONDS = 120.0
JAVA_OPTIONS = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
OAUTH_PATH = "/v1/oauth/tokens"
COMMITS = r"/v1/namespaces/[^/]+/tables/[^/]+"
# Headers that belong to one connection, or that a server writes itself.
NOT_FORWARDED = {"connection", "content-length", "date", "host", "server", "transfer-encoding"}
# Names of errors in the REST specification.
ERROR_TYPES = {
    401: "NotAuthorizedException",
    403: "ForbiddenException",
    409: "CommitFailedException",
    419: "AuthenticationTimeoutException",
    503: "ServiceUnavailableException",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A way in which the proxy treats a request.

    Attributes:
        method: of the requests that it is for.
        path: a regular expression for their whole path; commits of tables by default.
        delay_seconds: passes before anything else.
        is_forwarded: whether the server gets the request.
        status: the answer; None for the server's own, 0 to close the connection without one.
    """

    method: str = "POST"
    path: str = COMMITS
    delay_seconds: float = 0
    is_forwarded: bool = False
    status: int | None = None


@dataclass(slots=True, kw_only=True)
class RestProxy:
    """A proxy before the server, of one test.

    Attributes:
        token: which it accepts from the beginning.
        client_id: of the only OAuth client.
        client_secret: of that client.
        faults: each is used once, for the first request that it fits.
        requests: method and path of each request so far.
    """

    upstream_port: int
    port: int = 0
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    client_id: str = "lastmile-test"
    client_secret: str = field(default_factory=lambda: secrets.token_hex(16))
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    _issued: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closing: threading.Event = field(default_factory=threading.Event)

    @property
    def uri(self) -> str:
        """The catalog's URI."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def properties(self) -> dict[str, str]:
        """PyIceberg's properties for a catalog with the token."""
        return {"type": "rest", "uri": self.uri, "token": self.token}

    @property
    def oauth_properties(self) -> dict[str, str]:
        """PyIceberg's properties for a catalog with the OAuth client."""
        return {
            "type": "rest",
            "uri": self.uri,
            "credential": f"{self.client_id}:{self.client_secret}",
            # The same as PyIceberg's default, of whose use it warns.
            "oauth2-server-uri": f"{self.uri}{OAUTH_PATH}",
        }

    def fail(self, fault: Fault, times: int = 1) -> None:
        """Apply a fault to the next requests that it fits."""
        with self._lock:
            self.faults += [fault] * times

    def revoke(self) -> None:
        """Forget all tokens that OAuth clients got."""
        with self._lock:
            self._issued.clear()

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve while the context lasts."""
        with ThreadingHTTPServer(("127.0.0.1", 0), self._handler()) as server:
            server.daemon_threads = True  # a client may keep its connection
            self.port = server.server_port
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield
            finally:
                self._closing.set()
                server.shutdown()
                thread.join()

    def _take_fault(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.requests.append((method, path))
            for place, fault in enumerate(self.faults):
                if fault.method == method and re.fullmatch(fault.path, path):
                    return self.faults.pop(place)
        return None

    def _is_allowed(self, path: str, authorization: str | None, body: bytes) -> bool:
        if path == OAUTH_PATH:
            form = parse_qs(body.decode())
            asked = [form.get(name) for name in ("client_id", "client_secret")]
            return asked == [[self.client_id], [self.client_secret]]
        with self._lock:
            return authorization in {f"Bearer {token}" for token in {self.token, *self._issued}}

    def _ask_server(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream_port)
        try:
            connection.request(method, target, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if target == OAUTH_PATH and answer.status == http.HTTPStatus.OK:
            with self._lock:
                self._issued.add(json.loads(content)["access_token"])
        return answer.status, dict(answer.getheaders()), content

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                path = self.path.partition("?")[0]
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                fault = proxy._take_fault(self.command, path)
                if fault and fault.delay_seconds:
                    proxy._closing.wait(fault.delay_seconds)
                if not proxy._is_allowed(path, self.headers["Authorization"], body):
                    return self.answer_error(401)
                headers = {
                    key: value
                    for key, value in self.headers.items()
                    if key.lower() not in NOT_FORWARDED
                }
                own_status = fault.status if fault else None
                if fault is None or fault.is_forwarded or own_status is None:
                    answer = proxy._ask_server(self.command, self.path, headers, body)
                    if own_status is None:
                        return self.answer(*answer)
                if own_status:
                    return self.answer_error(own_status)
                self.close_connection = True  # without an answer

            do_DELETE = do_GET = do_HEAD = do_POST = handle_one

            def answer_error(self, status: int) -> None:
                error = {
                    "message": f"the test wants {status}",
                    "type": ERROR_TYPES.get(status, "ServiceFailureException"),
                    "code": status,
                }
                content = json.dumps({"error": error}).encode()
                self.answer(status, {"Content-Type": "application/json"}, content)

            def answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
                self.send_response(status)
                for key, value in headers.items():
                    if key.lower() not in NOT_FORWARDED:
                        self.send_header(key, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def log_message(self, *_: object) -> None: ...

        return Handler


def expire_by_java(jars: Path, port: int, table: str) -> None:
    """Expire a table's snapshots by upstream's library, and delete the files of those alone.

    Args:
        port: the server's.
        table: its name, with the namespace.
    """
    command = _build_command(jars, "ExpireSnapshots", f"http://127.0.0.1:{port}", table)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _build_command(jars: Path, program: str, *arguments: str) -> list[str]:
    source = str(SOURCES / f"{program}.java")
    return ["java", *JAVA_OPTIONS, "-cp", f"{jars}/*", source, *arguments]


@contextmanager
def running_rest_server(jars: Path, folder: Path) -> Iterator[int]:
    """Run the server over a folder; yield its port, which is a loopback port, once it answers."""
    (folder / "warehouse").mkdir()
    [port] = free_ports(1)
    log = folder / "server.log"
    command = _build_command(jars, "IcebergRestServer", str(folder), str(port))

    def is_ready() -> bool:
        return b"Started Server@" in log.read_bytes()

    with running_server(command, log, is_ready, start_seconds=START_SECONDS):
        yield port
