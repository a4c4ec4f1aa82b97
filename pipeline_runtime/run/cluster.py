"""Ray for a run: an embedded one on this machine, or one that is already there.

Owns ray.init and what it is told, and how many trainers this machine can take.
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
import torch

from pipeline_runtime.allocator import keep_freed_memory
from pipeline_runtime.config import DatasetExperiment
from pipeline_runtime.errors import LastmileError

# Data work needs one core and the split's executor another: with one logical CPU the second of two
# executions (training, evaluation) would never get any.
MIN_LOGICAL_CPUS = 2
# Ray's default share of memory for the object store, 30 %, but no more than the pieces in flight
# need.
MAX_OBJECT_STORE_BYTES = 4 << 30
_OBJECT_STORE_SHARE = 0.3
# Plasma needs room for a few pieces whatever the machine (Ray's own minimum is 75 MiB).
_MIN_OBJECT_STORE_BYTES = 256 << 20

_TOKEN_BYTES = 32

# A head node that is up takes a connection in milliseconds, also from another zone.
CONNECT_SECONDS = 10.0


def world_size_of(experiment: DatasetExperiment, *, local: bool) -> tuple[int, str | None]:
    """Ranks of a run, and a warning if this machine takes fewer than the manifest asks for."""
    wanted = experiment.spec.trainers.world_size
    if not local:
        return wanted, None
    room = torch.cuda.device_count() if torch.cuda.is_available() else logical_cpus()
    if wanted <= room:
        return wanted, None
    return room, f"spec.trainers asks for {wanted} ranks, this machine has room for {room}"


def logical_cpus() -> int:
    """CPUs that the embedded Ray is told of."""
    return max(MIN_LOGICAL_CPUS, len(os.sched_getaffinity(0)))


@contextmanager
def connected(address: str, world_size: int, *, verbose: bool) -> Iterator[None]:
    """Ray for the time of a run; an embedded one ends with it.

    Each trainer holds one logical CPU (Ray places no bundle without resources), so an embedded Ray
    is told of as many more: what data work can have stays the machine's.
    """
    environment = {
        # Nothing leaves this machine on Lastmile's account.
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray Train would otherwise print every snapshot of its own state.
        "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
        "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
        # Nobody listens to it: a run ends with the first trainer it loses.
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
        # Accept that a CPU-only worker keeps the GPUs of the machine visible to torch, as asked.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    memory = keep_freed_memory()
    level = logging.INFO if verbose else logging.ERROR
    common: dict[str, Any] = {"logging_level": level, "log_to_driver": verbose}
    if address == "local":
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
        # An embedded Ray's processes have the variables of this one, and without an environment of
        # the run's own they start before they are asked for.
        variables = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), **memory}
        _join(address, {**common, "runtime_env": {"env_vars": variables}})
    for name in ("ray", "ray.data", "ray.train"):
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        ray.shutdown()


def _can_keep_token() -> bool:
    """Return whether Ray has a token, or can write one for an embedded cluster to its usual place.

    Its place is in HOME, which an arbitrary user of a container may lack or may not write to.
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
    """Connect to a cluster that is up. Raises LastmileError if none answers."""
    known = os.environ.get("RAY_ADDRESS") if address == "auto" else address
    try:
        _check_answers(known or "")
        ray.init(address=address, **options)
    except (OSError, RuntimeError, ValueError) as error:
        where = known or "none by RAY_ADDRESS or on this machine"
        raise LastmileError(
            f"--address {address}: must be a Ray cluster that answers, got {where}: "
            f"{str(error).strip().splitlines()[-1]}; start one with 'ray start --head', or use "
            "--address local"
        ) from error


def _check_answers(address: str) -> None:
    """Raise OSError if nobody listens at HOST:PORT; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()


def object_store_bytes() -> int:
    """Shared memory for pieces in flight, bounded by what this machine has."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    shared = os.statvfs("/dev/shm")
    room = min(int(memory * _OBJECT_STORE_SHARE), shared.f_bavail * shared.f_frsize * 9 // 10)
    return max(_MIN_OBJECT_STORE_BYTES, min(MAX_OBJECT_STORE_BYTES, room))
