"""CPU seconds by kind of process: trainer, coordinator, readers, raylets.

On one machine they share its cores, so this shows what was missing where a rate is too low. Raylets
carry chunks from one node's store to another's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.harness.machine import cpu_seconds_by_process, tree_cpu_seconds

TRAINER, COORDINATOR, READERS, RAYLETS, REST = (
    *("trainer", "coordinator", "readers", "raylets"),
    "rest of Ray",  # the head's services, agents of the nodes
)
KINDS: Final = (TRAINER, COORDINATOR, READERS, RAYLETS, REST)


def cpu_seconds_by_kind(coordinator: int) -> Mapping[str, float]:
    """Return CPU seconds up to now, of this process and those that it started.

    Args:
        coordinator: the pid of the pool's process.
    """
    seconds = dict.fromkeys(KINDS, 0.0)
    for pid, used in cpu_seconds_by_process(os.getpid()).items():
        if pid not in (os.getpid(), coordinator):
            seconds[_kind_of(pid)] += used
    # Without children that have ended: nodes of other passes.
    seconds[TRAINER] = time.process_time()
    seconds[COORDINATOR] = tree_cpu_seconds(coordinator) or 0.0
    return seconds


def _kind_of(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return REST  # it ended meanwhile
    if command.startswith(b"ray::") and b"Reader" in command.split(b"\0")[0]:
        return READERS
    return RAYLETS if b"raylet/raylet" in command.split(b"\0")[0] else REST
