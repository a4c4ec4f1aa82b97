"""Making pieces one by one when asked: what a reader does, be it an actor or a thread.

A group that has more than one piece stays open between two calls, so that asking for its pieces in
order reads it once.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pipeline_runtime.errors import TrainingError
from pipeline_runtime.feed.batching import Batching, make_ready
from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.pieces import Piece, ReadyPiece
from pipeline_runtime.feed.work import read_group
from pipeline_runtime.plan.model import StreamPlan

# Groups kept open: one a rank that the reader serves, and a few whose rank has turned to another.
_MAX_OPEN_GROUPS = 16
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


class PieceMaker:
    """Makes the pieces of streams that it gets by their role, training or evaluation."""

    def __init__(self, get_stream: Callable[[str], Stream]) -> None:
        self._get_stream = get_stream
        self._finished = time.perf_counter()
        self._streams: dict[str, Stream] = {}
        self._idle_share = defaultdict[str, float](float)  # of late pieces, by role
        self._open: OrderedDict[tuple[str, int, int], tuple[int, Iterator[Piece]]] = OrderedDict()

    def make(self, role: str, task: Task) -> Piece | ReadyPiece:
        """Make one piece; pieces of its group that come before it are read over, not worked on.

        Raises SourceError or StepError, which name the file and rows.
        """
        stream = self._stream(role)
        key = (role, task.group.epoch, task.group.index)
        following, pieces = self._open.pop(key, (-1, iter(())))
        if following != task.piece:
            pieces = read_group(
                stream.plan,
                task.group,
                stream.piece_rows,
                first_piece=task.piece,
                looks_first=self._idle_share[role] > MIN_IDLE_SHARE,
            )
        gap_seconds = time.perf_counter() - self._finished
        piece = next(pieces)
        before = self._idle_share[role]
        self._idle_share[role] = before + _SHARE_SMOOTHING * (piece.header.idle_share - before)
        if not (piece.header.is_last or task.ends_lease):
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

    def rest(self) -> None:
        """Let go of groups that were begun; another piece of them would be read anew."""
        self._open.clear()

    def _stream(self, role: str) -> Stream:
        if role not in self._streams:
            self._streams[role] = self._get_stream(role)
        return self._streams[role]
