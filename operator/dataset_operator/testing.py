"""A stand-in for a Ray head, for tests on clusters whose pods run nothing.

It is a real HTTP server on loopback that serves the part of Ray that the operator uses: the Jobs
API with its packages and its token, nodes and their drain, and the driver's metrics. Contract tests
run against it and against a real `ray start --head`. It can be slow, lose answers, crash, forget
jobs and lie, as a real head does too rarely for tests.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import aiohttp
from aiohttp import web

from dataset_operator.api import DASHBOARD_PORT, RAY_METRICS_PORT, RUNTIME_METRICS_PORT
from dataset_operator.names import Owner
from dataset_operator.ray.endpoints import ReachPod, send
from dataset_operator.ray.jobs import HttpRayJobs
from dataset_operator.ray.submission import EXPERIMENT_FILE
from dataset_operator.ray.transport import MAX_ANSWER_BYTES, REQUEST_SECONDS, Answer, Request

# How long the server waits for open requests when a test ends.
_SHUTDOWN_SECONDS = 0.1
_PORTS = (DASHBOARD_PORT, RUNTIME_METRICS_PORT, RAY_METRICS_PORT)
_ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of a job whose entrypoint the stand-in knows."""

    status: str
    exit_code: int | None = None
    log: str = ""

    @property
    def message(self) -> str:
        """The message that Ray gives for it."""
        if self.status == "SUCCEEDED":
            return "Job finished successfully."
        return (
            f"Job entrypoint command failed with exit code {self.exit_code}, last available logs "
            f"(truncated to 20,000 chars):\n{self.log}"
        )


_DRAINED = re.compile(r"ray drain-node --node-id (\w+)")
_NODE_ID = re.compile(r"[0-9a-f]{56}")
# Possible answers of a broken or hostile head.
LIES: dict[str, Callable[[], web.Response]] = {
    "garbage": lambda: web.Response(body=b"\x00\xff{not json"),
    "a page": lambda: web.Response(text="<html>Welcome</html>", content_type="text/html"),
    "a list": lambda: web.json_response([1, 2, 3]),
    "an unknown state": lambda: web.json_response({"status": "EXPLODED", "message": "boo"}),
    "no state": lambda: web.json_response({"message": None}),
    "numbers for words": lambda: web.json_response({"status": 7, "driver_exit_code": "one"}),
    "a deep one": lambda: web.Response(body=b"[" * MAX_ANSWER_BYTES),
    "half a character": lambda: web.Response(body=b'{"status": "FAILED", "message": "\\ud800"}'),
    "nothing": lambda: web.Response(),
    "a huge answer": lambda: web.Response(body=b"x" * (MAX_ANSWER_BYTES + 1)),
    "an error": lambda: web.Response(status=500, text="Traceback (most recent call last): …"),
    "another 404": lambda: web.Response(status=404, text="404: Not Found"),
    "a redirect": lambda: web.Response(status=302, headers={"Location": "/elsewhere"}),
    "a bad gateway": lambda: web.Response(status=502, text="Bad Gateway"),
}


@dataclass(slots=True)
class StandInRay:
    """A head; use it as an async context.

    Attributes:
        token: required in requests to the Jobs API.
        host: the address that it listens on.
        delay_seconds: delay of every answer.
        answers_lost: for this many of the next requests, do the work but lose the answer.
        lie: a key of LIES, the answer to every request for the Jobs API and the metrics.
        refuses: why submissions are refused; "": they are accepted.
        starts: True if submitted jobs run at once; else they stay PENDING.
        endings: entrypoints whose jobs end at once, and how; others run until `end`.
        metrics: the page of the driver's metrics; "": nothing serves them, as before it trains.
        node_metrics: Ray's page of every pod; "": nothing serves it.
        packages: uploaded content, by name.
        nodes: the state of each node by its id, ALIVE or DEAD; the first is the head.
    """

    token: str
    host: str = "127.0.0.1"
    delay_seconds: float = 0.0
    answers_lost: int = 0
    lie: str = ""
    refuses: str = ""
    starts: bool = True
    endings: dict[str, Ending] = field(default_factory=dict)
    metrics: str = ""
    node_metrics: str = ""
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    packages: dict[str, bytes] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    urls: dict[int, str] = field(default_factory=dict)  # by the port of a real head
    _runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._guard], client_max_size=100 << 20)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_put("/api/packages/gcs/{name}", self._upload)
        app.router.add_get("/api/v0/nodes", self._list_nodes)
        app.router.add_post("/api/jobs/", self._submit)
        app.router.add_get("/api/jobs/{id}", self._get)
        app.router.add_get("/api/jobs/{id}/logs", self._logs)
        app.router.add_post("/api/jobs/{id}/stop", self._stop)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS)
        await self._runner.setup()
        for _ in _PORTS:
            await web.TCPSite(self._runner, self.host, 0).start()
        for port, address in zip(_PORTS, self._runner.addresses, strict=True):
            self.urls[port] = f"http://{address[0]}:{address[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        """The URL of the dashboard's port."""
        return self.urls[DASHBOARD_PORT]

    def connect(self, session: aiohttp.ClientSession) -> Callable[..., HttpRayJobs]:
        """Return a `Connect` to this head for every experiment; the head takes its first token."""

        def connect(
            owner: Owner, token: str, service: str | None = None, address: str = ""
        ) -> HttpRayJobs:
            self.token = self.token or token
            return HttpRayJobs(endpoint=PortsOf(session=session, urls=self.urls), token=token)

        return connect

    def reach_pod(self, session: aiohttp.ClientSession) -> ReachPod:
        """Return a `ReachPod` to this server for every pod."""
        return lambda namespace, pod: PortsOf(session=session, urls=self.urls)

    # --- events ---------------------------------------------------------------------------------

    def end(self, submission_id: str, status: str, **more: Any) -> None:
        """End a job: SUCCEEDED, FAILED or STOPPED, with message and driver_exit_code."""
        self.jobs[submission_id] |= {"status": status, **more}

    def crash(self) -> None:
        """Forget everything, as if the head was replaced."""
        self.jobs.clear()
        self.packages.clear()

    def experiment_of(self, submission_id: str) -> dict[str, Any]:
        """Return the experiment that the driver of a job would read."""
        uri = self.jobs[submission_id]["runtime_env"]["working_dir"]
        content = io.BytesIO(self.packages[uri.removeprefix("gcs://")])
        with zipfile.ZipFile(content) as package:
            experiment: dict[str, Any] = json.loads(package.read(EXPERIMENT_FILE))
        return experiment

    # --- requests -------------------------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        given = {request.headers.get(name) for name in ("Authorization", "X-Ray-Authorization")}
        if request.path.startswith("/api/") and f"Bearer {self.token}" not in given:
            return web.Response(status=401, text="Unauthorized: Missing authentication token")
        await asyncio.sleep(self.delay_seconds)
        if self.lie:
            return LIES[self.lie]()
        response: web.StreamResponse = await handler(request)
        if self.answers_lost > 0:
            self.answers_lost -= 1
            assert request.transport is not None
            request.transport.abort()
        return response

    async def _metrics(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        port = request.transport.get_extra_info("sockname")[1]
        is_node = self.urls[RAY_METRICS_PORT].endswith(f":{port}")
        page = self.node_metrics if is_node else self.metrics
        if not page:
            request.transport.abort()
        return web.Response(text=page)

    async def _upload(self, request: web.Request) -> web.Response:
        self.packages[request.match_info["name"]] = await request.read()
        return web.Response()

    async def _submit(self, request: web.Request) -> web.Response:
        body = await request.json()
        name = body["submission_id"]
        if why := self.refuses or _find_wrong_type(body):
            return web.Response(
                status=400, text=f"Traceback (most recent call last):\n  …\n{why}\n"
            )
        if name in self.jobs:
            text = f"Job with submission_id {name} already exists. Please use a different one."
            return web.Response(status=500, text=text)
        status = "RUNNING" if self.starts else "PENDING"
        self.jobs[name] = {
            "type": "SUBMISSION",
            "submission_id": name,
            "status": status,
            "message": f"Job is {status.lower()}.",
            "entrypoint": body["entrypoint"],
            "runtime_env": body.get("runtime_env", {}),
            "driver_exit_code": None,
        }
        drained = _DRAINED.findall(body["entrypoint"])
        self.nodes |= {node: "DEAD" for node in drained if node in self.nodes}
        ending = self.endings.get(body["entrypoint"]) or _end_drain(drained) or _end_log(body)
        if ending is not None:
            code = 0 if ending.status == "SUCCEEDED" else ending.exit_code
            self.end(name, ending.status, message=ending.message, driver_exit_code=code)
        return web.json_response({"job_id": name, "submission_id": name})

    async def _list_nodes(self, request: web.Request) -> web.Response:
        nodes = [
            {"node_id": node, "node_ip": self.host, "is_head_node": index == 0, "state": state}
            for index, (node, state) in enumerate(self.nodes.items())
        ]
        return web.json_response({"result": True, "data": {"result": {"result": nodes}}})

    async def _get(self, request: web.Request) -> web.Response:
        job = self.jobs.get(request.match_info["id"])
        return _unknown(request) if job is None else web.json_response(job)

    async def _logs(self, request: web.Request) -> web.Response:
        job = self.jobs.get(request.match_info["id"])
        if job is None:
            return _unknown(request)
        ending = self.endings.get(job["entrypoint"])
        return web.json_response({"logs": ending.log if ending else ""})

    async def _stop(self, request: web.Request) -> web.Response:
        job = self.jobs.get(request.match_info["id"])
        if job is None:
            return _unknown(request)
        stopped = job["status"] not in _ENDED
        if stopped:
            job |= {"status": "STOPPED", "message": "Job was intentionally stopped."}
        return web.json_response({"stopped": stopped})


def _find_wrong_type(body: dict[str, Any]) -> str:
    """Check the types of a submission as Ray does (JobSubmitRequest); return the error, or ""."""
    for name, kind in (("entrypoint", str), ("submission_id", str), ("runtime_env", dict)):
        if not isinstance(body[name], kind):
            return f"TypeError: {name} must be a {kind.__name__}, got {type(body[name])}"
    return ""


def _end_drain(node_ids: list[str]) -> Ending | None:
    """Return the end of a job that drains nodes, or None; an unknown node counts as drained."""
    if not node_ids:
        return None
    if all(map(_NODE_ID.fullmatch, node_ids)):
        return Ending(status="SUCCEEDED")
    return Ending(status="FAILED", exit_code=1, log="Invalid hex ID of a Ray node")


def _end_log(body: dict[str, Any]) -> Ending | None:
    """Return the successful end of a job that stores decisions; None for another job."""
    return Ending(status="SUCCEEDED") if "keep-decisions" in body["entrypoint"] else None


def _unknown(request: web.Request) -> web.Response:
    return web.Response(status=404, text=f"Job {request.match_info['id']} does not exist")


@dataclass(frozen=True, slots=True, kw_only=True)
class PortsOf:
    """An `Endpoint` to servers on this machine, each for one port of a head."""

    session: aiohttp.ClientSession
    urls: dict[int, str]
    max_seconds: float = REQUEST_SECONDS  # no request waits longer

    async def send(self, request: Request) -> Answer:
        """See Endpoint."""
        request = replace(request, seconds=min(request.seconds, self.max_seconds))
        return await send(self.session, self.urls[request.port], request)
