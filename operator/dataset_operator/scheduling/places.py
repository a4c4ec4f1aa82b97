"""Places for passes that hold large objects, so that few of them are in memory at the same time.

    working    a pass takes a place before it reads its first large object, and keeps it to its end
    asking     while it asks a Ray head or Prometheus, which may hang, another pass gets the place;
               it still holds its objects, so there is a bound on such passes too

A namespace has one of all these passes at most, so no tenant can take every place. `slots` does the
same for passes of any size; `kube.bounds` says what is large.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary

from dataset_operator.scheduling import slots

# Passes that hold large objects and work, and those that hold them while they ask. The worst that a
# tenant can write (an experiment, a RayCluster and a NetworkPolicy of 1.4 MB each) take 83 MiB of a
# pass when they are parsed, so three passes take half of the pod's 512 MiB.
NUM_WORKING: Final = 2
NUM_ASKING: Final = 1


@dataclass(slots=True)
class Places:
    """The places of all passes."""

    working: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(NUM_WORKING))
    asking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(NUM_ASKING))
    _own: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    @contextlib.asynccontextmanager
    async def serving(self, namespace: str) -> AsyncIterator[None]:
        """Run a pass that takes a place before it reads its first large object."""
        place = _Place(self, self._own.setdefault(namespace, asyncio.Lock()))
        token = _place.set(place)
        try:
            yield
        finally:
            _place.reset(token)
            place.end()


@dataclass(slots=True)
class _Place:
    """The place of one pass, once it has one.

    Attributes:
        own: lock of the pass's namespace.
        is_needed: whether the pass has the lock and holds large objects.
        is_held: whether it has a place now.
    """

    places: Places
    own: asyncio.Lock
    is_needed: bool = False
    is_held: bool = False
    _taking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def take(self) -> None:
        """Wait for a place, once."""
        async with self._taking:
            if self.is_needed:
                return
            async with slots.outside():  # or waiting passes would hold the slots of others
                await self.own.acquire()
                self.is_needed = True
                await self._hold()

    @contextlib.asynccontextmanager
    async def left(self) -> AsyncIterator[None]:
        """Give the place to another pass until the block ends, if not too many passes do so."""
        if not self.is_held or self.places.asking.locked():
            yield
            return
        async with self.places.asking:
            self._release()
            try:
                yield
            finally:
                await self._hold()

    def end(self) -> None:
        """Give everything to the next pass."""
        if self.is_held:
            self._release()
        if self.is_needed:
            self.own.release()

    async def _hold(self) -> None:
        await self.places.working.acquire()
        self.is_held = True

    def _release(self) -> None:
        self.is_held = False
        self.places.working.release()


_place: ContextVar[_Place | None] = ContextVar("place", default=None)


def may_hold_large() -> bool:
    """Return whether large objects may be read now; a pass that may not first calls `take`."""
    place = _place.get()
    return place is None or place.is_needed


async def take() -> None:
    """Wait until this pass may hold large objects; outside of a pass do not wait."""
    if (place := _place.get()) is not None:
        await place.take()


@contextlib.asynccontextmanager
async def outside() -> AsyncIterator[None]:
    """Give the slot and the place of this pass back while it waits for a tenant's program."""
    place = _place.get()
    # The place comes back before the slot: a pass that waits for a place holds no slot.
    async with slots.outside(), place.left() if place is not None else contextlib.nullcontext():
        yield
