"""A Ray that runs for the whole benchmark in a process that does nothing else."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.connection import Connection

_AUTH_MODE = "RAY_AUTH_MODE"


@dataclass(frozen=True, slots=True, kw_only=True)
class RayUp:
    """A running Ray: its address, and the seconds of its start without imports.

    Ray's processes are `pid` and its descendants.
    """

    pid: int
    address: str
    auth_mode: str
    start_seconds: float


def hold_ray(connection: Connection) -> None:
    """Start Ray, send its address, and keep it running until the other side closes."""
    import ray

    started = time.perf_counter()
    with _connected("local"):
        up = RayUp(
            pid=os.getpid(),
            address=ray.get_runtime_context().gcs_address,
            # Ray sets it for its own children, but not for processes that join by address.
            auth_mode=os.environ.get(_AUTH_MODE, "disabled"),
            start_seconds=time.perf_counter() - started,
        )
        connection.send(("ready", up))
        connection.poll(None)


def join_ray(up: RayUp) -> AbstractContextManager[None]:
    """Connect to the running Ray for the time of a context."""
    os.environ[_AUTH_MODE] = up.auth_mode
    return _connected(up.address)


def _connected(address: str) -> AbstractContextManager[None]:
    # Imported here: a process without Ray stays without it. A trainer has a logical CPU of its own
    # in `lastmile run`; here it is no actor, so none is held, and data work may have as many.
    from pipeline_runtime.run.ray_connection import connected

    return connected(address, 0, verbose=False)
