"""Making pieces one by one when asked: what a reader does, be it an actor or a thread.

A group that has more than one piece stays open between two calls, so that asking for its pieces in
order reads it once. Where a plan reads ahead, as from a store, threads read the next rows of a
group while pieces are made of those before; and of the group that is told to come next, its first.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from pipeline_runtime.errors import TrainingError
from pipeline_runtime.feed.batching import Batching, make_ready
from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.pieces import Piece, ReadyPiece
from pipeline_runtime.feed.work import read_group
from pipeline_runtime.plan.model import StreamPlan

# Groups kept open: one a rank that the reader serves, and a few whose rank has turned to another.
_MAX_OPEN_GROUPS = 16
# Groups that were begun ahead: one a call to a reader. One that nobody asks for goes.
_MAX_BEGUN_GROUPS = 2
# Groups read at a time: while the bytes of one are waited for, those of another are decoded.
_READING_THREADS = 2
# From this share of rows in row groups and pages without one that is left on, what filters read is
# read before the rest. Where rows are left everywhere that costs 3 % more (heavy work of
# benchmarks/dataloading, flat and nested).
MIN_IDLE_SHARE = 0.2
# How much the latest piece counts in that share.
_SHARE_SMOOTHING = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One stream of rows, how long its pieces are, and the batches to make of them, if any."""

    plan: StreamPlan
    piece_rows: int
    batching: Batching | None = None


# Of a group: its stream's role, epoch and index.
_Key = tuple[str, int, int]


class PieceMaker:
    """Makes the pieces of streams that it gets by their role, training or evaluation."""

    def __init__(self, get_stream: Callable[[str], Stream]) -> None:
        self._get_stream = get_stream
        self._finished = time.perf_counter()
        self._streams: dict[str, Stream] = {}
        self._idle_share = defaultdict[str, float](float)  # of late pieces, by role
        # Groups' next pieces, and what makes them: of those that stay open, and that were begun.
        self._open: OrderedDict[_Key, tuple[int, Iterator[Piece]]] = OrderedDict()
        self._begun: OrderedDict[_Key, tuple[int, Iterator[Piece]]] = OrderedDict()
        self._latest: _Key | None = None
        self._lock = threading.Lock()  # of the three above
        self._reading: ThreadPoolExecutor | None = None

    def make(self, role: str, task: Task) -> Piece | ReadyPiece:
        """Make one piece; pieces of its group that come before it are read over, not worked on.

        Raises SourceError or StepError, which name the file and rows.
        """
        stream = self._stream(role)
        key = _key_of(role, task)
        with self._lock:
            self._latest = key
            begun = self._begun.pop(key, (-1, iter(())))
            following, pieces = self._open.pop(key, begun)
        if following != task.piece:
            pieces = self._begin(stream, role, task)
        gap_seconds = time.perf_counter() - self._finished
        piece = next(pieces)
        before = self._idle_share[role]
        self._idle_share[role] = before + _SHARE_SMOOTHING * (piece.header.idle_share - before)
        if not (piece.header.is_last or task.ends_lease):
            with self._lock:
                self._open[key] = (task.piece + 1, pieces)
                if len(self._open) > _MAX_OPEN_GROUPS:
                    self._open.popitem(last=False)
        piece = replace(piece, header=replace(piece.header, gap_seconds=gap_seconds))
        made: Piece | ReadyPiece = piece
        if stream.batching is not None:
            # A value that has no place in a batch is told by the trainer, if it comes to that row.
            with contextlib.suppress(TrainingError):
                made = make_ready(piece, stream.batching)
        self._finished = time.perf_counter()
        return made

    def read_ahead(self, role: str, task: Task) -> None:
        """Begin to read what is asked for next, beside what is made now; any thread may ask.

        Nothing happens where the plan does not read ahead, or the group is being read already.
        """
        stream = self._stream(role)
        if not stream.plan.reads_ahead or task.piece:
            return
        key = _key_of(role, task)
        with self._lock:
            if key == self._latest or key in self._open or key in self._begun:
                return
            self._begun[key] = (0, self._begin(stream, role, task))
            if len(self._begun) > _MAX_BEGUN_GROUPS:
                self._begun.popitem(last=False)

    def rest(self) -> None:
        """Let go of groups that were begun; another piece of them would be read anew."""
        with self._lock:
            self._open.clear()
            self._begun.clear()

    def _begin(self, stream: Stream, role: str, task: Task) -> Iterator[Piece]:
        if stream.plan.reads_ahead and self._reading is None:
            self._reading = ThreadPoolExecutor(_READING_THREADS, "lastmile-reading")
        return read_group(
            stream.plan,
            task.group,
            stream.piece_rows,
            first_piece=task.piece,
            looks_first=self._idle_share[role] > MIN_IDLE_SHARE,
            reading=self._reading if stream.plan.reads_ahead else None,
        )

    def _stream(self, role: str) -> Stream:
        if role not in self._streams:
            self._streams[role] = self._get_stream(role)
        return self._streams[role]


def _key_of(role: str, task: Task) -> _Key:
    return role, task.group.epoch, task.group.index
