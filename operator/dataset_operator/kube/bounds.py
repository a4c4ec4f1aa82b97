"""How much of an answer of the API server is read, and which answers wait for their turn.

Tenants can store objects of more than a megabyte, as many as their quota allows, and parsed they
take up to twenty times their bytes. So lists come in pages of bounded size, each parsed and cut to
what is used before the next is fetched (`fetch_page`); and a pass that meets a large object waits
until it is one of the few that hold such objects (`taking_turns`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, TypeVar
from weakref import WeakValueDictionary

import aiohttp

from dataset_operator.slots import outside

# The API server takes 3 MiB of an object, etcd half of that, and JSON writes a byte as six at most.
MAX_OBJECT_BYTES: Final = 20 << 20
# Of a list: some 250 pods of 11 KB and their managed fields.
MAX_PAGE_BYTES: Final = 4 << 20
# More objects would only make a page larger; all that an experiment has usually fits in one.
PAGE_SIZE: Final = 250
# A generous experiment or RayCluster has 40 KB. What is smaller never waits for a turn.
LARGE_BYTES: Final = 128 << 10
# So many passes hold large objects at once: 60 MB parsed, by the worst that tenants can write.
NUM_LARGE_PASSES: Final = 2

T = TypeVar("T")
# Fetches a page of at most so many objects and bytes; None if it has more bytes.
Fetch = Callable[[int, int], Awaitable[T | None]]


async def read_bounded(response: aiohttp.ClientResponse, max_bytes: int) -> bytes | None:
    """Return the body; None, and no more of it is read, if it has more than `max_bytes`."""
    text = bytearray()
    async for piece in response.content.iter_any():
        text += piece
        if len(text) > max_bytes:
            response.close()
            return None
    return bytes(text)


async def fetch_page(fetch: Fetch[T], limit: int) -> tuple[T | None, int]:
    """Fetch the next page of a list: of half as many objects for as long as it is too large.

    Returns:
        The page, and of how many objects at most it was; None if a single object is too large.
    """
    while limit > 1:
        page = await fetch(limit, MAX_PAGE_BYTES)
        if page is not None:
            return page, limit
        limit //= 2
    return await fetch(1, MAX_OBJECT_BYTES), 1


@dataclass(slots=True)
class Turns:
    """The places of passes that hold large objects; each namespace has one of them at most."""

    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(NUM_LARGE_PASSES))
    _own: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    def find_own(self, namespace: str) -> asyncio.Lock:
        """Return the lock that a pass of the namespace takes first."""
        return self._own.setdefault(namespace, asyncio.Lock())


@dataclass(slots=True)
class _Turn:
    """The place of one pass, once it has one."""

    own: asyncio.Lock
    places: asyncio.Semaphore
    is_taken: bool = False
    _taking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def take(self) -> None:
        """Wait for a place, once."""
        async with self._taking:
            if self.is_taken:
                return
            async with outside():  # or waiting passes would hold the slots of others
                await self.own.acquire()
                try:
                    await self.places.acquire()
                except BaseException:
                    self.own.release()
                    raise
                self.is_taken = True

    def leave(self) -> None:
        """Give the place to the next pass."""
        if self.is_taken:
            self.places.release()
            self.own.release()


_turn: ContextVar[_Turn | None] = ContextVar("turn", default=None)


@contextlib.asynccontextmanager
async def taking_turns(turns: Turns, namespace: str) -> AsyncIterator[None]:
    """Run a pass that waits for one of these places before it reads its first large object.

    It keeps the place to its end, so that no two passes wait for what the other holds.
    """
    turn = _Turn(turns.find_own(namespace), turns.places)
    token = _turn.set(turn)
    try:
        yield
    finally:
        _turn.reset(token)
        turn.leave()


def find_allowance() -> int:
    """Return how many bytes of an object may be read now; beyond that `take_turn` comes first."""
    turn = _turn.get()
    return MAX_OBJECT_BYTES if turn is None or turn.is_taken else LARGE_BYTES


async def take_turn() -> None:
    """Wait until this pass may hold large objects; outside a pass, not at all."""
    if (turn := _turn.get()) is not None:
        await turn.take()
