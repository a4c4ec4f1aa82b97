"""What the benchmark ran on, without a name of it, and the processor time that processes used."""

from __future__ import annotations

import os
import platform
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
_LIBRARIES = ("numpy", "pyarrow", "ray", "torch")
# Fields of /proc/PID/stat after the command's name, see proc(5): parent, then user, system, and
# those of children that have ended.
_PARENT_FIELD = 1
_TIME_FIELDS = slice(11, 15)


def describe_machine() -> dict[str, Any]:
    """Processor, memory, system; no host name."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memoryGiB": round(memory_bytes / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
    }


def describe_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that matter."""
    return {"python": platform.python_version()} | {name: version(name) for name in _LIBRARIES}


def load_average() -> float:
    """Processes that want a core, averaged over the last minute."""
    return round(os.getloadavg()[0], 2)


def _processor() -> str:
    try:
        lines = (_PROC / "cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "unknown")


def tree_cpu_seconds() -> float | None:
    """Processor seconds of this process and all below it, ended ones too; None but on Linux."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    ticks: dict[int, int] = {}
    for folder in _PROC.glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        children[int(fields[_PARENT_FIELD])].append(int(folder.name))
        ticks[int(folder.name)] = sum(int(field) for field in fields[_TIME_FIELDS])
    if not ticks:
        return None
    return _sum_tree(os.getpid(), children, ticks) / os.sysconf("SC_CLK_TCK")


def _sum_tree(root: int, children: dict[int, list[int]], ticks: dict[int, int]) -> int:
    below = sum(_sum_tree(child, children, ticks) for child in children.get(root, ()))
    return ticks.get(root, 0) + below
