"""A process that makes chunks, and its messages; `process_readers` starts it.

Its first thread takes messages, so it begins at once to read ahead, and notices at once that the
trainer has ended. A second thread makes the chunks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import queue
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from multiprocessing.connection import Connection
from typing import Any

from pipeline_runtime import errors
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.making.maker import ChunkMaker, Stream
from pipeline_runtime.feed.transport.segments import Segments
from pipeline_runtime.feed.transport.wire import Block, Wire, pack_all, share
from pipeline_runtime.importing import importing
from pipeline_runtime.user_output import showing_logs


@dataclass(frozen=True, slots=True, kw_only=True)
class Make:
    """Chunks to make."""

    ticket: int = -1
    role: str = ""
    tasks: Sequence[Task] = ()
    wire: Wire
    shares: bool  # answer through shared memory
    fills: bool  # include the padding of batches
    unused: Sequence[str] = ()  # names of segments that the trainer no longer needs


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAhead:
    """A chunk whose rows are to be read while others are made: it is asked for next."""

    role: str
    task: Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """A segment that the trainer will not use."""

    segment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The chunks of a call."""

    ticket: int
    block: Block


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The error that a call raised."""

    ticket: int
    kind: str  # a class of `errors`; empty for an unexpected error
    message: str

    def build_error(self) -> Exception:
        """Return the error to raise in the trainer's process."""
        if not self.kind:
            return RuntimeError(f"a reader process failed:\n{self.message}")
        error: Exception = getattr(errors, self.kind)(self.message)
        return error


# Errors whose only argument is the message; others are sent as their base class among these.
_KINDS = (
    errors.StoreError,
    errors.SourceError,
    errors.StepError,
    errors.FeedError,
    errors.TrainingError,
    errors.OutputRefused,
    errors.OutputError,
    errors.LastmileError,
)


@dataclass(slots=True)
class _Maker:
    """Makes chunks, call after call."""

    pipe: Connection
    trainer: int  # the process that asks
    maker: ChunkMaker
    calls: queue.SimpleQueue[Make | Free] = field(default_factory=queue.SimpleQueue)
    segments: Segments = field(default_factory=Segments)

    def run(self) -> None:
        """Answer calls until the trainer is gone; a failure here ends the process."""
        try:
            while True:
                call = self.calls.get()
                if isinstance(call, Free):
                    self.segments.free([call.segment])
                else:
                    self.pipe.send(self._answer(call))
        except OSError:  # the trainer is gone
            os._exit(0)
        except BaseException:  # noqa: BLE001 - without this thread, the trainer would wait forever
            traceback.print_exc()
            os._exit(1)

    def _answer(self, call: Make) -> Answer | Failure:
        self.segments.free(call.unused)
        try:
            chunks = [self._make(call, *pair) for pair in zip_longest(call.tasks, call.tasks[1:])]
            return Answer(ticket=call.ticket, block=self._pack(call, chunks))
        except errors.LastmileError as error:
            kind = next(kind for kind in _KINDS if isinstance(error, kind))
            return Failure(ticket=call.ticket, kind=kind.__name__, message=str(error))
        except BaseException:  # noqa: BLE001 - the trainer raises it, KeyboardInterrupt included
            return Failure(ticket=call.ticket, kind="", message=traceback.format_exc())

    def _make(self, call: Make, task: Task, following: Task | None) -> Chunk:
        if following is not None and following.group != task.group:
            self.maker.read_ahead(call.role, following, is_next=True)
        return self.maker.make(call.role, task)

    def _pack(self, call: Make, chunks: Sequence[Chunk]) -> Block:
        if call.shares:
            # If memory cannot be shared, or no more of it, chunks go through the pipe.
            with contextlib.suppress(OSError):
                return share(chunks, self.segments, self.trainer, sparse=not call.fills)
        return pack_all(chunks, call.wire)


def _end_with(lifeline: int) -> None:
    """Have the system end this process once the other end of a pipe is closed.

    The default action of SIGIO does so on Linux. No thread could if user code keeps Python's lock.
    """
    if sys.platform == "linux":
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)


def main() -> None:
    """Serve the trainer at the other end of a pipe until it is gone."""
    pipe, file, lifeline = Connection(int(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    _end_with(lifeline)
    # The output is a pipe, which Python would fill before it writes.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a TextIOWrapper
    try:
        with showing_logs():
            _serve(pipe, file)
    except (EOFError, OSError):
        os._exit(0)


def _serve(pipe: Connection, file: int) -> None:
    """Serve the trainer. Raises EOFError or OSError once it is gone."""
    with importing():  # the steps of the streams, and the user's modules
        streams: dict[str, Stream] = pickle.loads(os.pread(file, os.fstat(file).st_size, 0))
    maker = ChunkMaker(streams.__getitem__)
    makes = _Maker(pipe=pipe, trainer=os.getppid(), maker=maker)
    threading.Thread(target=makes.run, name="lastmile-reader", daemon=True).start()
    pipe.send(None)
    while True:
        message: Any = pipe.recv()
        if isinstance(message, ReadAhead):
            maker.read_ahead(message.role, message.task)
        else:
            makes.calls.put(message)
