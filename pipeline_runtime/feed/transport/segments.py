"""Shared memory in which a reader passes chunks to a rank on the same machine.

A reader writes the chunks of a call into a segment, an anonymous file (`memfd`). The rank maps it
through `/proc` and returns writable views of it. Ray's store would cost one more copy in the
reader, and one in the rank, since its batches are read-only. After the last view of a segment is
released, the rank reports that with its next call, and the reader writes to the segment again:
pages that stay mapped cost nothing, new ones cost as much as the copy. A segment that is too short
is extended under the same name. No segment has a name in a file system, so the memory of a killed
process is freed.

    reader   Segments.take -> write -> Segment, in the answer of the call
    rank     Mapped.open(Segment) -> views ... released -> Mapped.take_unused, in the next call
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

# Python has no memfd if it was built for an old C library.
CAN_SHARE: Final = sys.platform == "linux" and hasattr(os, "memfd_create")
# A segment is larger by this factor than needed, since the next chunk may be a little larger.
_SPARE: Final = 1.125


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The place of a call's bytes."""

    name: str  # unique among all segments of all processes
    process: int  # process number of the reader
    descriptor: int  # in the reader's process
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
        """Return an unused segment, and its first bytes, to write to.

        Args:
            rank: process number of the rank that will use it.

        Raises OSError if no memory can be shared: it is forbidden, or a limit is reached.
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
        """Return a segment's bytes, for a rank that cannot map it."""
        own = self._segments[segment.name]
        return np.frombuffer(own.memory, dtype=np.uint8)[: segment.num_bytes]

    def free(self, names: Iterable[str]) -> None:
        """Mark these segments as unused."""
        for name in names:
            self._segments[name].rank = None

    def close(self) -> None:
        """Free the segments to which no view of this process refers; not needed at its end."""
        for own in self._segments.values():
            os.close(own.descriptor)
        self._segments = {}

    def _make_room(self, name: str | None, num_bytes: int) -> str:
        """Create a segment, or extend the named one; return its name."""
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
    """The object to which all views of a segment refer; it is freed with the last of them."""

    __slots__ = ("__array_interface__", "__weakref__", "_memory")

    def __init__(self, memory: Bytes) -> None:
        self._memory = memory
        self.__array_interface__: dict[str, Any] = memory.__array_interface__


class Mapped:
    """The segments of all readers, as a rank's process sees them."""

    def __init__(self) -> None:
        self._memory: dict[str, dict[str, Bytes]] = defaultdict(dict)  # by reader and name
        # Thread-safe: the last view may be released in any thread.
        self._unused: dict[str, deque[str]] = defaultdict(deque)

    def open(self, reader: str, segment: Segment) -> Bytes:
        """Return a segment's bytes. Raises OSError if this process cannot map it."""
        memory = self._memory[reader].get(segment.name)
        if memory is None or len(memory) < segment.capacity:
            path = f"/proc/{segment.process}/fd/{segment.descriptor}"
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                # In another namespace of process numbers, it is the file of another process.
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
        """Return the names of segments to which nothing refers any more, each name once."""
        unused = self._unused[reader]
        return tuple(unused.popleft() for _ in range(len(unused)))

    def forget(self, reader: str) -> None:
        """Forget a reader; memory with views stays until they are released."""
        self._memory.pop(reader, None)
        self._unused.pop(reader, None)


def find_process_space() -> str | None:
    """Return the namespace of process numbers of this process; None if unknown."""
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
        return True  # a process of another user
    return True


def _file_name(name: str) -> str:
    return f"lastmile-{name}"


def _map(descriptor: int) -> mmap.mmap:
    return mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)


# One for this process: the crews of training and evaluation ask the same readers.
MAPPED: Final = Mapped()
