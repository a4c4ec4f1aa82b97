"""Ray's Jobs API as the operator uses it: submit once, ask, stop; drain nodes by a job.

Paths, states and fields are Ray 2.60's (dashboard/modules/job). Whatever is not an answer to what
was asked, a head that lies included, is RayUnreachable: a pass goes on without it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from dataset_operator.api import DASHBOARD_PORT
from dataset_operator.errors import RayRefused, RayUnreachable
from dataset_operator.observed import CatalogTables, Job, JobStatus, Progress, WrittenTable
from dataset_operator.plan.outcome import KeepLog, Submit
from dataset_operator.ray.decision_log import build_log_job
from dataset_operator.ray.nodes import (
    MAX_NODES_BYTES,
    NODES_PATH,
    NodesAnswer,
    RayNode,
    build_drain_job,
)
from dataset_operator.ray.runtime_metrics import read_progress
from dataset_operator.ray.submission import build_job, build_package
from dataset_operator.ray.table_reports import parse_lines
from dataset_operator.ray.transport import MAX_ANSWER_BYTES, Answer, Endpoint, Request

# What Ray, the kernel and torch write when memory was not enough.
_OUT_OF_MEMORY = re.compile(r"OutOfMemory|out of memory|\boom[- _]?kill", re.IGNORECASE)
# SIGKILL, which in a pod is the kernel's answer to a full memory limit; as the shell says it too.
_KILLED = frozenset({-9, 137})
# Ray gives the whole log at once.
MAX_LOG_BYTES = 128 << 20
# The end of a driver's log that is searched for its last lines, which are about tables.
TABLE_TAIL_BYTES = 64 << 10
_UNKNOWN = "does not exist"
_KNOWN = "already exists"
# Of a submission: it would be refused again. Ray says 500 for what it fails at itself.
_REFUSALS = frozenset({400, 413, 422})
_MAX_CAUSE_CHARS = 300


class RayJobs(Protocol):
    """The Ray of one cluster. Every call raises RayUnreachable if nothing answers."""

    async def get(self, submission_id: str) -> Job | None:
        """A job, None if Ray does not know it."""

    async def submit(self, submit: Submit) -> None:
        """Submit it, unless Ray knows it already."""

    async def stop(self, submission_id: str) -> None:
        """Ask a job to end; one that Ray does not know has."""

    async def logs(self, submission_id: str) -> str | None:
        """All that its driver has written so far; None if Ray does not know the job."""

    async def tables(self, submission_id: str) -> tuple[WrittenTable | None, CatalogTables]:
        """Return the tables that a driver has written and read, by the end of its log."""

    async def progress(self) -> Progress | None:
        """Progress of the run; None if the driver does not report it."""

    async def nodes(self) -> list[RayNode]:
        """The cluster's nodes, those that are gone too."""

    async def drain(
        self, submission_id: str, node_ids: Sequence[str], *, deadline_seconds: int, why: str
    ) -> None:
        """Have nodes take no new work and go once theirs is done, by a job of this id.

        It is done when `nodes` says that they are not alive, and refused if the job has failed.
        """

    async def keep_log(self, log: KeepLog) -> None:
        """Have decisions written into a run's artifacts, unless Ray knows the job already."""


class _JobAnswer(BaseModel):
    """The fields that are read of Ray's JobDetails."""

    model_config = ConfigDict(extra="ignore", strict=True)

    status: JobStatus
    message: str | None = None
    driver_exit_code: int | None = None


class _LogAnswer(BaseModel):
    logs: str


_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRayJobs:
    """`RayJobs` over HTTP.

    Attributes:
        storage_root: where URIs without a scheme start; None: as the spec says.
    """

    endpoint: Endpoint
    token: str
    storage_root: str | None = None

    async def get(self, submission_id: str) -> Job | None:
        """See RayJobs."""
        answer = await self._ask("GET", f"/api/jobs/{submission_id}")
        if _is_unknown(answer):
            return None
        return parse_job(_expect_ok(answer, f"job {submission_id}"))

    async def submit(self, submit: Submit) -> None:
        """See RayJobs."""
        package, content = build_package(submit)
        uploaded = await self._ask("PUT", f"/api/packages/gcs/{package}", content)
        _expect_ok(uploaded, f"the package of job {submit.submission_id}")
        await self._post(build_job(submit, package, submit.storage_root or self.storage_root))

    async def _post(self, job: Mapping[str, Any]) -> None:
        """Submit a job, unless Ray knows it already. Raises RayRefused."""
        answer = await self._ask("POST", "/api/jobs/", job)
        if answer.status >= 400 and _KNOWN in answer.content.decode(errors="replace"):
            return
        if answer.status in _REFUSALS:
            raise RayRefused(f"Ray refuses the job: {_last_line(answer)}")
        _expect_ok(answer, f"job {job['submission_id']}")

    async def stop(self, submission_id: str) -> None:
        """See RayJobs."""
        answer = await self._ask("POST", f"/api/jobs/{submission_id}/stop", {})
        if not _is_unknown(answer):
            _expect_ok(answer, f"stopping job {submission_id}")

    async def logs(self, submission_id: str) -> str | None:
        """See RayJobs."""
        path = f"/api/jobs/{submission_id}/logs"
        answer = await self._ask("GET", path, max_bytes=MAX_LOG_BYTES)
        if _is_unknown(answer):
            return None
        content = _expect_ok(answer, f"the log of job {submission_id}")
        return _parse(_LogAnswer, content).logs

    async def tables(self, submission_id: str) -> tuple[WrittenTable | None, CatalogTables]:
        """See RayJobs."""
        path, most = f"/api/jobs/{submission_id}/logs", MAX_LOG_BYTES
        answer = await self._ask("GET", path, max_bytes=most, tail_bytes=TABLE_TAIL_BYTES)
        if _is_unknown(answer):
            return None, CatalogTables()
        return parse_lines(_expect_ok(answer, f"the log of job {submission_id}"))

    async def progress(self) -> Progress | None:
        """See RayJobs."""
        return await read_progress(self.endpoint)

    async def nodes(self) -> list[RayNode]:
        """See RayJobs."""
        answer = await self._ask("GET", NODES_PATH, max_bytes=MAX_NODES_BYTES)
        return _parse(NodesAnswer, _expect_ok(answer, "the nodes")).to_nodes()

    async def drain(
        self, submission_id: str, node_ids: Sequence[str], *, deadline_seconds: int, why: str
    ) -> None:
        """See RayJobs."""
        await self._post(
            build_drain_job(submission_id, node_ids, deadline_seconds=deadline_seconds, why=why)
        )

    async def keep_log(self, log: KeepLog) -> None:
        """See RayJobs."""
        await self._post(build_log_job(log, self.storage_root))

    async def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        max_bytes: int = MAX_ANSWER_BYTES,
        tail_bytes: int = 0,
    ) -> Answer:
        request = Request(
            method=method,
            port=DASHBOARD_PORT,
            path=path,
            body=body,
            token=self.token,
            max_bytes=max_bytes,
            tail_bytes=tail_bytes,
        )
        return await self.endpoint.send(request)


def parse_job(content: bytes) -> Job:
    """A job as Ray tells of it. Raises RayUnreachable for anything else."""
    answer = _parse(_JobAnswer, content)
    message = answer.message or ""
    is_killed = answer.driver_exit_code in _KILLED
    return Job(
        status=answer.status,
        message=message,
        exit_code=answer.driver_exit_code,
        out_of_memory=is_killed or bool(_OUT_OF_MEMORY.search(message)),
    )


def _parse(model: type[_Model], content: bytes) -> _Model:
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise RayUnreachable(f"not an answer of Ray's: {place}: {first['msg']}") from error


def _is_unknown(answer: Answer) -> bool:
    """Return whether an answer is Ray's own 404 for a job, not a server's for a path."""
    return answer.status == 404 and _UNKNOWN in answer.content.decode(errors="replace")


def _last_line(answer: Answer) -> str:
    """Return the line of Ray's traceback that names the error."""
    lines = answer.content.decode(errors="replace").split("\n")
    return next((line[:_MAX_CAUSE_CHARS] for line in reversed(lines) if line.strip()), "")


def _expect_ok(answer: Answer, what: str) -> bytes:
    if answer.status != 200:
        raise RayUnreachable(f"{what}: HTTP {answer.status}: {answer.text}")
    return answer.content
