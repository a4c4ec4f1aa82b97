"""Threads for the planning of passes, so that it does not block the event loop.

Parsing, hashing and rendering a large spec takes seconds. Meanwhile the loop watches, answers
probes and serves other experiments. Namespaces take turns, and none gets all threads at once: a
tenant with many large specs delays only its own experiments.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

# Threads share Python's lock, so more of them plan no faster. With a few, a small spec does not
# wait for the end of a large one.
MAX_THREADS = 4
MAX_THREADS_OF_A_NAMESPACE = 2
_T = TypeVar("_T")


@dataclass(slots=True, kw_only=True)
class Threads:
    """Runs functions in threads; used from one event loop.

    Attributes:
        max_threads: maximum number of functions that run at once.
        max_of_one: maximum number of one namespace.
    """

    max_threads: int = MAX_THREADS
    max_of_one: int = MAX_THREADS_OF_A_NAMESPACE
    _executor: ThreadPoolExecutor | None = None
    _running: Counter[str] = field(default_factory=Counter)
    # The waiting calls of each namespace, in order; the first namespace is the next.
    _waiting: dict[str, deque[asyncio.Future[None]]] = field(default_factory=dict)

    async def run(self, namespace: str, function: Callable[[], _T]) -> _T:
        """Run a function in a thread; return its result.

        A cancelled caller does not wait for the function, which keeps its thread to its end.
        """
        await self._take(namespace)
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        work = loop.run_in_executor(self._pool(), context.run, function)
        work.add_done_callback(lambda _: self._give_back(namespace))
        return await asyncio.shield(work)

    def _pool(self) -> ThreadPoolExecutor:
        """Return the own pool: name resolution in the loop's pool must not wait for a spec."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self.max_threads, "plan")
        return self._executor

    async def _take(self, namespace: str) -> None:
        """Wait for a thread."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, deque()).append(place)
        self._hand_out()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # it was given a thread just before
                self._give_back(namespace)
            raise

    def _give_back(self, namespace: str) -> None:
        self._running[namespace] -= 1
        if not self._running[namespace]:
            del self._running[namespace]
        self._hand_out()

    def _hand_out(self) -> None:
        """Give the free threads to the next callers."""
        for namespace in list(self._waiting):
            if self._running.total() >= self.max_threads:
                return
            if self._running[namespace] < self.max_of_one:
                self._serve(namespace)

    def _serve(self, namespace: str) -> None:
        """Let the next call of a namespace begin; then put the namespace last."""
        places = self._waiting.pop(namespace)
        while places:
            place = places.popleft()
            if not place.done():  # else it was cancelled
                place.set_result(None)
                self._running[namespace] += 1
                break
        if places:
            self._waiting[namespace] = places
