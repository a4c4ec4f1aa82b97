"""Makes chunks one by one on request. A reader does so: an actor, a process or a thread.

A group with more than one chunk stays open between two calls, so that its chunks, requested in
order, read it once. If a plan reads ahead, as from a store, threads read the next rows of a group
while earlier ones become chunks, and the first rows of the next group.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from pipeline_runtime.errors import TrainingError
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.making.batching import Batching, make_ready
from pipeline_runtime.feed.making.waiting import read_waited
from pipeline_runtime.feed.making.work import read_group
from pipeline_runtime.plan.model import StreamPlan

# Groups kept open: one a rank that the reader serves, and a few whose rank has turned to another.
_MAX_OPEN_GROUPS = 16
# Groups that are begun ahead at a time; another one is read when it is asked for. One that nobody
# asks for, since its trainer has gone, makes room after so many chunks.
_MAX_BEGUN_GROUPS = 2
_MAX_PASSED_OVER = 32
# Groups of late of which it is known that they were made: a call to read ahead may come too late.
_NUM_LATE = 8
# Groups read at a time: while the bytes of one are waited for, those of another are decoded.
_READING_THREADS = 2
# From this share of rows in row groups and pages without one that is left on, what filters read is
# read before the rest. Where rows are left everywhere that costs 3 % more (heavy work of
# benchmarks/dataloading, flat and nested).
MIN_IDLE_SHARE = 0.2
# How much the latest chunk counts in that share.
_SHARE_SMOOTHING = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One stream of rows, how long its chunks are, and what readers make of them.

    Attributes:
        batching: the batches to make of a chunk; None if the consumer takes rows.
        finish: called with every chunk by its reader; what it returns is delivered. Between
            processes, only its `result` and its table travel.
    """

    plan: StreamPlan
    chunk_rows: int
    batching: Batching | None = None
    finish: Callable[[Chunk], Chunk] | None = None


# Of a group: its stream's role, epoch and index.
_Key = tuple[str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """A group that is read ahead of its first chunk."""

    at: int  # how many chunks had been made
    chunks: Iterator[Chunk]


class ChunkMaker:
    """Makes the chunks of streams that it gets by their role, training or evaluation."""

    def __init__(self, get_stream: Callable[[str], Stream]) -> None:
        self._get_stream = get_stream
        self._finished = time.perf_counter()
        self._streams: dict[str, Stream] = {}
        self._idle_share = defaultdict[str, float](float)  # of late chunks, by role
        # Groups that stay open: their next chunk, and what makes it.
        self._open: OrderedDict[_Key, tuple[int, Iterator[Chunk]]] = OrderedDict()
        self._begun: dict[_Key, _Begun] = {}
        self._late: deque[_Key] = deque(maxlen=_NUM_LATE)
        self._num_made = 0
        self._reading: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()  # of streams and all that is begun

    def make(self, role: str, task: Task) -> Chunk:
        """Make one chunk; chunks of its group that come before it are read over, not worked on.

        Raises SourceError or StepError, which name the file and rows.
        """
        stream = self._stream(role)
        key = _key_of(role, task)
        with self._lock:
            following, chunks = self._open.pop(key, (-1, iter(())))
            begun = self._begun.pop(key, None)
            if following != task.chunk:
                if begun is not None and not task.chunk:
                    chunks = begun.chunks
                else:
                    chunks = self._begin(stream, role, task)
            self._late.append(key)
            self._num_made += 1
        gap_seconds, waited = time.perf_counter() - self._finished, read_waited()
        chunk = next(chunks)
        before = self._idle_share[role]
        self._idle_share[role] = before + _SHARE_SMOOTHING * (chunk.header.idle_share - before)
        if not (chunk.header.is_last or task.ends_lease):
            with self._lock:
                self._open[key] = (task.chunk + 1, chunks)
                if len(self._open) > _MAX_OPEN_GROUPS:
                    self._open.popitem(last=False)
        header = replace(
            chunk.header, gap_seconds=gap_seconds, waiting_seconds=read_waited() - waited
        )
        chunk = replace(chunk, header=header)
        if stream.finish is not None:
            chunk = _finish(stream.finish, chunk)
        if stream.batching is not None:
            # The trainer reports a value that has no place in a batch, if it takes that row.
            with contextlib.suppress(TrainingError):
                chunk = make_ready(chunk, stream.batching)
        self._finished = time.perf_counter()
        return chunk

    def read_ahead(self, role: str, task: Task, *, is_next: bool = False) -> None:
        """Begin to read what will be asked for, beside what is made now; any thread may ask.

        Nothing happens where the plan does not read ahead, the group is being read already, or
        enough others are that come before it.

        Args:
            is_next: nothing else comes before it but what is made now.
        """
        stream = self._stream(role)
        if not stream.plan.reads_ahead or task.chunk:
            return
        key = _key_of(role, task)
        with self._lock:
            if key in self._late or key in self._open or key in self._begun:
                return
            oldest = self._num_made - _MAX_PASSED_OVER
            self._begun = {k: begun for k, begun in self._begun.items() if begun.at >= oldest}
            if is_next or len(self._begun) < _MAX_BEGUN_GROUPS:
                chunks = self._begin(stream, role, task)
                self._begun[key] = _Begun(at=self._num_made, chunks=chunks)

    def rest(self) -> None:
        """Let go of groups that were begun; another chunk of them would be read anew."""
        with self._lock:
            self._open.clear()
            self._begun.clear()

    def close(self) -> None:
        """Stop: no more calls follow. A read in progress ends by itself."""
        self.rest()
        if self._reading is not None:
            self._reading.shutdown(wait=False, cancel_futures=True)

    def _begin(self, stream: Stream, role: str, task: Task) -> Iterator[Chunk]:
        if stream.plan.reads_ahead and self._reading is None:
            self._reading = ThreadPoolExecutor(_READING_THREADS, "lastmile-reading")
        return read_group(
            stream.plan,
            task.group,
            stream.chunk_rows,
            first_chunk=task.chunk,
            looks_first=self._idle_share[role] > MIN_IDLE_SHARE,
            reading=self._reading if stream.plan.reads_ahead else None,
        )

    def _stream(self, role: str) -> Stream:
        with self._lock:
            if role not in self._streams:
                self._streams[role] = self._get_stream(role)
            return self._streams[role]


def _finish(finish: Callable[[Chunk], Chunk], chunk: Chunk) -> Chunk:
    """Have the consumer finish a chunk; the reader is busy meanwhile."""
    started = time.perf_counter()
    made = finish(chunk)
    seconds = time.perf_counter() - started
    return replace(made, header=replace(made.header, batching_seconds=seconds))


def _key_of(role: str, task: Task) -> _Key:
    return role, task.group.epoch, task.group.index
