"""One pass at a time per experiment, however many events there are.

An event, a child's event and the clock all only wake an experiment. A wake-up while a pass runs is
remembered and runs it once more; so a thousand events at once cost two passes at most. A pass that
fails is tried again with a growing pause; how many run at once is bounded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from dataset_operator.errors import KubeConflict, OperatorError

Key = tuple[str, str]  # namespace, name
Reconcile = Callable[[str, str], Awaitable[float | None]]
# Told of every pass: done, conflict, failed, defect or cancelled; the error's class if it failed;
# seconds.
Report = Callable[[str, str | None, float], None]

# Passes wait for the API server most of their time; more than so many only queue up there.
MAX_CONCURRENT = 20
# Of a failed pass: doubled with every failure in a row, as controller-runtime's queues do.
FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 60.0
# A pass is a few requests; one that takes longer at the end is cut off, which it can be anywhere.
CLOSE_SECONDS = 5.0
_LOG = logging.getLogger(__name__)


def _ignore(result: str, reason: str | None, seconds: float) -> None:
    pass


@dataclass(slots=True)
class _Entry:
    """What is going on about one experiment."""

    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    is_dirty: bool = False
    failures: int = 0


@dataclass(slots=True)
class Passes:
    """Runs passes; `wake` may be called from anything on the event loop."""

    reconcile: Reconcile
    report: Report = _ignore
    max_concurrent: int = MAX_CONCURRENT
    close_seconds: float = CLOSE_SECONDS
    count: int = 0  # passes so far
    is_closing: bool = False
    _entries: dict[Key, _Entry] = field(default_factory=dict)
    _slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.max_concurrent)

    def wake(self, namespace: str, name: str) -> None:
        """See that a pass begins after now."""
        if self.is_closing:
            return
        entry = self._entries.setdefault((namespace, name), _Entry())
        entry.is_dirty = True
        if entry.task is None:
            entry.task = asyncio.create_task(self._run((namespace, name), entry))

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

    async def _run(self, key: Key, entry: _Entry) -> None:
        """Passes of one experiment until nothing woke it meanwhile; then the timer is set."""
        again: float | None = None
        try:
            while entry.is_dirty and not self.is_closing:
                async with self._slots:
                    if entry.timer is not None:
                        entry.timer.cancel()
                        entry.timer = None
                    entry.is_dirty = False  # what comes from here on asks for another pass
                    again = await self._pass(key, entry)
        finally:
            entry.task = None
        self._set_timer(key, entry, again)

    async def _pass(self, key: Key, entry: _Entry) -> float | None:
        self.count += 1
        result, reason, started = "defect", None, time.monotonic()
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
            _LOG.error("a pass ended by a defect", exc_info=error, extra=_about(key, error))
            return MAX_RETRY_SECONDS
        finally:
            self.report(result, reason, time.monotonic() - started)

    def _retry(self, key: Key, entry: _Entry, error: OperatorError, free: int = 0) -> float:
        """Seconds until the next try; the first `free` ones in a row cost no pause."""
        entry.failures += 1
        if entry.failures <= free:
            return 0.0
        pause = retry_seconds(entry.failures - free)
        about = _about(key, error)
        _LOG.warning("a pass failed, again in %.0f s: %s", pause, error, extra=about)
        return pause

    def _set_timer(self, key: Key, entry: _Entry, again: float | None) -> None:
        if self._entries.get(key) is not entry:
            return  # closed
        if again is None:
            del self._entries[key]
            return
        entry.timer = asyncio.get_running_loop().call_later(again, self.wake, *key)


def _about(key: Key, error: Exception) -> dict[str, str]:
    return {"namespace": key[0], "experiment": key[1], "reason": type(error).__name__}


def retry_seconds(failures: int) -> float:
    """The pause after so many failed passes in a row."""
    return min(MAX_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 30))
