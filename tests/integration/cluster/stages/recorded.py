"""A proxy before an API server: which requests a process made; it can be cut off.

Plain HTTP from the process, so that requests can be seen; the administrator's credentials from here
on. It runs on a thread of its own, so that it goes on while the test waits.
"""

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web
from kubernetes.aio import config
from kubernetes.aio.client import Configuration

from tools.cluster.box import Box

READS = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_BODY_BYTES = 64 << 20
# Of a message between two neighbours, not of what it carries (RFC 9110, 7.6.1).
HOP_HEADERS = frozenset({"connection", "host", "keep-alive", "transfer-encoding", "content-length"})


@dataclass(slots=True)
class Recorder:
    """Recorder of the requests that came through.

    Attributes:
        requests: method and path of each, in their order.
        is_cut: whether requests are taken and never answered, as by a network that is cut.
        delay_seconds: after which a request goes on, though who asked may wait no longer.
    """

    url: str = ""
    is_cut: bool = False
    delay_seconds: float = 0.0
    requests: list[tuple[str, str]] = field(default_factory=list)

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [each for each in self.requests if each[0] not in READS]

    def kubeconfig(self, path: Path) -> Path:
        """Write one that leads here."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "recorded", "cluster": {"server": self.url}}],
            "users": [{"name": "anyone", "user": {}}],
            "contexts": [{"name": "it", "context": {"cluster": "recorded", "user": "anyone"}}],
            "current-context": "it",
        }
        path.write_text(json.dumps(document))
        return path


@contextmanager
def recording(box: Box) -> Iterator[Recorder]:
    """Have a proxy before the box's API server."""
    recorder, started = Recorder(), Future[Callable[[], object]]()

    async def serve() -> None:
        ending, loop = asyncio.Event(), asyncio.get_running_loop()
        async with _Forwarding(box, recorder):
            started.set_result(lambda: loop.call_soon_threadsafe(ending.set))
            await ending.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    end = started.result(timeout=60)
    try:
        yield recorder
    finally:
        end()
        thread.join()


class _Forwarding:
    """The proxy, as an async context."""

    def __init__(self, box: Box, recorder: Recorder) -> None:
        self._box, self._recorder = box, recorder

    async def __aenter__(self) -> None:
        found = Configuration()
        await config.load_kube_config(str(self._box.kubeconfig), client_configuration=found)
        tls = ssl.create_default_context(cafile=found.ssl_ca_cert)
        if found.cert_file:
            tls.load_cert_chain(found.cert_file, found.key_file)
        token = found.api_key.get("BearerToken")
        self._headers = {"Authorization": token} if token else {}
        self._host = found.host
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=tls),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._forward)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._recorder.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        self._recorder.requests.append((request.method, request.path))
        await asyncio.sleep(self._recorder.delay_seconds)
        while self._recorder.is_cut:
            await asyncio.sleep(0.1)
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_HEADERS}
        asked = self._session.request(
            request.method,
            self._host + request.raw_path,
            headers=headers | self._headers,
            data=await request.read() or None,  # or it would say of which type nothing is
            allow_redirects=False,
        )
        with contextlib.suppress(ConnectionResetError):  # who asked is gone
            return await self._answer(request, asked)
        return web.Response()

    async def _answer(
        self, request: web.Request, asked: AbstractAsyncContextManager[aiohttp.ClientResponse]
    ) -> web.StreamResponse:
        async with asked as answer:
            kept = {k: v for k, v in answer.headers.items() if k.lower() not in HOP_HEADERS}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():  # a watch, as it goes on
                await response.write(chunk)
            await response.write_eof()
            return response
