"""The registry of this user's boxes on this machine; it finds those without an owner.

A box is recorded before its first process starts. Its record is a file in the registry's folder,
beside a lock that the owner holds as long as it lives: the kernel lets go of it however the owner
ends, and no other process is ever taken for the owner. A detached box (`make cluster-up`) has an
owner only while it starts. `control_plane.py` records boxes; `sweep` removes those without owner.
"""

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TextIO

from tools.cluster.errors import BoxError
from tools.cluster.machine.processes import kill_processes
from tools.cluster.node import remains
from tools.go_tools import cache_root, say

VERSION = 1  # of the record's format
ID_BYTES = 12
MARKER = "box.json"  # in a box's folder: its record, by which it is known to be one

# Open for as long as this process owns the box: closing lets go of the lock.
_held: dict[str, TextIO] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Record of a box.

    Attributes:
        id: random; its processes carry it.
        folder: its own.
        is_detached: whether it runs and outlives its starter.
        version: of this format.
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
        BoxError: it has another version, or is none.
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
        record: of the box.
        keep: files that stay in its folder, which is marked as a former box's.
    """
    num_killed = kill_processes(record.id)
    remains.clear(record.id, Path(record.folder))
    _empty_folder(record, keep)
    record.path.unlink(missing_ok=True)
    record.lock_path.unlink(missing_ok=True)
    _let_go(record)
    return num_killed


def find_record(folder: Path) -> Record | None:
    """Return the record of the box in `folder`, whether or not the folder still exists."""
    wanted = str(folder.resolve())
    return next((record for record in _records() if record.folder == wanted), None)


def is_box_kubeconfig(kubeconfig: Path) -> bool:
    """Return whether a kubeconfig belongs to a box, by the record beside it."""
    return (kubeconfig.resolve().parent / MARKER).exists()


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
            say(f"passing over {path}: {error}")


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
    """Delete what is in the box's folder; never a folder that was not, or is no longer, its own."""
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
