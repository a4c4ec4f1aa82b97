"""Ray's Jobs API as the operator uses it: submit once, ask, stop.

Paths, states and fields are Ray 2.60's (dashboard/modules/job); a token goes in the header that
the API server's proxy leaves alone too.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp

from dataset_operator.errors import RayUnreachable
from dataset_operator.observed import Job
from dataset_operator.plan.decision import Submit

REQUEST_SECONDS = 10.0
_TOKEN_HEADER = "X-Ray-Authorization"
EXPERIMENT_ENV = "LASTMILE_EXPERIMENT"
# What Ray writes when the node's memory monitor or the kernel killed a driver or its workers.
_OUT_OF_MEMORY_MARKS = ("OutOfMemory", "out of memory", "exit code -9", "oom")


class RayJobs(Protocol):
    """One cluster's jobs. Every call raises RayUnreachable if nothing answers."""

    async def get(self, submission_id: str) -> Job | None:
        """A job, None if Ray does not know it."""

    async def submit(self, submit: Submit) -> None:
        """Submit it, unless Ray knows it already."""

    async def stop(self, submission_id: str) -> None:
        """Ask a job to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRayJobs:
    """`RayJobs` over HTTP.

    Attributes:
        url: of the head's dashboard, without a slash at its end.
        storage_root: where URIs without a scheme start; None: as the spec says.
    """

    session: aiohttp.ClientSession
    url: str
    token: str
    storage_root: str | None = None

    async def get(self, submission_id: str) -> Job | None:
        """See RayJobs."""
        status, answer = await self._request("GET", f"/api/jobs/{submission_id}")
        return None if status == 404 else parse_job(answer)

    async def submit(self, submit: Submit) -> None:
        """See RayJobs."""
        status, answer = await self._request("POST", "/api/jobs/", self.build_request(submit))
        if status >= 400 and "already exists" not in str(answer):
            raise RayUnreachable(f"job {submit.submission_id} was refused: {answer}")

    async def stop(self, submission_id: str) -> None:
        """See RayJobs."""
        await self._request("POST", f"/api/jobs/{submission_id}/stop", {})

    def build_request(self, submit: Submit) -> dict[str, Any]:
        """The body of a submission: the driver reads its experiment from its environment."""
        command = ["lastmile", "run", "-f", "-", "--address", "auto"]
        command += ["--storage-root", self.storage_root] if self.storage_root else []
        command += ["--resume"] if submit.resume else []
        entrypoint = f"printenv {EXPERIMENT_ENV} | {shlex.join(command)}"
        return {
            "submission_id": submit.submission_id,
            "entrypoint": f"set -o pipefail; {entrypoint}",
            "runtime_env": {"env_vars": {EXPERIMENT_ENV: json.dumps(submit.experiment)}},
        }

    async def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> tuple[int, Any]:
        headers = {_TOKEN_HEADER: f"Bearer {self.token}"}
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        try:
            async with self.session.request(
                method, self.url + path, json=body, headers=headers, timeout=timeout
            ) as response:
                text = await response.text()
                if response.status in (401, 403) or response.status in (502, 503, 504):
                    raise RayUnreachable(f"{path}: HTTP {response.status}")
                return response.status, _parse(text)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise RayUnreachable(f"{path}: {error or type(error).__name__}") from error


def parse_job(answer: Mapping[str, Any]) -> Job:
    """A job as Ray tells of it."""
    message = answer.get("message") or ""
    return Job(
        status=answer["status"],
        message=message,
        exit_code=answer.get("driver_exit_code"),
        out_of_memory=any(mark in message for mark in _OUT_OF_MEMORY_MARKS),
    )


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
