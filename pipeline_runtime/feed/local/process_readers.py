"""Readers that are processes of this machine, without Ray.

They serve steps that call the user's Python, and trainers that threads would slow down. Each is a
new Python (`reader_process`) at the end of a pipe. It gets calls for chunks and answers them in
order. The chunks are in shared memory (`segments`), or come through the pipe where memory cannot be
shared. A reader that dies is replaced. When this process ends, for whatever reason, the pipes close
and the readers end; a second pipe, the lifeline, ends a reader whose code holds Python's lock.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import pyarrow as pa

from pipeline_runtime.errors import FeedError
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.local.reader_process import Answer, Failure, Free, Make, ReadAhead
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.feed.reader_feed import ReaderFeed, ReaderLost
from pipeline_runtime.feed.transport.segments import CAN_SHARE, MAPPED
from pipeline_runtime.feed.transport.wire import (
    Block,
    Sending,
    SharedBlock,
    Wire,
    unpack,
    unpack_shared,
)
from pipeline_runtime.plan.bucketed_sides import BucketedParts
from pipeline_runtime.plan.exchange import ExchangedParts
from pipeline_runtime.plan.groups import Group
from pipeline_runtime.plan.model import StreamPlan
from pipeline_runtime.plan.part_files import share_files
from pipeline_runtime.steps.base import SideTable

# A waiting trainer checks its readers this often.
_WAIT_SECONDS = 1.0
# Readers have this long to end before they are killed.
_END_SECONDS = 2.0
# The run ends after so many readers in a row that did not start.
_MAX_FAILED_STARTS = 10
# The end of the readers' output has this long to be printed.
_PRINT_SECONDS = 1.0
# Names are unique in this process, since `MAPPED` knows readers of all pools by them.
_NUMBERS = itertools.count()
_PROGRAM = "from pipeline_runtime.feed.local.reader_process import main; main()"


@dataclass(slots=True)
class _Reader:
    """A process that makes chunks."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    lifeline: int  # descriptor of a pipe's end; once it is closed, the reader ends
    is_up: bool = False


class ProcessPool:
    """The processes; training and evaluation share them. Only one thread uses it at a time.

    Args:
        streams: by role, as readers get them.
    """

    def __init__(self, streams: Mapping[str, Stream], num_readers: int) -> None:
        # A file, since a pipe would fill up before a new process reads from it.
        self._streams = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the pool
        pickle.dump(dict(streams), self._streams)
        self._streams.flush()
        self._tickets = itertools.count()
        self._readers: dict[str, _Reader] = {}
        self._open: dict[int, str] = {}  # ticket of an unanswered call -> its reader
        self._answers: dict[int, Answer | Failure] = {}
        self._dropped: set[int] = set()  # tickets whose chunks are no longer needed
        self._failed_starts = 0
        output, self._output = os.pipe()
        self._printer = threading.Thread(
            target=_print_lines, args=(output,), name="lastmile-output", daemon=True
        )
        self._printer.start()
        for _ in range(num_readers):
            self._start()

    def _start(self) -> None:
        ours, theirs = Pipe()
        held, lifeline = os.pipe()
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        given = (theirs.fileno(), self._streams.fileno(), held)
        with theirs, os.fdopen(held):
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, *map(str, given)],
                pass_fds=given,
                stdin=subprocess.DEVNULL,
                # What the user's functions print is no result of the command.
                stdout=self._output,
                stderr=self._output,
                # As in a worker of Ray: there are as many readers as cores.
                env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path},
                start_new_session=True,  # the terminal's Ctrl-C is for the trainer
            )
        self._readers[f"process-{next(_NUMBERS)}"] = _Reader(
            process=process, pipe=ours, lifeline=lifeline
        )

    @property
    def is_growing(self) -> bool:
        """Return whether readers are starting."""
        return any(not reader.is_up for reader in self._readers.values())

    def readers(self) -> Sequence[str]:
        """Return the readers that can be asked now. Raises FeedError if none starts at all."""
        if self.is_growing:
            self.receive(0.0)
        return tuple(name for name, reader in self._readers.items() if reader.is_up)

    def send(self, reader: str, message: Make | Free | ReadAhead) -> None:
        """Send a message; `receive` finds a reader that no longer runs."""
        if reader in self._readers:
            with contextlib.suppress(OSError):
                self._readers[reader].pipe.send(message)

    def ask(self, reader: str, role: str, tasks: Sequence[Task], message: Make) -> int:
        """Ask for chunks, and return the call's ticket."""
        ticket = next(self._tickets)
        self._open[ticket] = reader
        self.send(reader, replace(message, ticket=ticket, role=role, tasks=tuple(tasks)))
        return ticket

    def receive(self, seconds: float) -> None:
        """Take the messages of the readers; wait at most `seconds` for the first."""
        pipes = {reader.pipe: name for name, reader in self._readers.items()}
        for pipe in wait(list(pipes), seconds):
            assert isinstance(pipe, Connection)
            self._take_message(pipes[pipe], pipe)

    def _take_message(self, name: str, pipe: Connection) -> None:
        try:
            message: Answer | Failure | None = pipe.recv()
        except (EOFError, OSError):
            self._bury(name)
            return
        self._readers[name].is_up, self._failed_starts = True, 0
        if message is None:  # it has started
            return
        self._open.pop(message.ticket)
        if message.ticket in self._dropped:
            self._dropped.discard(message.ticket)
            if isinstance(message, Answer) and isinstance(message.block, SharedBlock):
                self.send(name, Free(segment=message.block.segment.name))
        else:
            self._answers[message.ticket] = message

    def _bury(self, name: str) -> None:
        """Replace a reader that died; `take` raises ReaderLost for its calls."""
        reader = self._readers.pop(name)
        _end(reader)
        MAPPED.forget(name)
        for ticket in [ticket for ticket, owner in self._open.items() if owner == name]:
            del self._open[ticket]
            self._dropped.discard(ticket)
        self._answers = {t: a for t, a in self._answers.items() if not _is_in_memory_of(reader, a)}
        self._failed_starts += not reader.is_up
        if self._failed_starts >= _MAX_FAILED_STARTS:
            raise FeedError(
                f"no reader process comes up, {self._failed_starts} tries; the last ended with "
                f"code {reader.process.returncode}, see the output above"
            )
        self._start()

    def find_answered(self, tickets: Sequence[Any]) -> Hashable | None:
        """Return a call that is answered, or whose reader died."""
        return next((t for t in tickets if t in self._answers or t not in self._open), None)

    def take(self, ticket: int) -> Answer:
        """Return an answer. Raises ReaderLost, or the error of the work."""
        answer = self._answers.pop(ticket, None)
        if answer is None:
            raise ReaderLost
        if isinstance(answer, Failure):
            raise answer.build_error()
        return answer

    def drop(self, ticket: int, reader: str) -> None:
        """Drop a call; its chunks are freed once they are made."""
        answer = self._answers.pop(ticket, None)
        if ticket in self._open:
            self._dropped.add(ticket)
        elif isinstance(answer, Answer) and isinstance(answer.block, SharedBlock):
            self.send(reader, Free(segment=answer.block.segment.name))

    def close(self) -> None:
        """End the readers."""
        for reader in self._readers.values():
            reader.pipe.close()
        deadline = time.monotonic() + _END_SECONDS  # of all together
        for name, reader in self._readers.items():
            _end(reader, max(0.0, deadline - time.monotonic()))
            MAPPED.forget(name)
        self._readers = {}
        self._streams.close()
        if self._output >= 0:  # a second call must not close a file of somebody else
            os.close(self._output)
            self._output = -1
        self._printer.join(_PRINT_SECONDS)  # a program that user code started may keep it open


def _print_lines(output: int) -> None:
    """Print what readers write to a pipe, as if this process did: above a progress display."""
    with open(output, encoding="utf-8", errors="backslashreplace") as lines:
        for line in lines:
            # Without a terminal, go on to empty the pipe: a reader waits if it is full.
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(line)


def _is_in_memory_of(reader: _Reader, answer: Answer | Failure) -> bool:
    """Return whether the chunks of an answer cannot be mapped once this reader is gone."""
    if isinstance(answer, Failure) or not isinstance(answer.block, SharedBlock):
        return False
    return answer.block.segment.process == reader.process.pid


def _end(reader: _Reader, seconds: float = _END_SECONDS) -> None:
    reader.pipe.close()
    try:
        reader.process.wait(seconds)
    except subprocess.TimeoutExpired:
        reader.process.kill()
        reader.process.wait()
    os.close(reader.lifeline)


class ProcessCrew:
    """The pool's readers as one feed sees them; see `reader_feed.Crew`."""

    call_seconds = 0.0  # a call costs next to nothing

    def __init__(self, pool: ProcessPool, sending: Sending, *, owns_pool: bool) -> None:
        self._pool = pool
        self._sending = sending
        self._owns_pool = owns_pool
        self._shares = sending.shared_memory and CAN_SHARE
        self._calls: dict[Any, str] = {}  # ticket of a call that was not taken -> its reader

    def readers(self) -> Sequence[str]:
        return self._pool.readers()

    @property
    def is_growing(self) -> bool:
        """Return whether other readers are starting."""
        return self._pool.is_growing

    def worker(self, reader: str) -> str:
        return "processes"

    def ask(self, reader: str, role: str, tasks: Sequence[Task]) -> Hashable:
        if self._sending.reads_ahead:
            self._pool.send(reader, ReadAhead(role=role, task=tasks[0]))
        message = Make(
            wire=Wire(sparse=self._sending.sparse),
            shares=self._shares,
            fills=not (self._sending.sparse and self._sending.to_gpus),
            unused=MAPPED.take_unused(reader),
        )
        ticket = self._pool.ask(reader, role, tasks, message)
        self._calls[ticket] = reader
        return ticket

    def wait(self, tickets: Sequence[Any], waited: Waited) -> Hashable | None:
        started = time.perf_counter()
        found = self._pool.find_answered(tickets)
        if found is None:
            self._pool.receive(_WAIT_SECONDS)
            found = self._pool.find_answered(tickets)
        waited.production += time.perf_counter() - started
        return found

    def take(self, ticket: Any, waited: Waited) -> Sequence[Chunk]:
        started = time.perf_counter()
        reader = self._calls.pop(ticket)
        block = self._pool.take(ticket).block
        try:
            return self._unpack(block, reader)
        finally:
            waited.transfer += time.perf_counter() - started

    def _unpack(self, block: Block, reader: str) -> Sequence[Chunk]:
        if not isinstance(block, SharedBlock):
            return unpack(block)
        try:
            return unpack_shared(block, MAPPED.open(reader, block.segment))
        except OSError as error:  # the next segment could not be mapped either
            self._shares = False
            self._pool.send(reader, Free(segment=block.segment.name))
            raise ReaderLost from error

    def lose(self, reader: str) -> None:
        """Drop the reader's calls; a reader that still runs stays in use."""
        for ticket in [ticket for ticket, owner in self._calls.items() if owner == reader]:
            self._pool.drop(ticket, reader)
            del self._calls[ticket]

    def close(self) -> None:
        for ticket, reader in self._calls.items():
            self._pool.drop(ticket, reader)
        self._calls = {}
        if self._owns_pool:
            self._pool.close()


@dataclass(kw_only=True)
class ProcessReaders:
    """Opens feeds over processes, which start with the first feed and end with `close`."""

    streams: Mapping[str, Stream]
    sending: Sending
    num_readers: int
    _pool: ProcessPool | None = None
    _ends: list[Callable[[], None]] = field(default_factory=list)  # of sharing side tables

    def open(self, role: str, rank: int, groups: Sequence[Group], *, in_order: bool) -> ReaderFeed:
        """Open a feed of these groups; see `feed.base.FeedSource`."""
        if self._pool is None:
            self._pool = self.start()
        return ReaderFeed(
            crew=ProcessCrew(self._pool, self.sending, owns_pool=False),
            role=role,
            groups=groups,
            chunk_rows=self.streams[role].chunk_rows,
            in_order=in_order,
        )

    def start(self) -> ProcessPool:
        """Start another pool. Raises SourceError if a side table cannot be read."""
        streams = {
            role: replace(stream, plan=share_side_tables(stream.plan, self._ends))
            for role, stream in self.streams.items()
        }
        return ProcessPool(streams, self.num_readers)

    def close(self) -> None:
        """End the processes that the feeds share."""
        if self._pool is not None:
            self._pool.close()
        for end in self._ends:
            end()
        self._pool, self._ends = None, []


@dataclass(frozen=True, slots=True)
class _SharedLoader:
    """Maps a side table from the memory of the process that read it."""

    process: int
    descriptor: int

    def __call__(self) -> pa.Table:
        with pa.memory_map(f"/proc/{self.process}/fd/{self.descriptor}") as source:
            return pa.ipc.open_file(source).read_all()


def share_side_tables(plan: StreamPlan, ends: list[Callable[[], None]]) -> StreamPlan:
    """Read every side table once, and let readers map it: its parts when one of them needs it.

    Args:
        ends: gets functions that end the sharing, to be called when the readers have ended.
    """
    if not CAN_SHARE:
        return plan
    shared: dict[int, Any] = {}

    def share(transform: Any) -> Any:
        side = getattr(transform, "side_table", None)
        if not isinstance(side, SideTable):
            return transform
        if id(side) not in shared:
            shared[id(side)] = _share_side_table(side, ends)
        return replace(transform, side_table=shared[id(side)])

    stages = tuple(
        replace(stage, steps=tuple(replace(s, transform=share(s.transform)) for s in stage.steps))
        for stage in plan.stages
    )
    return replace(plan, stages=stages)


def _share_side_table(side: SideTable, ends: list[Callable[[], None]]) -> SideTable:
    if side.parts is None:
        return replace(side, load=_share_table(side.load(), ends))
    parts = side.parts
    if isinstance(parts, ExchangedParts):  # else each reader would do it again
        parts = parts.finish()
    if isinstance(parts, BucketedParts):
        files = share_files(side.digest)
        ends.append(files.delete)
        parts = replace(parts, files=files)
    return replace(side, parts=parts)


def _share_table(table: pa.Table, ends: list[Callable[[], None]]) -> _SharedLoader:
    descriptor = os.memfd_create("lastmile-side-table", os.MFD_CLOEXEC)
    ends.append(partial(os.close, descriptor))
    with (
        os.fdopen(os.dup(descriptor), "wb") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table)
    return _SharedLoader(os.getpid(), descriptor)
