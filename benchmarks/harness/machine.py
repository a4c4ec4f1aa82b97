"""The machine of a benchmark, without its name, and the resources that it used."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
from collections import defaultdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

MAX_LOAD = 0.5  # average of the last minute; with more, other work sometimes uses a core
_PROC = Path("/proc")
_LIBRARIES = ("numba", "numpy", "polars", "pyarrow", "ray", "torch")
# Fields of /proc/PID/stat after the command's name, see proc(5): parent, then user, system, and
# those of children that have ended.
_PARENT_FIELD = 1
_TIME_FIELDS = slice(11, 15)


def describe_machine() -> dict[str, Any]:
    """Return processor, memory and system, without the host name."""
    processor = re.search(r"^model name\s*: (.*)", _read("cpuinfo"), re.MULTILINE)
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": processor[1].strip() if processor else platform.processor() or "unknown",
        "cores": num_cores(),
        "memoryGiB": round(memory_bytes / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
    }


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def describe_versions() -> dict[str, str]:
    """Return the versions of Python and of the relevant libraries that are installed."""
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def describe_commit() -> str:
    """Return the measured commit, and whether files differed from it."""
    packed = Path(__file__).parents[2] / "COMMIT"  # in an archive, which has no repository
    if packed.exists():
        return packed.read_text().strip()
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def tree_cpu_seconds(root: int) -> float | None:
    """Return CPU seconds of a process and all its descendants, ended ones too; None off Linux."""
    stats = _tree_stats(root)
    ticks = sum(int(field) for fields in stats.values() for field in fields[_TIME_FIELDS])
    return ticks / os.sysconf("SC_CLK_TCK") if stats else None


def thread_cpu_seconds(root: int, title: str) -> float:
    """Return CPU seconds of the descendants of a process whose command begins with a title.

    Nanoseconds count, where the other function counts hundredths of a second. Threads that have
    ended are missing.
    """
    pids = [pid for pid in _tree_stats(root) if _read(f"{pid}/cmdline").startswith(title)]
    threads = [path for pid in pids for path in _PROC.glob(f"{pid}/task/*/schedstat")]
    found = [_read(str(path.relative_to(_PROC))).split() for path in threads]
    return sum(int(fields[0]) for fields in found if fields) / 1e9


def _tree_stats(root: int) -> dict[int, list[str]]:
    """Return the fields of /proc/PID/stat after the name, for a process and its descendants."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    stats: dict[int, list[str]] = {}
    for folder in _PROC.glob("[0-9]*"):
        if fields := _read(f"{folder.name}/stat").rpartition(")")[2].split():
            children[int(fields[_PARENT_FIELD])].append(int(folder.name))
            stats[int(folder.name)] = fields
    found, waiting = {}, [root]
    while waiting:
        pid = waiting.pop()
        waiting += children[pid]
        if pid in stats:
            found[pid] = stats[pid]
    return found


def _read(name: str) -> str:
    """Return a file of /proc, or nothing if it does not exist, or its process has ended."""
    with contextlib.suppress(OSError):
        return (_PROC / name).read_text()
    return ""
