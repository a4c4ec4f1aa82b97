"""One pass at a time per experiment, however many events there are.

An event, a child's event and the clock all only wake an experiment. A wake-up while a pass runs is
remembered and runs it once more; so a thousand events at once cost two passes at most. A pass that
fails is tried again with a growing pause; how many run at once is bounded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from dataset_operator.errors import KubeConflict, OperatorError

Key = tuple[str, str]  # namespace, name
Reconcile = Callable[[str, str], Awaitable[float | None]]

# Passes wait for the API server most of their time; more than so many only queue up there.
MAX_CONCURRENT = 20
# Of a failed pass: doubled with every failure in a row, as controller-runtime's queues do.
FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 60.0
_LOG = logging.getLogger(__name__)


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
    max_concurrent: int = MAX_CONCURRENT
    count: int = 0  # passes so far
    _entries: dict[Key, _Entry] = field(default_factory=dict)
    _slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.max_concurrent)

    def wake(self, namespace: str, name: str) -> None:
        """See that a pass begins after now."""
        entry = self._entries.setdefault((namespace, name), _Entry())
        entry.is_dirty = True
        if entry.task is None:
            entry.task = asyncio.create_task(self._run((namespace, name), entry))
            entry.task.add_done_callback(_log_defect)

    async def close(self) -> None:
        """End every timer, and every pass where it stands."""
        entries, self._entries = list(self._entries.values()), {}
        for entry in entries:
            if entry.timer is not None:
                entry.timer.cancel()
        tasks = [entry.task for entry in entries if entry.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, key: Key, entry: _Entry) -> None:
        """Passes of one experiment until nothing woke it meanwhile; then the timer is set."""
        again: float | None = None
        try:
            while entry.is_dirty:
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
        namespace, name = key
        try:
            again = await self.reconcile(namespace, name)
        except KubeConflict:
            return 0.0  # it changed since it was observed
        except OperatorError as error:
            entry.failures += 1
            pause = retry_seconds(entry.failures)
            _LOG.warning("pass of %s/%s failed, again in %.0f s: %s", namespace, name, pause, error)
            return pause
        entry.failures = 0
        return again

    def _set_timer(self, key: Key, entry: _Entry, again: float | None) -> None:
        if self._entries.get(key) is not entry:
            return  # closed
        if again is None:
            del self._entries[key]
            return
        entry.timer = asyncio.get_running_loop().call_later(again, self.wake, *key)


def _log_defect(task: asyncio.Task[None]) -> None:
    """A defect of ours ends one experiment's passes until its next event, and is told in full."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        _LOG.error("a pass ended by a defect", exc_info=error)


def retry_seconds(failures: int) -> float:
    """The pause after so many failed passes in a row."""
    return min(MAX_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 30))
