"""Starts Ray for a run on this machine, or connects to a running cluster.

This module owns the arguments of ray.init.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from pipeline_runtime.allocator import keep_freed_memory
from pipeline_runtime.errors import LastmileError
from pipeline_runtime.run.options import logical_cpus

# Ray's default share of memory for the object store is 30 %; chunks in flight need at most 4 GiB.
MAX_OBJECT_STORE_BYTES = 4 << 30
_OBJECT_STORE_SHARE = 0.3
# Plasma needs room for a few chunks whatever the machine (Ray's own minimum is 75 MiB).
_MIN_OBJECT_STORE_BYTES = 256 << 20

_TOKEN_BYTES = 32
# Variables of this process that the workers of a cluster get as well.
_KEPT_VARIABLES = ("PYTHONPATH", "RAY_IGNORE_UNHANDLED_ERRORS")

# A running head node accepts a connection in milliseconds, even from another zone.
CONNECT_SECONDS = 10.0


@contextmanager
def connected(address: str, world_size: int, *, verbose: bool) -> Iterator[None]:
    """Connect to Ray for the duration of a run; an embedded Ray ends with it.

    Each trainer holds one logical CPU, because Ray places no bundle without resources. So an
    embedded Ray gets one more logical CPU per trainer, and data work can still use all real CPUs.
    """
    environment = {
        # Lastmile sends nothing from this machine.
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray Train would otherwise print every snapshot of its own state.
        "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
        # A failed call is reported once, by Lastmile; Ray would print each reference to it.
        "RAY_IGNORE_UNHANDLED_ERRORS": "1",
        "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
        # It would have no effect: a run ends with the first trainer that it loses.
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
        # Leave the machine's GPUs visible to torch in a CPU-only worker.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    memory = keep_freed_memory()
    level = logging.INFO if verbose else logging.ERROR
    common: dict[str, Any] = {"logging_level": level, "log_to_driver": verbose}
    if address in ("local", "ray"):
        if not _can_keep_token():
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(_TOKEN_BYTES)
        ray.init(
            address="local",
            num_cpus=logical_cpus() + world_size,
            object_store_memory=object_store_bytes(),
            include_dashboard=False,
            **common,
        )
    else:
        # Only here: an embedded Ray inherits this process's variables, and without a runtime
        # environment of its own it can start worker processes ahead of demand.
        kept = {name: os.environ.get(name, "") for name in _KEPT_VARIABLES}
        variables = {**kept, **memory}
        _join(address, {**common, "runtime_env": {"env_vars": variables}})
    for name in ("ray", "ray.data", "ray.train"):
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        ray.shutdown()


def _can_keep_token() -> bool:
    """Return whether Ray has a token, or can write one to its usual place below HOME.

    An arbitrary user of a container may have no HOME, or none that it can write to.
    """
    if any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        return True
    try:
        token = Path.home() / ".ray" / "auth_token"
        token.parent.mkdir(parents=True, exist_ok=True)
        needed = (token, os.R_OK) if token.exists() else (token.parent, os.W_OK)
    except (OSError, RuntimeError):  # RuntimeError: no HOME, and no entry in /etc/passwd
        return False
    return os.access(*needed)


def _join(address: str, options: dict[str, Any]) -> None:
    """Connect to a running cluster. Raises LastmileError if none answers."""
    known = os.environ.get("RAY_ADDRESS") if address == "auto" else address
    try:
        _check_answers(known or "")
        ray.init(address=address, **options)
    except (OSError, RuntimeError, ValueError) as error:
        where = known or "none from RAY_ADDRESS or on this machine"
        raise LastmileError(
            f"--address {address}: must be a Ray cluster that answers, got {where}: "
            f"{str(error).strip().splitlines()[-1]}; start one with 'ray start --head', or use "
            "--address local"
        ) from error


def _check_answers(address: str) -> None:
    """Raise OSError if nothing listens at HOST:PORT; Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()


def object_store_bytes() -> int:
    """Return the bytes of shared memory for chunks in flight, limited by this machine's memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    shared = os.statvfs("/dev/shm")
    room = min(int(memory * _OBJECT_STORE_SHARE), shared.f_bavail * shared.f_frsize * 9 // 10)
    return max(_MIN_OBJECT_STORE_BYTES, min(MAX_OBJECT_STORE_BYTES, room))
