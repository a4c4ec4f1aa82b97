"""A proxy before the API server that answers badly now and then, as API servers under load do.

Most requests pass. Of the others some are refused before they are carried out (409, 429, 500), some
are carried out and their answer is lost or comes late, and watches end in the middle.
"""

import asyncio
import contextlib
import json
import ssl
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Self

import aiohttp
from aiohttp import web
from kubernetes.aio import config
from kubernetes.aio.client import Configuration

LOOPBACK = "127.0.0.1"
_REFUSED = {
    409: "Conflict",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_LATE_SECONDS = 2.0
_WATCH_SECONDS = 5.0  # a faulty watch lasts as long at most
# Of a connection, not of what it carries (RFC 9110, 7.6.1), and what aiohttp sets by itself.
_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding", "host"}
)


@dataclass(slots=True)
class FaultyProxy:
    """Use it as an async context; `write_kubeconfig` tells a client the way.

    Attributes:
        headers: of every request that is passed on.
        share: of the requests that go wrong.
        faults: how many did, by what was done.
    """

    kubeconfig: Path
    headers: dict[str, str]
    random: Random
    share: float
    faults: Counter[str] = field(default_factory=Counter)
    passed: int = 0
    url: str = ""
    _session: aiohttp.ClientSession | None = None
    _runner: web.AppRunner | None = None
    _host: str = ""

    async def __aenter__(self) -> Self:
        configuration = Configuration()
        await config.load_kube_config(str(self.kubeconfig), client_configuration=configuration)
        self._host = configuration.host
        trusted = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        trusted.load_cert_chain(configuration.cert_file, configuration.key_file)
        connector = aiohttp.TCPConnector(ssl=trusted, limit=0)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=True)
        app = web.Application(client_max_size=100 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, LOOPBACK, 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        assert self._session is not None
        await self._runner.cleanup()
        await self._session.close()

    def write_kubeconfig(self, path: Path) -> Path:
        """A kubeconfig that leads here and holds no credentials."""
        name = "faulty"
        document: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {"server": self.url}}],
            "users": [{"name": name, "user": {}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }
        path.write_text(json.dumps(document))
        return path

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        fault = self._choose(request)
        if fault.isdigit():
            return _refuse(int(fault))
        if fault == "late":
            await asyncio.sleep(self.random.random() * _LATE_SECONDS)
        return await self._forward(request, fault)

    def _choose(self, request: web.Request) -> str:
        """Choose the fault of a request; "" for none."""
        self.passed += 1
        if self.random.random() >= self.share:
            return ""
        if "watch" in request.query:
            fault = self.random.choice(["500", "429", "cut"])
        elif request.method in _WRITES:
            fault = self.random.choice(["409", "429", "500", "503", "504", "late", "lost"])
        else:
            fault = self.random.choice(["429", "500", "503", "late", "lost"])
        self.faults[fault] += 1
        return fault

    async def _forward(self, request: web.Request, fault: str) -> web.StreamResponse:
        assert self._session is not None
        seconds = _WATCH_SECONDS * self.random.random() if fault == "cut" else None
        kept = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP}
        async with self._session.request(
            request.method,
            self._host + request.raw_path,
            headers={**kept, **self.headers},
            data=await request.read() or None,
            timeout=aiohttp.ClientTimeout(total=None),
        ) as answer:
            if fault == "lost":
                await answer.read()
                return _hang_up(request)
            headers = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP_BY_HOP}
            response = web.StreamResponse(status=answer.status, headers=headers)
            with contextlib.suppress(ConnectionResetError):  # who asked has gone
                await response.prepare(request)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        async for chunk in answer.content.iter_any():
                            await response.write(chunk)
                    await response.write_eof()
                    return response
            return _hang_up(request, response)


def _hang_up(
    request: web.Request, response: web.StreamResponse | None = None
) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return response or web.Response()


def _refuse(code: int) -> web.Response:
    """In the API server's own form (metav1.Status)."""
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": f"the proxy of a test refuses this: {_REFUSED[code]}",
        "reason": _REFUSED[code],
        "code": code,
    }
    headers = {"Retry-After": "1"} if code == 429 else {}
    return web.json_response(status, status=code, headers=headers)
