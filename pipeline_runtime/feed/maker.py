"""Making pieces one by one when asked: what a reader does, be it an actor or a thread.

A group that has more than one piece stays open between two calls, so that asking for its pieces in
order reads it once.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pipeline_runtime.feed.batching import Batching, make_ready
from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.pieces import Piece, ReadyPiece
from pipeline_runtime.feed.work import read_group
from pipeline_runtime.plan.model import StreamPlan

# Groups kept open: one a rank that the reader serves, and a few whose rank has turned to another.
_MAX_OPEN_GROUPS = 16


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
        self._open: OrderedDict[tuple[str, int, int], tuple[int, Iterator[Piece]]] = OrderedDict()

    def make(self, role: str, task: Task) -> Piece | ReadyPiece:
        """Make one piece; pieces of its group that come before it are read over, not worked on.

        Raises SourceError or StepError, which name the file and rows, or TrainingError if a value
        has no place in a batch.
        """
        stream = self._stream(role)
        key = (role, task.group.epoch, task.group.index)
        following, pieces = self._open.pop(key, (-1, iter(())))
        if following != task.piece:
            pieces = read_group(stream.plan, task.group, stream.piece_rows, first_piece=task.piece)
        gap_seconds = time.perf_counter() - self._finished
        piece = next(pieces)
        if not piece.header.is_last:
            self._open[key] = (task.piece + 1, pieces)
            if len(self._open) > _MAX_OPEN_GROUPS:
                self._open.popitem(last=False)
        piece = replace(piece, header=replace(piece.header, gap_seconds=gap_seconds))
        made = piece if stream.batching is None else make_ready(piece, stream.batching)
        self._finished = time.perf_counter()
        return made

    def _stream(self, role: str) -> Stream:
        if role not in self._streams:
            self._streams[role] = self._get_stream(role)
        return self._streams[role]
