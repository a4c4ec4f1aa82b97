"""Stands before every write: a process that leads no more ends before it, not after.

The check hangs on the HTTP sessions themselves, as aiohttp's tracing, so that nothing which writes
can forget it: the API server's client, Ray's Jobs API reached directly or through the proxy, and
Kopf. It comes when a connection has been found or made, which may take long, and the request's
bytes are what comes next.

In between a process can still be stopped. What is then on its way is harmless by itself: it carries
the resourceVersion or the uid that was observed, or makes what has a derived name or id.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import NoReturn

import aiohttp

# For the kubelet's «last state», apart from 1 (a defect, or what it needs is not there).
EXIT_LEASE_LOST = 3
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_LOG = logging.getLogger(__name__)

Check = Callable[[], None]


def now() -> float:
    """Seconds by a clock that goes on while the machine is suspended (clock_gettime(2))."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def leave(why: str) -> NoReturn:
    """End the process here and now: an orderly end would go on working for a while."""
    _LOG.error("ending without another write, since this operator leads no more: %s", why)
    logging.shutdown()
    os._exit(EXIT_LEASE_LOST)


def build_trace(check: Check) -> aiohttp.TraceConfig:
    """For a session: has `check`, which does not return if it must not be, before each write."""
    trace = aiohttp.TraceConfig()

    async def begin(
        _: aiohttp.ClientSession, about: SimpleNamespace, given: aiohttp.TraceRequestStartParams
    ) -> None:
        about.is_write = given.method.upper() not in _READS

    async def pass_by(_: aiohttp.ClientSession, about: SimpleNamespace, __: object) -> None:
        if about.is_write:
            check()

    trace.on_request_start.append(begin)
    trace.on_connection_create_end.append(pass_by)
    trace.on_connection_reuseconn.append(pass_by)
    return trace
