"""The Ray actor that makes pieces: one process, one call at a time (`actor_readers`).

Where the plan reads ahead it has a second thread of calls, by which it is told early what it is
asked for next.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import ray

from pipeline_runtime.errors import LastmileError
from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.making.maker import PieceMaker
from pipeline_runtime.feed.pieces import Piece, ReadyPiece
from pipeline_runtime.feed.transport.segments import Segments, find_process_space
from pipeline_runtime.feed.transport.wire import SharedBlock, Wire, as_block, pack_all, share

_AHEAD: Final = "ahead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A rank on its reader's own machine."""

    rank: int  # its process
    space: str  # in which that number means it
    unused: Sequence[str]  # names of the reader's segments that it needs no more
    sparse: bool  # it has use for batches without filling


class Reader:
    """The actor's class.

    Attributes:
        maker: the class that makes its pieces; benchmarks slow it down.
        concurrency_groups: threads of calls besides the first, for `ray.remote`.
    """

    maker: type[PieceMaker] = PieceMaker
    concurrency_groups: Mapping[str, int] = MappingProxyType({})

    def __init__(
        self, streams: Mapping[str, Any], on_failure: Callable[[LastmileError], None]
    ) -> None:
        self._maker = self.maker(lambda role: ray.get(streams[role]))
        self._segments = Segments()
        self._on_failure = on_failure

    def ping(self) -> None:
        """Answer once the process is up."""

    def make(
        self, role: str, tasks: Sequence[Task], wire: Wire, beside: Beside | None = None
    ) -> pa.Table | SharedBlock:
        """Pieces, packed; the driver hears of a failure before Ray wraps it.

        Args:
            beside: the rank that asks, if it shares this one's memory.
        """
        if beside is not None:
            self._segments.free(beside.unused)
        try:
            pieces = [self._make(role, *pair) for pair in zip_longest(tasks, tasks[1:])]
        except LastmileError as error:
            self._on_failure(error)
            raise
        if beside is not None and beside.space == find_process_space():
            # Where memory cannot be shared, or no more of it, pieces go through Ray.
            with contextlib.suppress(OSError):
                return share(pieces, self._segments, beside.rank, sparse=beside.sparse)
        return pack_all(pieces, wire)

    def _make(self, role: str, task: Task, following: Task | None) -> Piece | ReadyPiece:
        if following is not None and following.group != task.group:
            self._maker.read_ahead(role, following, is_next=True)
        return self._maker.make(role, task)

    def send(self, block: SharedBlock) -> pa.Table:
        """The same pieces through Ray, for a rank that cannot see this one's memory."""
        payload = pa.py_buffer(self._segments.read(block.segment).tobytes())
        self.free(block)
        return as_block(block.headers, block.starts, payload)

    def free(self, block: pa.Table | SharedBlock) -> None:
        """Pieces that nobody has taken or will take are not kept."""
        if isinstance(block, SharedBlock):
            self._segments.free([block.segment.name])


class AheadReader(Reader):
    """The same for plans that read ahead."""

    concurrency_groups = MappingProxyType({_AHEAD: 1})

    @ray.method(concurrency_group=_AHEAD)
    def read_ahead(self, role: str, task: Task) -> None:
        """Begin to read this piece's rows, whatever is being made: it is asked for next."""
        self._maker.read_ahead(role, task)
