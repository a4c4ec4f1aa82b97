"""One pass at a time per experiment, however many events there are, and edits before clocks.

Events of an experiment, events of its objects, and the clock only wake the experiment. A wake-up
during a pass is remembered and runs another pass afterwards, so a thousand events at once cost two
passes at most. A failed pass is retried after a growing pause: sooner if an object changes, at once
after an edit.

If all slots are taken, passes wait. `slots` shares the slots between namespaces, and puts edits
before everything else. The other passes of a namespace wait in the order of their deadlines: the
time at which an experiment was woken plus the time that its trigger can wait (`Trigger.patience`).
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
from dataset_operator.scheduling.slots import MAX_SLOTS, Slot, Slots

Key = tuple[str, str]  # namespace, name
Reconcile = Callable[[str, str], Awaitable[float | None]]

# The pause after a failed pass doubles with every failure in a row, as in controller-runtime's
# queues. Events of objects cannot make it shorter than the first pause.
FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 60.0
# A pass takes a few requests. At the end of the process a longer one is cut off, which is safe.
CLOSE_SECONDS = 5.0
_LOG = logging.getLogger(__name__)


class Trigger(Enum):
    """A reason to run a pass."""

    EDIT = "edit"  # a user edited the experiment, and waits for the effect
    CHANGE = "change"  # one of its objects changed, or its status
    CLOCK = "clock"  # the period of autoscaling is over, or the pause after a failed pass

    @property
    def patience(self) -> float:
        """Seconds that it can wait, compared with the other triggers of its namespace."""
        return {Trigger.EDIT: 0.0, Trigger.CHANGE: 30.0, Trigger.CLOCK: 60.0}[self]


class Done(NamedTuple):
    """A pass that has ended.

    Attributes:
        result: done, conflict, failed, defect or cancelled.
        reason: the error's class if it failed.
        seconds: duration, including the waits for Ray and for a slot after them.
        trigger: the reason that the pass ran.
        waited: seconds that the pass waited for a slot, before it began and after it asked Ray.
    """

    result: str
    reason: str | None
    seconds: float
    trigger: Trigger
    waited: float


Report = Callable[[Done], None]


def _ignore(done: Done) -> None:
    pass


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """A pass that was requested and has not begun."""

    deadline: float
    woken: float
    trigger: Trigger


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
    """Runs passes; any code on the event loop may call `wake`.

    Attributes:
        clock: seconds, monotonic.
        draw: returns a random number from 0 to 1, to spread retries of passes that failed together.
        max_concurrent: number of slots; see `Slots`.
        count: number of passes so far.
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

    def wake(self, namespace: str, name: str, trigger: Trigger = Trigger.EDIT) -> None:
        """Request a pass that begins after this call."""
        if self.is_closing:
            return
        key, now = (namespace, name), self.clock()
        entry = self._entries.setdefault(key, _Entry())
        turn = _Turn(now + trigger.patience, now, trigger)
        if entry.turn is not None and entry.turn.deadline <= turn.deadline:
            return
        entry.turn = turn
        self._enqueue(key, entry)

    async def close(self) -> None:
        """Cancel all timers; let passes end for `close_seconds`, then cancel them."""
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
        is_edit = turn.trigger is Trigger.EDIT
        rest = entry.rests_until - self.clock()
        if rest > 0.0 and not is_edit:
            self._call_later(entry, rest, self._enqueue, key, entry)
            return
        begin = partial(self._begin, key, entry, turn)
        self._slots.ask(key[0], begin, is_edit=is_edit, deadline=turn.deadline)

    def _begin(self, key: Key, entry: _Entry, turn: _Turn, slot: Slot) -> bool:
        """Begin a pass in a slot; return False if another pass has served its trigger."""
        if self.is_closing or entry.task is not None or entry.turn is not turn:
            return False
        # A context of its own: the pass inherits nothing from the pass whose end began it.
        run = self._run(key, entry, turn, slot)
        entry.task = asyncio.create_task(run, context=contextvars.Context())
        return True

    async def _run(self, key: Key, entry: _Entry, turn: _Turn, slot: Slot) -> None:
        """Run one pass, then ask for the next."""
        slot.enter()
        entry.turn = None  # a trigger from here on requests another pass
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
            self.wake(*key, turn.trigger)
        else:
            self._call_later(entry, again, self.wake, *key, Trigger.CLOCK)

    async def _pass(self, key: Key, entry: _Entry, turn: _Turn, slot: Slot) -> float | None:
        self.count += 1
        result, reason, started = "defect", None, self.clock()
        try:
            again = await self.reconcile(*key)
            result, entry.failures = "done", 0
            return again
        except KubeConflict as error:
            result = "conflict"  # the experiment changed: retry at once, but only once in a row
            return self._retry(key, entry, error, free=1)
        except OperatorError as error:
            result, reason = "failed", type(error).__name__
            return self._retry(key, entry, error)
        except asyncio.CancelledError:
            result = "cancelled"
            raise
        except Exception as error:  # noqa: BLE001 - a defect is logged in full, and ends no other pass
            reason = type(error).__name__
            entry.rests_until = self.clock() + FIRST_RETRY_SECONDS
            _LOG.error("a pass ended by a defect", exc_info=error, extra=_about(key, error))
            return MAX_RETRY_SECONDS
        finally:
            seconds, waited = self.clock() - started, started - turn.woken + slot.waited
            self.report(Done(result, reason, seconds, turn.trigger, waited))

    def _retry(self, key: Key, entry: _Entry, error: OperatorError, free: int = 0) -> float:
        """Return the seconds until the next try; the first `free` failures in a row cost none."""
        entry.failures += 1
        if entry.failures <= free:
            return 0.0
        least = error.retry_after_seconds
        pause = spread(max(retry_seconds(entry.failures - free), least), self.draw)
        entry.rests_until = self.clock() + max(FIRST_RETRY_SECONDS, least)
        about = _about(key, error)
        _LOG.warning("a pass failed, retry in %.0f s: %s", pause, error, extra=about)
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
    """Return the pause after this number of failed passes in a row."""
    return min(MAX_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 30))
