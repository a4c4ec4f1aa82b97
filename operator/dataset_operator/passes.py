"""One pass at a time per experiment, however many events there are, and edits before clocks.

An event of an experiment, an event of an owned object and the clock only wake an experiment. A
wake-up during a pass is remembered and runs another pass afterwards, so a thousand events at once
cost two passes at most. A pass that fails is tried again after a growing pause: sooner if an object
changes, at once after an edit.

Beyond the number of slots, passes wait. `slots` shares the slots between namespaces, and puts edits
before everything else. The rest of a namespace waits in the order of deadlines: the time at which
an experiment was woken plus the time that its trigger can wait (`Waker.patience`).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import NamedTuple

from dataset_operator.errors import KubeConflict, OperatorError
from dataset_operator.retrying import spread
from dataset_operator.slots import MAX_SLOTS, Slot, Slots

Key = tuple[str, str]  # namespace, name
Reconcile = Callable[[str, str], Awaitable[float | None]]

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
        """Seconds that it can wait, compared with the other triggers of its namespace."""
        return {Waker.EDIT: 0.0, Waker.CHANGE: 30.0, Waker.CLOCK: 60.0}[self]


class Done(NamedTuple):
    """A pass that has ended.

    Attributes:
        result: done, conflict, failed, defect or cancelled.
        reason: the error's class if it failed.
        seconds: duration, including the waits for Ray and for a slot after them.
        waker: the trigger of the pass.
        waited: seconds that the pass waited for a slot, before it began and after it asked Ray.
    """

    result: str
    reason: str | None
    seconds: float
    waker: Waker
    waited: float


Report = Callable[[Done], None]


def _ignore(done: Done) -> None:
    pass


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """A pass that was asked for and has not begun."""

    deadline: float
    woken: float
    waker: Waker


@dataclass(slots=True)
class _Entry:
    """The state of one experiment: its pass, its timer, and the pass that waits."""

    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    turn: _Turn | None = None
    failures: int = 0
    rests_until: float = -math.inf  # after a failed pass


@dataclass(slots=True)
class Passes:
    """Runs passes; `wake` may be called from anything on the event loop.

    Attributes:
        clock: seconds, monotonic.
        draw: from 0 to 1, at random: spreads the tries of passes that failed together.
        max_concurrent: slots; see `Slots`.
        count: passes so far.
    """

    reconcile: Reconcile
    report: Report = _ignore
    clock: Callable[[], float] = time.monotonic
    draw: Callable[[], float] = random.random
    max_concurrent: int = MAX_SLOTS
    close_seconds: float = CLOSE_SECONDS
    count: int = 0
    is_closing: bool = False
    _entries: dict[Key, _Entry] = field(default_factory=dict)
    _slots: Slots = field(init=False)

    def __post_init__(self) -> None:
        self._slots = Slots(total=self.max_concurrent, clock=self.clock)

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
        """Ask for a slot, unless a pass runs or the experiment has to rest."""
        turn = entry.turn
        if entry.task is not None or turn is None or self.is_closing:
            return
        is_edit = turn.waker is Waker.EDIT
        rest = entry.rests_until - self.clock()
        if rest > 0.0 and not is_edit:
            self._call_later(entry, rest, self._enqueue, key, entry)
            return
        begin = partial(self._begin, key, entry, turn)
        self._slots.ask(key[0], begin, is_edit=is_edit, deadline=turn.deadline)

    def _begin(self, key: Key, entry: _Entry, turn: _Turn, slot: Slot) -> bool:
        """Begin a pass in a slot; False if a more urgent trigger has had its pass meanwhile."""
        if self.is_closing or entry.task is not None or entry.turn is not turn:
            return False
        # A context of its own: the pass inherits nothing from the one whose end began it.
        run = self._run(key, entry, turn, slot)
        entry.task = asyncio.create_task(run, context=contextvars.Context())
        return True

    async def _run(self, key: Key, entry: _Entry, turn: _Turn, slot: Slot) -> None:
        """Run one pass, then ask for the next."""
        slot.enter()
        entry.turn = None  # a trigger from here on asks for another pass
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None
        try:
            again = await self._pass(key, entry, turn, slot)
        finally:
            entry.task = None
            self._slots.end(slot)
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

    async def _pass(self, key: Key, entry: _Entry, turn: _Turn, slot: Slot) -> float | None:
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
            seconds, waited = self.clock() - started, started - turn.woken + slot.waited
            self.report(Done(result, reason, seconds, turn.waker, waited))

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
