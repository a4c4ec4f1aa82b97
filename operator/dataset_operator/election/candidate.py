"""Takes the lease and keeps it: sends the requests that the elector decides on.

`process` works inside `leading`. A defect that ends the election ends the process, as losing the
lease does.

The election has a thread and an event loop of its own, so that work on the main loop, such as
parsing an answer of a megabyte, delays no renewal. A process whose main loop hangs must not lead
for ever, so the lease is renewed only while the main loop answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import uuid
from asyncio import FIRST_COMPLETED, create_task
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NoReturn, Protocol

from dataset_operator.documents import Document
from dataset_operator.election.elector import Elector, Proposal
from dataset_operator.election.guard import leave, now
from dataset_operator.election.lease import LEASE, build_document, parse_lease
from dataset_operator.errors import KubeConflict, KubeRefused, OperatorError

# Standby processes delay each try by up to this share, so that they do not all try at once
# (client-go, JitterFactor).
_JITTER = 1.2
# An election that has sent no request for this many lease durations is stuck.
_STUCK_DURATIONS = 4
_LOG = logging.getLogger(__name__)


def build_identity() -> str:
    """Build a unique identity of this process, as client-go does: the pod's name and a UUID."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


class Leases(Protocol):
    """The requests of an election; `KubeClient` makes them."""

    async def get(self, kind: str, namespace: str, name: str) -> Document | None:
        """Return the lease; None if it does not exist."""

    async def create_new(self, document: Document) -> Document:
        """Create the lease, and return it as stored. Raises KubeConflict if it exists."""

    async def replace(self, document: Document) -> Document:
        """Replace the version that was read, and return it as stored. Raises KubeConflict."""


@dataclass(slots=True, kw_only=True)
class Candidate:
    """A process that takes part in the election of a leader.

    Attributes:
        connect: makes a client that only the election uses, so that no guard and no other request
            delays it. It is entered in the election's thread.
        clock: seconds; goes on while the machine is suspended.
        leave: ends the process, for a reason.
    """

    connect: Callable[[], AbstractAsyncContextManager[Leases]]
    elector: Elector
    clock: Callable[[], float] = now
    leave: Callable[[str], NoReturn] = leave
    _kube: Leases = field(init=False)
    _tried_at: float = field(init=False)
    _answered_at: float = field(init=False)  # when the main loop last answered
    _holder: str = field(default="", init=False)  # as last logged
    _is_failing: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._tried_at = self._answered_at = self.clock()

    @property
    def is_leading(self) -> bool:
        """True if this process may act; see `telemetry.leadership`."""
        return self.elector.may_act(self.clock())

    def check(self) -> None:
        """End the process unless it certainly leads."""
        if not self.elector.may_act(self.clock()):
            self.leave(f"the lease {self.elector.terms}: {self.elector.lost or 'it was not taken'}")

    def find_staleness(self) -> str | None:
        """Return why the election counts as stuck; None if it does not."""
        limit = _STUCK_DURATIONS * self.elector.terms.duration_seconds
        seconds = self.clock() - self._tried_at
        if seconds <= limit:
            return None
        return f"the election has sent no request for {seconds:.0f} s (limit {limit} s)"

    @contextlib.asynccontextmanager
    async def leading(self, stop: asyncio.Event) -> AsyncIterator[bool]:
        """Wait for the lease and keep it; yield false if the process must stop before it leads.

        On exit the lease is released, so that another process takes it at once. All work must be
        done by then.

        Args:
            stop: ends the wait for the lease. It is set when the election ends, as by a defect.

        Raises:
            KubeRefused: the process has no right to the lease.
        """
        main, own = asyncio.get_running_loop(), asyncio.new_event_loop()
        give_up, end = asyncio.Event(), asyncio.Event()  # of the election's loop
        led: asyncio.Future[bool] = main.create_future()

        def tell(leads: bool) -> None:
            main.call_soon_threadsafe(led.set_result, leads)

        with ThreadPoolExecutor(1, "lease") as pool:
            work = self._stand(give_up, end, tell)
            standing = main.run_in_executor(pool, own.run_until_complete, work)
            standing.add_done_callback(lambda _: stop.set())
            beating, stopping = create_task(self._beat()), create_task(stop.wait())
            outcomes: set[asyncio.Future[Any]] = {led, standing}
            try:
                await asyncio.wait({*outcomes, stopping}, return_when=FIRST_COMPLETED)
                if not standing.done():
                    own.call_soon_threadsafe(give_up.set)  # harmless once it leads
                await asyncio.wait(outcomes, return_when=FIRST_COMPLETED)
                if not led.done():
                    standing.result()
                yield led.result()
            finally:
                beating.cancel()
                stopping.cancel()
                if not standing.done():
                    own.call_soon_threadsafe(give_up.set)
                    own.call_soon_threadsafe(end.set)
                    await asyncio.wait({standing})
                own.close()
        standing.result()

    async def _stand(
        self, give_up: asyncio.Event, end: asyncio.Event, tell: Callable[[bool], object]
    ) -> None:
        """Take the lease, report the outcome, and keep the lease to the end; in its own thread."""
        try:
            async with self.connect() as self._kube:
                leads = await self._acquire(give_up)
                tell(leads)
                if leads:
                    await self._keep_until(end)
                    await self._release()
        finally:
            await asyncio.get_running_loop().shutdown_default_executor()

    async def _keep_until(self, end: asyncio.Event) -> None:
        keeping, ending = create_task(self._keep()), create_task(end.wait())
        await asyncio.wait({keeping, ending}, return_when=FIRST_COMPLETED)
        ending.cancel()
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping

    async def _beat(self) -> NoReturn:
        """Record again and again that the main loop answers."""
        while True:
            self._answered_at = self.clock()
            await asyncio.sleep(self._silence_seconds / 4)

    @property
    def _silence_seconds(self) -> float:
        """The longest silence of the main loop during which the lease is still renewed."""
        return self.elector.terms.deadline_seconds / 2

    async def _acquire(self, stop: asyncio.Event) -> bool:
        terms = self.elector.terms
        _LOG.info("waiting for the lease %s as %s", terms, self.elector.identity)
        while not stop.is_set():
            await self._try()
            if self.elector.is_leading:
                _LOG.info("leading with the lease %s", terms)
                return True
            seconds = terms.retry_seconds * (1 + _JITTER * random.random())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await stop.wait()
        return False

    async def _keep(self) -> NoReturn:
        """Renew the lease until no renewal succeeds in time, or the main loop hangs."""
        while True:
            await asyncio.sleep(self.elector.terms.retry_seconds)
            self.check()
            if (silence := self.clock() - self._answered_at) > self._silence_seconds:
                _LOG.warning("lease not renewed: the event loop has hung for %.1f s", silence)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.elector.remaining_seconds(self.clock())):
                    await self._try()
            self.check()

    async def _try(self) -> None:
        """Take or renew the lease if it is time to; the caller retries a failure."""
        try:
            if not self.elector.is_leading:
                await self._look()
            proposal = self.elector.propose(self.clock(), datetime.now(UTC))
            if proposal is not None:
                await self._write(proposal)
            self._is_failing = False
        except KubeConflict:  # another process was faster or edited it, or an answer was lost
            await self._look_again()
        except OperatorError as error:
            if isinstance(error, KubeRefused) and not self.elector.is_leading:
                raise  # without the right to the lease no process would ever act
            level = logging.DEBUG if self._is_failing else logging.WARNING  # once, not every 2 s
            _LOG.log(level, "cannot read or write the lease %s: %s", self.elector.terms, error)
            self._is_failing = True
        self._tried_at = self.clock()

    async def _look(self) -> None:
        terms = self.elector.terms
        document = await self._kube.get(LEASE, terms.namespace, terms.name)
        self.elector.see(parse_lease(document) if document else None, self.clock())
        holder = document["spec"].get("holderIdentity") or "" if document else ""
        if holder not in ("", self._holder, self.elector.identity):
            _LOG.info("standing by: %s holds the lease %s", holder, terms)
        self._holder = holder

    async def _look_again(self) -> None:
        try:
            await self._look()
        except OperatorError as error:
            _LOG.warning("cannot read the lease %s: %s", self.elector.terms, error)

    async def _write(self, proposal: Proposal) -> None:
        document = build_document(proposal.lease)
        is_new = "resourceVersion" not in proposal.lease.metadata
        stored = await (self._kube.create_new(document) if is_new else self._kube.replace(document))
        self.elector.accept(proposal, parse_lease(stored), self.clock())

    async def _release(self) -> None:
        try:
            try:
                await self._let_go()
            except KubeConflict:  # the API server had stored a renewal that was cut off here
                await self._look()
                await self._let_go()
        except OperatorError as error:
            _LOG.warning("cannot release the lease %s: %s", self.elector.terms, error)

    async def _let_go(self) -> None:
        released = self.elector.release(self.clock(), datetime.now(UTC))
        if released is not None:
            await self._kube.replace(build_document(released))
            _LOG.info("released the lease %s", self.elector.terms)
