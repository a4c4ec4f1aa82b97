"""The Ray actor that makes chunks: one process, one call at a time (`actor_readers`).

If the plan reads ahead, the actor has a second thread for calls that name its next chunk early.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import ray

from pipeline_runtime.errors import LastmileError
from pipeline_runtime.feed.chunk import Chunk
from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.making.maker import ChunkMaker
from pipeline_runtime.feed.transport.segments import Segments, find_process_space
from pipeline_runtime.feed.transport.wire import Block, SharedBlock, Wire, as_block, pack_all, share
from pipeline_runtime.user_output import catching_output

_AHEAD: Final = "ahead"
# Lines of one call; older ones are only in the log of the process.
MAX_OUTPUT_LINES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A rank on its reader's own machine."""

    rank: int  # process number of the rank
    space: str  # namespace of the process number
    unused: Sequence[str]  # names of the reader's segments that it no longer needs
    sparse: bool  # it wants batches without padding


def _drop(lines: list[str]) -> None:
    """Leave lines to the log of their process, which has them too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporter:
    """Functions that a data worker calls; picklable.

    Attributes:
        on_failure: called with the error that ends the run, before Ray wraps it.
        on_output: called with lines that the user's functions printed.
    """

    on_failure: Callable[[LastmileError], None]
    on_output: Callable[[list[str]], None] = _drop


class Reader:
    """The actor's class.

    Attributes:
        maker: the class that makes its chunks; benchmarks use a slower one.
        concurrency_groups: further threads for calls, for `ray.remote`.
    """

    maker: type[ChunkMaker] = ChunkMaker
    concurrency_groups: Mapping[str, int] = MappingProxyType({})

    def __init__(self, streams: Mapping[str, Any], reporter: Reporter) -> None:
        self._maker = self.maker(lambda role: ray.get(streams[role]))
        self._segments = Segments()
        self._reporter = reporter
        self._output: deque[str] = deque(maxlen=MAX_OUTPUT_LINES)
        self._catching = catching_output(self._output.append)
        self._catching.__enter__()  # until the process ends

    def ping(self) -> None:
        """Answer once the process runs."""

    def finish(self) -> None:
        """Answer after all other calls, since it takes one at a time."""

    def make(
        self, role: str, tasks: Sequence[Task], wire: Wire, beside: Beside | None = None
    ) -> Block:
        """Make chunks and pack them; report a failure to the driver before Ray wraps it.

        Args:
            beside: the rank that asks, if it is on this machine and shares memory.
        """
        if beside is not None:
            self._segments.free(beside.unused)
        try:
            chunks = [self._make(role, *pair) for pair in zip_longest(tasks, tasks[1:])]
        except LastmileError as error:
            self._reporter.on_failure(error)
            raise
        finally:
            if self._output:
                lines = [self._output.popleft() for _ in range(len(self._output))]
                self._reporter.on_output(lines)
        if beside is not None and beside.space == find_process_space():
            # If memory cannot be shared, or no more of it, chunks go through Ray.
            with contextlib.suppress(OSError):
                return share(chunks, self._segments, beside.rank, sparse=beside.sparse)
        return pack_all(chunks, wire)

    def _make(self, role: str, task: Task, following: Task | None) -> Chunk:
        if following is not None and following.group != task.group:
            self._maker.read_ahead(role, following, is_next=True)
        return self._maker.make(role, task)

    def send(self, block: SharedBlock) -> pa.Table:
        """Return chunks of shared memory through Ray, for a rank that cannot map it."""
        payload = pa.py_buffer(self._segments.read(block.segment).tobytes())
        self.free(block)
        return as_block(block.headers, block.starts, payload)

    def free(self, block: Block) -> None:
        """Free the shared memory of chunks that no rank will take."""
        if isinstance(block, SharedBlock):
            self._segments.free([block.segment.name])


class AheadReader(Reader):
    """The actor's class for plans that read ahead."""

    concurrency_groups = MappingProxyType({_AHEAD: 1})

    @ray.method(concurrency_group=_AHEAD)
    def read_ahead(self, role: str, task: Task) -> None:
        """Begin to read the rows of the next chunk while another one is made."""
        self._maker.read_ahead(role, task)
