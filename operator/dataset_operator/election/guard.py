"""Guards every write: a process that has lost the lease ends before it writes, not after.

The check is an aiohttp trace on the HTTP sessions themselves, so that no writer can forget it: the
API server's client, Ray's Jobs API (reached directly or through the proxy), and Kopf. It runs once
the request has its connection, which may take long to make, just before the request is sent.

A process can still be suspended between the check and the write. Such a late write is harmless: it
carries the resourceVersion or the uid that was observed, or creates an object whose name or id is
derived.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import NoReturn

import aiohttp

# Shown in the pod's last state; distinct from 1, which is a defect or a missing dependency.
EXIT_LEASE_LOST = 3
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_LOG = logging.getLogger(__name__)

Check = Callable[[], None]


def now() -> float:
    """Return seconds of a clock that goes on while the machine is suspended (clock_gettime(2))."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def leave(why: str) -> NoReturn:
    """End the process immediately: an orderly shutdown would go on working for a while."""
    _LOG.error("ending without another write, since this operator no longer leads: %s", why)
    logging.shutdown()
    os._exit(EXIT_LEASE_LOST)


def build_trace(check: Check) -> aiohttp.TraceConfig:
    """Build a trace for a session that calls `check` before each write.

    Args:
        check: does not return if the write must not be sent.
    """
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
