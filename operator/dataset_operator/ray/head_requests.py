"""Sends requests to Ray heads: outside the pass's slot, with a deadline, and not too often.

A head runs a tenant's code, and may accept connections without ever answering. So a reconcile pass
gives its slot and its place back while it waits for one (`places.outside`). A failed request begins
a pause, in which passes get the same failure again without a request. The pause grows with the
duration of the failed request: a refused connection costs almost nothing, so the next pass may
retry it.

    kind of request    each has its own pause: a head that hangs on metrics may still know its jobs
    stop               never pauses: a deleted or suspended run must end even if its head is silent
    forget             ends all pauses of a cluster, since an event shows that its head has changed

`serve` wraps this around the `Connect` that `endpoints` builds.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from dataset_operator.errors import RayRefused, RayUnreachable
from dataset_operator.names import Owner
from dataset_operator.observed import CatalogTables, Job, Progress, WrittenTable
from dataset_operator.plan.outcome import KeepLog, Submit
from dataset_operator.ray.endpoints import Connect
from dataset_operator.ray.jobs import RayJobs
from dataset_operator.ray.nodes import RayNode
from dataset_operator.ray.transport import REQUEST_SECONDS
from dataset_operator.scheduling.places import outside

# A submission is two requests.
DEADLINE_SECONDS = 2.5 * REQUEST_SECONDS
# The first pause lasts as long as the failed request; it doubles this often, up to the maximum.
MAX_DOUBLINGS = 3
MAX_PAUSE_SECONDS = 45.0
# After this long without a failure, the head answers or its cluster is gone.
_FORGET_SECONDS = 600.0
_NO_ANSWER = "no answer in time"

Key = tuple[str, str]  # namespace, RayCluster
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class _Failure:
    """A kind of request that failed, perhaps several times in a row.

    Attributes:
        number: of failures in a row.
        at: the time of the last failure.
        until: the end of the pause.
    """

    why: str
    number: int
    at: float
    until: float


@dataclass(slots=True)
class Heads:
    """A `Connect` whose requests pause after failures; one for the whole process.

    Attributes:
        clock: seconds, monotonic.
        draw: returns a random number from 0 to 1, so that pauses that begin together end apart.
    """

    inner: Connect
    clock: Callable[[], float] = time.monotonic
    draw: Callable[[], float] = random.random
    deadline_seconds: float = DEADLINE_SECONDS
    _failures: dict[tuple[Key, str], _Failure] = field(default_factory=dict)

    def connect(
        self, owner: Owner, token: str, service: str | None = None, address: str = ""
    ) -> RayJobs:
        """See Connect."""
        key = (owner.namespace, owner.ray_cluster)
        return _PausingJobs(self, key, self.inner(owner, token, service, address))

    def forget(self, namespace: str, ray_cluster: str) -> None:
        """End the pauses of a cluster, whose head may answer now."""
        for each in [each for each in self._failures if each[0] == (namespace, ray_cluster)]:
            del self._failures[each]

    async def ask(
        self,
        key: Key,
        kind: str,
        question: Callable[[], Awaitable[_Answer]],
        *,
        pauses: bool = True,
    ) -> _Answer:
        """Send a request unless its kind is paused. Raises RayUnreachable, RayRefused.

        Args:
            kind: of the request; each kind has its own pause.
            question: sends the request.
            pauses: whether a failure begins a pause.
        """
        failure = self._failures.get((key, kind))
        if failure is not None and self.clock() < failure.until:
            raise RayUnreachable(failure.why)
        async with outside():
            started = self.clock()
            try:
                async with asyncio.timeout(self.deadline_seconds):
                    answer = await question()
            except RayRefused:
                self._failures.pop((key, kind), None)
                raise
            except (RayUnreachable, TimeoutError, asyncio.CancelledError) as error:
                why = str(error) if isinstance(error, RayUnreachable) else _NO_ANSWER
                if pauses:
                    asked = getattr(error, "retry_after_seconds", 0.0)
                    self._note(key, kind, why, started, asked)
                if isinstance(error, TimeoutError):
                    raise RayUnreachable(why) from error
                raise
        self._failures.pop((key, kind), None)
        return answer

    def _note(self, key: Key, kind: str, why: str, started: float, asked: float) -> None:
        """Begin a pause after a request that failed or was cancelled.

        Args:
            asked: Retry-After of a busy head, in seconds, bounded by the transport.
        """
        now, before = self.clock(), self._failures.get((key, kind))
        number = before.number + 1 if before else 1
        pause = min(MAX_PAUSE_SECONDS, (now - started) * 2.0 ** min(number - 1, MAX_DOUBLINGS))
        until = now + max(pause * (1.0 + self.draw()) / 2.0, asked)
        self._failures[key, kind] = _Failure(why=why, number=number, at=now, until=until)
        gone = [each for each, old in self._failures.items() if old.at <= now - _FORGET_SECONDS]
        for each in gone:
            del self._failures[each]


@dataclass(frozen=True, slots=True)
class _PausingJobs:
    """The `RayJobs` of one cluster, whose requests pause after failures."""

    heads: Heads
    key: Key
    jobs: RayJobs

    async def get(self, submission_id: str) -> Job | None:
        """See RayJobs."""
        return await self.heads.ask(self.key, "get", lambda: self.jobs.get(submission_id))

    async def submit(self, submit: Submit) -> None:
        """See RayJobs."""
        await self.heads.ask(self.key, "submit", lambda: self.jobs.submit(submit))

    async def stop(self, submission_id: str) -> None:
        """See RayJobs."""
        await self.heads.ask(self.key, "stop", lambda: self.jobs.stop(submission_id), pauses=False)
        self.heads.forget(*self.key)  # the head answers: the next pass asks how the job ended

    async def logs(self, submission_id: str) -> str | None:
        """See RayJobs."""
        return await self.heads.ask(self.key, "logs", lambda: self.jobs.logs(submission_id))

    async def tables(self, submission_id: str) -> tuple[WrittenTable | None, CatalogTables]:
        """See RayJobs."""
        return await self.heads.ask(self.key, "logs", lambda: self.jobs.tables(submission_id))

    async def progress(self) -> Progress | None:
        """See RayJobs."""
        return await self.heads.ask(self.key, "progress", self.jobs.progress)

    async def nodes(self) -> list[RayNode]:
        """See RayJobs."""
        return await self.heads.ask(self.key, "nodes", self.jobs.nodes)

    async def drain(
        self, submission_id: str, node_ids: Sequence[str], *, deadline_seconds: int, why: str
    ) -> None:
        """See RayJobs."""
        await self.heads.ask(
            self.key,
            "drain",
            lambda: self.jobs.drain(
                submission_id, node_ids, deadline_seconds=deadline_seconds, why=why
            ),
        )

    async def keep_log(self, log: KeepLog) -> None:
        """See RayJobs."""
        await self.heads.ask(self.key, "keep_log", lambda: self.jobs.keep_log(log))
