"""Starts the processes of a box, and finds them again, even after a kill -9 of their starter.

A process belongs to a box if its environment says so: BOX_VARIABLE holds the box's random id. Those
in a pod's containers have an environment of their own, but are in a control group that holds the
id. Processes are accessed through pidfds, so that none with a reused id is ever killed.
`registry.py` decides which boxes are left over.
"""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tools.cluster.components import Component
from tools.cluster.errors import BoxError

BOX_VARIABLE = "LASTMILE_BOX"
COMPONENT_VARIABLE = "LASTMILE_BOX_COMPONENT"
EXEC_BOUND = Path(__file__).with_name("exec_bound.py")
CHILD = "'s child"  # after the name of the component that started it, such as containerd's shims
IN_POD = "pod"  # what stands for the component of a process in a container
ZOMBIE = "Z"  # a process that has ended, as proc(5) writes it in stat
LISTENING = "0A"  # TCP_LISTEN, as /proc/net/tcp writes it
KILL_TIMEOUT_SECONDS = 30.0  # a killed process is gone at once, unless the disk is stuck

# What this process has started, by box, for as long as it may have to be reaped.
_children: dict[str, list[subprocess.Popen[bytes]]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A process of a box that runs now."""

    pid: int
    component: str


def spawn(
    component: Component, box_id: str, folder: Path, *, detached: bool
) -> subprocess.Popen[bytes]:
    """Start a component in a session of its own, its output in its log.

    Args:
        component: what to run.
        box_id: of the box that it belongs to.
        folder: its working directory and home.
        detached: whether it outlives this process.
    """
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        BOX_VARIABLE: box_id,
        COMPONENT_VARIABLE: component.name,
    }
    # The kernel watches the thread that forks, not the process: from any other than the main
    # thread, which ends last, the registry alone cleans up.
    bound = not detached and threading.current_thread() is threading.main_thread()
    wrapper = [sys.executable, "-I", "-S", str(EXEC_BOUND), str(os.getpid())] if bound else []
    component.log.parent.mkdir(parents=True, exist_ok=True)
    with component.log.open("ab") as log:
        process = subprocess.Popen(
            [*wrapper, *component.command],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=component.keeps,
        )
    _children.setdefault(box_id, []).append(process)
    return process


def find_processes(box_id: str) -> list[Found]:
    """Return the processes of a box that run now."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            component = _component_of(int(entry.name), box_id)
            if component is not None:
                found.append(Found(pid=int(entry.name), component=component))
    return found


def is_listening(box_id: str, port: int) -> bool:
    """Return whether a process of the box listens on the port.

    An answer alone proves nothing: another process may have taken the port, even the same component
    of another box.
    """
    processes = find_processes(box_id)
    return any(_listeners(found.pid, port) & _open_files(found.pid) for found in processes)


def kill_processes(box_id: str) -> int:
    """Kill every process of a box, wait for their end, and return their number.

    By SIGKILL, since the box's data is deleted anyway.
    """
    num_killed = 0
    deadline = time.monotonic() + KILL_TIMEOUT_SECONDS
    # Again, until none is found: one may have been started while the list was made.
    while found := find_processes(box_id):
        for process in found:
            num_killed += _kill(process.pid, box_id, deadline)
        if time.monotonic() > deadline:
            raise BoxError(f"processes {[p.pid for p in found]} do not end after SIGKILL")
    for child in _children.pop(box_id, []):
        child.wait(KILL_TIMEOUT_SECONDS)
    return num_killed


def _kill(pid: int, box_id: str, deadline: float) -> bool:
    with _pidfd(pid) as descriptor:
        # Only now does `pid` stand for the process behind the descriptor, whatever is reused.
        if descriptor is None or _component_of(pid, box_id) is None:
            return False
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        gone = select.poll()
        gone.register(descriptor, select.POLLIN)
        gone.poll(max(0.0, deadline - time.monotonic()) * 1000)
    return True


@contextmanager
def _pidfd(pid: int) -> Iterator[int | None]:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _listeners(pid: int, port: int) -> set[str]:
    """Return the sockets that listen on the port in the process's network; proc(5), net/tcp."""
    rows: list[list[str]] = []
    with suppress(OSError):  # it has ended
        rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    listening = (row for row in rows if row[1].endswith(f":{port:04X}") and row[3] == LISTENING)
    return {f"socket:[{row[9]}]" for row in listening}


def _open_files(pid: int) -> set[str]:
    opened = set()
    with suppress(OSError):  # it has ended
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # it was closed
                opened.add(os.readlink(entry))
    return opened


def _component_of(pid: int, box_id: str) -> str | None:
    """Return the component's name if the process belongs to the box; a zombie no longer does."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        is_child = os.getsid(pid) != pid  # a component has a session of its own, see `spawn`
    except OSError:  # gone, or another user's
        return None
    if f"{BOX_VARIABLE}={box_id}".encode() not in environment:
        return IN_POD if _is_in_pod(pid, box_id) else None
    prefix = f"{COMPONENT_VARIABLE}=".encode()
    names = (entry.removeprefix(prefix) for entry in environment if entry.startswith(prefix))
    return next(names, b"?").decode() + CHILD * is_child


def _is_in_pod(pid: int, box_id: str) -> bool:
    """Return whether the process runs in a container of the box; only root's boxes have some."""
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text()
        # The name before it may hold anything, spaces and parentheses too.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return f"/{group_name(box_id)}/" in groups and state != ZOMBIE


def group_name(box_id: str) -> str:
    """Return the name of the control group, in each hierarchy, that a box's pods are in."""
    return f"lastmile-{box_id}"
