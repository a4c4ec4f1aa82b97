"""Bounds on the answers of the API server, and the pages that lists are fetched in.

Tenants can store objects of more than a megabyte, as many as their quota allows, and parsed they
take up to twenty times their bytes. So lists come in pages of bounded size, each parsed and cut to
the used part before the next is fetched (`fetch_page`). A pass that meets a large object waits
until it is one of the few that hold such objects (`places`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import aiohttp

# The API server takes 3 MiB of an object, etcd half of that, and JSON writes a byte as six at most.
MAX_OBJECT_BYTES: Final = 20 << 20
# The largest page of a list: some 250 pods of 11 KB and their managed fields.
MAX_PAGE_BYTES: Final = 4 << 20
# All objects of an experiment usually fit into one page; more would only make it larger.
PAGE_SIZE: Final = 250
# A generous experiment or RayCluster has 40 KB. A smaller object never waits for a place.
LARGE_BYTES: Final = 128 << 10

T = TypeVar("T")
# Fetches a page of at most so many objects; returns None if it has more than so many bytes.
Fetch = Callable[[int, int], Awaitable[T | None]]


async def read_bounded(response: aiohttp.ClientResponse, max_bytes: int) -> bytes | None:
    """Return the body; stop reading and return None if it has more than `max_bytes`."""
    text = bytearray()
    async for piece in response.content.iter_any():
        text += piece
        if len(text) > max_bytes:
            response.close()
            return None
    return bytes(text)


async def fetch_page(fetch: Fetch[T], limit: int) -> tuple[T | None, int]:
    """Fetch the next page of a list; halve the number of objects until the page is not too large.

    Returns:
        The page, or None if a single object is too large; and the number of objects asked for.
    """
    while limit > 1:
        page = await fetch(limit, MAX_PAGE_BYTES)
        if page is not None:
            return page, limit
        limit //= 2
    return await fetch(1, MAX_OBJECT_BYTES), 1
