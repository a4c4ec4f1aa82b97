"""One pass at a time per experiment, however many events there are, edits before clocks.

An event, a child's event and the clock all only wake an experiment. A wake-up while a pass runs is
remembered and runs it once more; so a thousand events at once cost two passes at most. A pass that
fails is tried again with a growing pause, sooner if an object changes, at once after an edit; how
many run at once is bounded.

Who is woken beyond that bound waits in a queue, the earliest deadline first: the time at which it
was woken and how long that can wait (`Waker.patience`). So an edit goes ahead of what a clock woke
in the minute before, and yet nothing waits for ever, however many edits there are.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from dataset_operator.errors import KubeConflict, OperatorError
from dataset_operator.retrying import spread

Key = tuple[str, str]  # namespace, name
Reconcile = Callable[[str, str], Awaitable[float | None]]

# Passes wait for the API server most of their time; more than so many only queue up there.
MAX_CONCURRENT = 20
# Of a failed pass: doubled with every failure in a row, as controller-runtime's queues do. However
# much happens to its objects, it is not tried again before the first.
FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 60.0
# A pass is a few requests; one that takes longer at the end is cut off, which it can be anywhere.
CLOSE_SECONDS = 5.0
_LOG = logging.getLogger(__name__)


class Waker(Enum):
    """What asks for a pass."""

    EDIT = "edit"  # of the experiment by somebody, who waits for what comes of it
    CHANGE = "change"  # of one of its objects, or of its status
    CLOCK = "clock"  # of the law's period, or of a pass that failed

    @property
    def patience(self) -> float:
        """By how many seconds edits that come later may go ahead."""
        return {Waker.EDIT: 0.0, Waker.CHANGE: 30.0, Waker.CLOCK: 60.0}[self]


class Done(NamedTuple):
    """A pass that came to its end.

    Attributes:
        result: done, conflict, failed, defect or cancelled.
        reason: the error's class if it failed.
        seconds: how long it took.
        waker: what had asked for it.
        waited: how long that had waited for its turn, seconds.
    """

    result: str
    reason: str | None
    seconds: float
    waker: Waker
    waited: float


Report = Callable[[Done], None]


def _ignore(done: Done) -> None:
    pass


class _Turn(NamedTuple):
    """A place in the queue; the least is next."""

    deadline: float
    woken: float
    waker: Waker


@dataclass(slots=True)
class _Entry:
    """What is going on about one experiment."""

    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    turn: _Turn | None = None  # asked for and not begun
    failures: int = 0
    rests_until: float = -math.inf  # after a failed pass


@dataclass(slots=True)
class Passes:
    """Runs passes; `wake` may be called from anything on the event loop.

    Attributes:
        clock: seconds, monotonic.
        draw: from 0 to 1, at random: spreads the tries of passes that failed together.
        count: passes so far.
    """

    reconcile: Reconcile
    report: Report = _ignore
    clock: Callable[[], float] = time.monotonic
    draw: Callable[[], float] = random.random
    max_concurrent: int = MAX_CONCURRENT
    close_seconds: float = CLOSE_SECONDS
    count: int = 0
    is_closing: bool = False
    _entries: dict[Key, _Entry] = field(default_factory=dict)
    # Deadlines; one that is no longer its experiment's is passed over.
    _queue: list[tuple[float, Key]] = field(default_factory=list)
    _running: int = 0

    def wake(self, namespace: str, name: str, waker: Waker = Waker.EDIT) -> None:
        """See that a pass begins after now."""
        if self.is_closing:
            return
        key, now = (namespace, name), self.clock()
        entry = self._entries.setdefault(key, _Entry())
        turn = _Turn(now + waker.patience, now, waker)
        if entry.turn is not None and entry.turn.deadline <= turn.deadline:
            return
        entry.turn = turn
        self._enqueue(key, entry)

    async def close(self) -> None:
        """End every timer; passes come to their end if they do so soon."""
        self.is_closing = True
        self._queue.clear()
        entries, self._entries = list(self._entries.values()), {}
        for entry in entries:
            if entry.timer is not None:
                entry.timer.cancel()
        tasks = [entry.task for entry in entries if entry.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=self.close_seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _enqueue(self, key: Key, entry: _Entry) -> None:
        """Who was woken gets its place, unless it runs or has to rest."""
        if entry.task is not None or entry.turn is None or self.is_closing:
            return
        rest = entry.rests_until - self.clock()
        if rest > 0.0 and entry.turn.waker is not Waker.EDIT:
            self._call_later(entry, rest, self._enqueue, key, entry)
            return
        heapq.heappush(self._queue, (entry.turn.deadline, key))
        self._begin_next()

    def _begin_next(self) -> None:
        """Begin what is due first, as far as the bound allows."""
        while self._queue and self._running < self.max_concurrent:
            deadline, key = heapq.heappop(self._queue)
            entry = self._entries.get(key)
            turn = entry.turn if entry else None
            if entry is None or entry.task is not None or turn is None or turn.deadline != deadline:
                continue  # something that can wait less woke it, and had its pass
            self._running += 1
            # A context of its own: whose pass happens to end now is nothing to it.
            run = self._run(key, entry, turn)
            entry.task = asyncio.create_task(run, context=contextvars.Context())

    async def _run(self, key: Key, entry: _Entry, turn: _Turn) -> None:
        """One pass; then the next is asked for."""
        entry.turn = None  # what comes from here on asks for another pass
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None
        try:
            again = await self._pass(key, entry, turn)
        finally:
            entry.task = None
            self._running -= 1
        if self.is_closing:
            return
        if entry.turn is not None:
            self._enqueue(key, entry)
        elif again is None:
            del self._entries[key]
        elif again <= 0.0:
            self.wake(*key, turn.waker)
        else:
            self._call_later(entry, again, self.wake, *key, Waker.CLOCK)
        self._begin_next()

    async def _pass(self, key: Key, entry: _Entry, turn: _Turn) -> float | None:
        self.count += 1
        result, reason, started = "defect", None, self.clock()
        try:
            again = await self.reconcile(*key)
            result, entry.failures = "done", 0
            return again
        except KubeConflict as error:
            result = "conflict"  # it changed since it was observed: again at once, but not for ever
            return self._retry(key, entry, error, free=1)
        except OperatorError as error:
            result, reason = "failed", type(error).__name__
            return self._retry(key, entry, error)
        except asyncio.CancelledError:
            result = "cancelled"
            raise
        except Exception as error:  # noqa: BLE001 - a defect of ours, told in full, ends no passes
            reason = type(error).__name__
            entry.rests_until = self.clock() + FIRST_RETRY_SECONDS
            _LOG.error("a pass ended by a defect", exc_info=error, extra=_about(key, error))
            return MAX_RETRY_SECONDS
        finally:
            seconds = self.clock() - started
            self.report(Done(result, reason, seconds, turn.waker, started - turn.woken))

    def _retry(self, key: Key, entry: _Entry, error: OperatorError, free: int = 0) -> float:
        """Seconds until the next try; the first `free` ones in a row cost no pause."""
        entry.failures += 1
        if entry.failures <= free:
            return 0.0
        asked = error.retry_after_seconds
        pause = spread(max(retry_seconds(entry.failures - free), asked), self.draw)
        entry.rests_until = self.clock() + max(FIRST_RETRY_SECONDS, asked)
        about = _about(key, error)
        _LOG.warning("a pass failed, again in %.0f s: %s", pause, error, extra=about)
        return pause

    def _call_later(
        self, entry: _Entry, seconds: float, call: Callable[..., None], *arguments: object
    ) -> None:
        if entry.timer is not None:
            entry.timer.cancel()
        entry.timer = asyncio.get_running_loop().call_later(seconds, call, *arguments)


def _about(key: Key, error: Exception) -> dict[str, str]:
    return {"namespace": key[0], "experiment": key[1], "reason": type(error).__name__}


def retry_seconds(failures: int) -> float:
    """The pause after so many failed passes in a row."""
    return min(MAX_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 30))
