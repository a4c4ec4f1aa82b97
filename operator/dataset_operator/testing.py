"""A stand-in for a Ray head, for tests on clusters whose pods run nothing.

A real HTTP server on loopback with what the operator uses of Ray: the Jobs API and its token. A
contract suite holds it equal to a real `ray start --head`. It can be slow, lose answers, crash and
forget, which a real one does too rarely to be tested with.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

_ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})


@dataclass(slots=True)
class StandInRay:
    """A head's Jobs API; use it as an async context.

    Attributes:
        token: what requests must carry.
        delay_seconds: every answer comes so late.
        answers_lost: so many of the next requests are carried out and their answers lost.
        starts: whether submitted jobs run at once; else they stay PENDING.
    """

    token: str
    delay_seconds: float = 0.0
    answers_lost: int = 0
    starts: bool = True
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    url: str = ""
    _runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._guard])
        app.router.add_post("/api/jobs/", self._submit)
        app.router.add_get("/api/jobs/{id}", self._get)
        app.router.add_post("/api/jobs/{id}/stop", self._stop)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def end(self, submission_id: str, status: str, **more: Any) -> None:
        """End a job: SUCCEEDED, FAILED or STOPPED, with message and driver_exit_code."""
        self.jobs[submission_id] |= {"status": status, **more}

    def crash(self) -> None:
        """Forget every job, as a head does that was replaced."""
        self.jobs.clear()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        given = {request.headers.get(name) for name in ("Authorization", "X-Ray-Authorization")}
        if f"Bearer {self.token}" not in given:
            return web.Response(status=401, text="Unauthorized: Missing or invalid token")
        await asyncio.sleep(self.delay_seconds)
        response: web.StreamResponse = await handler(request)
        if self.answers_lost > 0:
            self.answers_lost -= 1
            assert request.transport is not None
            request.transport.abort()
        return response

    async def _submit(self, request: web.Request) -> web.Response:
        body = await request.json()
        name = body["submission_id"]
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
        return web.json_response({"job_id": name, "submission_id": name})

    async def _get(self, request: web.Request) -> web.Response:
        job = self.jobs.get(request.match_info["id"])
        if job is None:
            text = f"Job {request.match_info['id']} does not exist"
            return web.Response(status=404, text=text)
        return web.json_response(job)

    async def _stop(self, request: web.Request) -> web.Response:
        job = self.jobs.get(request.match_info["id"])
        if job is None:
            return web.Response(status=404, text="it does not exist")
        stopped = job["status"] not in _ENDED
        if stopped:
            job |= {"status": "STOPPED", "message": "Job was intentionally stopped."}
        return web.json_response({"stopped": stopped})
