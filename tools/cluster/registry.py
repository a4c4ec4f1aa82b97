"""The boxes of this user on this machine: their processes, their records, and the removal of both.

A process belongs to a box if its environment says so: BOX_VARIABLE holds the box's random id.
Processes in a pod's containers have other environments, but are in a control group that holds the
id. Processes are accessed through pidfds, so that none with a reused id is ever killed.

A box is recorded before its first process starts. Its record is a file in the registry's folder,
beside a lock that the owner holds as long as it lives: the kernel releases it however the owner
ends, and no other process is ever taken for the owner. A detached box (`make cluster-up`) has an
owner only while it starts. `sweep` removes the boxes without an owner.
"""

import fcntl
import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TextIO

from tools.cluster import node_machine
from tools.cluster.box import MARKER, BoxError
from tools.cluster.components import Component
from tools.cluster.node_machine import group_name
from tools.go_tools import cache_root, say

VERSION = 1  # of the record's format
ID_BYTES = 12

# Open for as long as this process owns the box: closing a file releases its lock.
_held: dict[str, TextIO] = {}
BOX_VARIABLE = "LASTMILE_BOX"
COMPONENT_VARIABLE = "LASTMILE_BOX_COMPONENT"
EXEC_BOUND = Path(__file__).with_name("exec_bound.py")
CHILD = "'s child"  # follows the name of the component that started it, such as containerd
IN_POD = "pod"  # the component of a process in a container
ZOMBIE = "Z"  # an ended process, in proc(5)'s stat
LISTENING = "0A"  # TCP_LISTEN, in /proc/net/tcp
KILL_TIMEOUT_SECONDS = 30.0  # a killed process ends at once, unless a disk hangs

# Processes that this process has started and may have to reap, by box.
_children: dict[str, list[subprocess.Popen[bytes]]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Record of a box.

    Attributes:
        id: a random id, which its processes carry.
        folder: the path of its folder.
        is_detached: whether it runs and outlives its starter.
        version: the version of this format.
    """

    id: str
    folder: str
    is_detached: bool = False
    version: int = VERSION

    @property
    def path(self) -> Path:
        return registry_root() / f"{self.id}.json"

    @property
    def lock_path(self) -> Path:
        return registry_root() / f"{self.id}.lock"

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


def registry_root() -> Path:
    """Return the folder of the records."""
    return cache_root().with_name("boxes")


def parse_record(text: str) -> Record:
    """Read a record.

    Raises:
        BoxError: it has another version, or is no record.
    """
    try:
        values = json.loads(text)
        version = values["version"]
    except (ValueError, TypeError, KeyError):
        raise BoxError(f"a box's record must be JSON with a version, got {text!r}") from None
    if version != VERSION:
        raise BoxError(f"a box's record must have version {VERSION}, got {version!r}")
    return Record(**values)


def register(folder: Path) -> Record:
    """Record a new box in an empty folder and own it.

    The logs of a former box there are deleted.

    Raises:
        BoxError: something else is in the folder already.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _delete_remains(folder)
    if any(folder.iterdir()):
        raise BoxError(f"{folder}: must be empty to put a cluster in; name another or empty it")
    root = registry_root()
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    record = Record(id=secrets.token_hex(ID_BYTES), folder=str(folder.resolve()))
    lock = record.lock_path.open("x")
    fcntl.flock(lock, fcntl.LOCK_EX)
    _held[record.id] = lock
    _write(record)
    return record


def detach(record: Record) -> Record:
    """Give up owning a box that is up, and leave it running."""
    detached = replace(record, is_detached=True)
    _write(detached)
    _let_go(detached)
    return detached


def remove(record: Record, *, keep: tuple[str, ...] = ()) -> int:
    """Kill a box's processes, remove its traces and its record; return the number of processes.

    Args:
        record: the box's.
        keep: names of files that stay in its folder, which then counts as a former box's.
    """
    num_killed = kill_processes(record.id)
    node_machine.clear(record.id, Path(record.folder))
    _empty_folder(record, keep)
    record.path.unlink(missing_ok=True)
    record.lock_path.unlink(missing_ok=True)
    _let_go(record)
    return num_killed


def find_record(folder: Path) -> Record | None:
    """Return the record of the box in `folder`, whether or not the folder still exists."""
    wanted = str(folder.resolve())
    return next((record for record in _records() if record.folder == wanted), None)


def sweep() -> list[Record]:
    """Remove every box whose owner is gone; return their records."""
    return [record for record in _records() if _sweep_one(record)]


def _sweep_one(record: Record) -> bool:
    if record.is_detached and Path(record.folder).exists():
        return False
    with _trying_lock(record) as is_ours:
        # Another sweep may have been here between listing and locking.
        if not is_ours or not record.path.exists():
            return False
        if parse_record(record.path.read_text()).is_detached and Path(record.folder).exists():
            return False
        num_killed = remove(record)
    say(f"removed {record.folder}, left by a killed run, and {num_killed} processes of it")
    return True


def _records() -> Iterator[Record]:
    for path in sorted(registry_root().glob("*.json")):
        try:
            yield parse_record(path.read_text())
        except FileNotFoundError:
            continue
        except BoxError as error:
            say(f"skipping {path}: {error}")


@contextmanager
def _trying_lock(record: Record) -> Iterator[bool]:
    """Hold the owner's lock if no living process does."""
    if record.id in _held:
        yield False
        return
    with record.lock_path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _let_go(record: Record) -> None:
    lock = _held.pop(record.id, None)
    if lock is not None:
        # Explicitly: a forked child has the same lock open.
        fcntl.flock(lock, fcntl.LOCK_UN)
        lock.close()


def _write(record: Record) -> None:
    """Write the record to the registry, then to the box's folder, each whole or not at all."""
    for path in (record.path, Path(record.folder, MARKER)):
        partial = path.with_suffix(".partial")
        partial.write_text(record.to_json())
        os.replace(partial, path)


def _record_in(folder: Path) -> Record | None:
    try:
        return parse_record((folder / MARKER).read_text())
    except (OSError, BoxError):
        return None


def _delete_remains(folder: Path) -> None:
    former = _record_in(folder)
    if former is not None and not former.path.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)


def _empty_folder(record: Record, keep: tuple[str, ...]) -> None:
    """Delete the files in the folder of a box, unless the folder belongs to another box."""
    folder = Path(record.folder)
    found = _record_in(folder)
    if found is None or found.id != record.id:
        return
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for path in folder.iterdir():
        if path.name in {*keep, MARKER}:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


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
        component: the process to start.
        box_id: the id of its box.
        folder: its working directory and home.
        detached: whether it outlives this process.
    """
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        BOX_VARIABLE: box_id,
        COMPONENT_VARIABLE: component.name,
    }
    # The kernel watches the thread that forks, not the process. The main thread ends last; after
    # a start from any other thread, only the registry cleans up.
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
    # Repeat until none is found: one may start while the list is made.
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
        # From here on, `pid` is the process behind the descriptor, even if ids are reused.
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
    """Return the component's name if the process belongs to the box and is no zombie."""
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
        # The name before it may contain any character, even spaces and parentheses.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return f"/{group_name(box_id)}/" in groups and state != ZOMBIE
