"""Memory that a reader and a rank on the same machine share: pieces are written to it, and used.

A reader writes the pieces of a call into a segment, an anonymous file of its own (`memfd`); the
rank maps that through `/proc` and hands out views of it, which may be written to. Ray's store would
take one copy more from the reader, and one from the rank, whose batches are read-only there. Once
the last view of a segment is gone, the rank says so with its next call, and the reader writes there
again: pages that stay in place cost nothing, fresh ones as much as the copy. A segment that is too
short is made longer under its name. Nothing has a name in a file system, so what is left of a
process that was killed goes with it.

    reader   Segments.take -> write -> Segment, in the answer of the call
    rank     Mapped.open(Segment) -> views ... gone -> Mapped.take_unused, in the next call
"""

from __future__ import annotations

import mmap
import os
import secrets
import sys
import weakref
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pipeline_runtime.arrays.packing import Bytes

# Pythons that were built for an old C library have no memfd.
CAN_SHARE: Final = sys.platform == "linux" and hasattr(os, "memfd_create")
# A segment has room for so much more than was asked for: the next piece may be a little larger.
_SPARE: Final = 1.125


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Where the bytes of a call lie."""

    name: str  # no other segment of any process ever had it
    process: int  # the reader's
    descriptor: int  # there
    capacity: int  # bytes
    num_bytes: int  # in use


@dataclass(slots=True)
class _Own:
    """A segment, as its reader keeps it."""

    descriptor: int
    memory: mmap.mmap
    rank: int | None = None  # the process that uses it


class Segments:
    """A reader's segments."""

    def __init__(self) -> None:
        self._segments: dict[str, _Own] = {}

    def take(self, num_bytes: int, rank: int) -> tuple[Segment, Bytes]:
        """A segment that nobody uses, and its first bytes, to write to.

        Args:
            rank: process number of the one that will use it.

        Raises OSError where no memory can be shared: it is forbidden, or a limit is reached.
        """
        self._free_of_dead()
        unused = [name for name, own in self._segments.items() if own.rank is None]
        unused.sort(key=lambda name: len(self._segments[name].memory))
        fitting = (name for name in unused if len(self._segments[name].memory) >= num_bytes)
        name = next(fitting, None) or self._make_room(unused[-1] if unused else None, num_bytes)
        own = self._segments[name]
        own.rank = rank
        segment = Segment(
            name=name,
            process=os.getpid(),
            descriptor=own.descriptor,
            capacity=len(own.memory),
            num_bytes=num_bytes,
        )
        return segment, np.frombuffer(own.memory, dtype=np.uint8)[:num_bytes]

    def read(self, segment: Segment) -> Bytes:
        """Its bytes, for a rank that cannot map it."""
        own = self._segments[segment.name]
        return np.frombuffer(own.memory, dtype=np.uint8)[: segment.num_bytes]

    def free(self, names: Iterable[str]) -> None:
        """Nobody uses these any more."""
        for name in names:
            self._segments[name].rank = None

    def close(self) -> None:
        """Give back what no view of this process holds; a process that ends need not."""
        for own in self._segments.values():
            os.close(own.descriptor)
        self._segments = {}

    def _make_room(self, name: str | None, num_bytes: int) -> str:
        """A new segment, or a longer one."""
        capacity = -(-int(num_bytes * _SPARE) // mmap.PAGESIZE) * mmap.PAGESIZE
        capacity = max(mmap.PAGESIZE, capacity)
        if name is not None:
            descriptor = self._segments[name].descriptor
            os.ftruncate(descriptor, capacity)
            self._segments[name] = _Own(descriptor, _map(descriptor))
            return name
        name = secrets.token_hex(8)
        descriptor = os.memfd_create(_file_name(name), os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, capacity)
            self._segments[name] = _Own(descriptor, _map(descriptor))
        except OSError:
            os.close(descriptor)
            raise
        return name

    def _free_of_dead(self) -> None:
        ranks = {own.rank for own in self._segments.values() if own.rank is not None}
        dead = {rank for rank in ranks if not _is_alive(rank)}
        self.free(name for name, own in self._segments.items() if own.rank in dead)


class _View:
    """What views of a segment refer to; its end is the end of the last of them."""

    __slots__ = ("__array_interface__", "__weakref__", "_memory")

    def __init__(self, memory: Bytes) -> None:
        self._memory = memory
        self.__array_interface__: dict[str, Any] = memory.__array_interface__


class Mapped:
    """The segments of all readers, as a rank's process sees them."""

    def __init__(self) -> None:
        self._memory: dict[str, dict[str, Bytes]] = defaultdict(dict)  # by reader and name
        # Thread-safe: the last view may go in any thread.
        self._unused: dict[str, deque[str]] = defaultdict(deque)

    def open(self, reader: str, segment: Segment) -> Bytes:
        """Its bytes. Raises OSError if this process may not see the reader's memory."""
        memory = self._memory[reader].get(segment.name)
        if memory is None or len(memory) < segment.capacity:
            path = f"/proc/{segment.process}/fd/{segment.descriptor}"
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                # Where processes are not numbered as they are for the reader, it is another's file.
                if _file_name(segment.name) not in os.readlink(f"/proc/self/fd/{descriptor}"):
                    raise FileNotFoundError(f"{path} is not segment {segment.name}")
                memory = np.frombuffer(_map(descriptor), dtype=np.uint8)
            finally:
                os.close(descriptor)
            self._memory[reader][segment.name] = memory
        view = _View(memory[: segment.num_bytes])
        weakref.finalize(view, self._unused[reader].append, segment.name).atexit = False
        return np.asarray(view)

    def take_unused(self, reader: str) -> tuple[str, ...]:
        """Names of segments that nothing refers to any more; each is told once."""
        unused = self._unused[reader]
        return tuple(unused.popleft() for _ in range(len(unused)))

    def forget(self, reader: str) -> None:
        """A reader has gone: memory that views refer to stays until they go."""
        self._memory.pop(reader, None)
        self._unused.pop(reader, None)


def find_process_space() -> str | None:
    """What is equal for processes that know each other by the same numbers; None if unknown."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # another user's
    return True


def _file_name(name: str) -> str:
    return f"lastmile-{name}"


def _map(descriptor: int) -> mmap.mmap:
    return mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)


# Of this process: the training's and the evaluation's crew ask the same readers.
MAPPED: Final = Mapped()
