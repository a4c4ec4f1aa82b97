"""Readers that are Ray actors, one per CPU of the data workers.

`ReaderPool`, an actor beside the driver, keeps as many readers as the cluster has room for: a node
that joins gets readers, a reader that died is replaced, and a reader whose node is drained gets no
new calls and ends after the open ones. A rank gets the list of readers from the pool, and then
calls the readers directly. Their chunks travel through the object store or, on the rank's own
machine, through shared memory. If the pool dies, its readers die too; Ray starts the pool again,
and it starts other readers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pipeline_runtime.arrays.packing import PackedBatch
from pipeline_runtime.errors import FeedError
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.chunk import Batches, Chunk
from pipeline_runtime.feed.leases import Task
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.feed.over_ray.actor_pool import ActorPool, Found
from pipeline_runtime.feed.over_ray.reader_actor import AheadReader, Beside, Reader, Reporter
from pipeline_runtime.feed.reader_feed import ReaderFeed, ReaderLost
from pipeline_runtime.feed.transport.compression import CodecChoice
from pipeline_runtime.feed.transport.segments import CAN_SHARE, MAPPED, find_process_space
from pipeline_runtime.feed.transport.wire import (
    Block,
    Sending,
    SharedBlock,
    Wire,
    unpack,
    unpack_shared,
)
from pipeline_runtime.plan.groups import Group

# Seconds between two requests of a rank for the list of readers,
_LOOK_SECONDS = 1.0
# while a reader starts, which takes seconds by itself,
_JOIN_SECONDS = 0.1
# and while there is no reader.
_START_SECONDS = 0.02
# Work of one call. With one unit of 50 ms per call, calls took half of two cores
# (benchmarks/scaling).
_CALL_SECONDS = 0.5
# The run ends after so many readers in a row that did not start: then the image or the user's
# environment is broken, not a node.
_MAX_FAILED_STARTS = 10
# Times that Ray restarts a pool whose process was killed.
_MAX_POOL_RESTARTS = 10
# A rank waits this long for a pool that restarts, which takes seconds. (Ray's own retries,
# max_task_retries, are not used: with 2.60 a rank was observed to wait for one for ever.)
_POOL_SECONDS = 120.0


class ReaderPool(ActorPool):
    """The actor's class; create it by `start_pool`."""

    prefix = "reader"

    def __init__(
        self,
        reporter: Reporter,
        labels: Mapping[str, str] | None,
        num_trainers: int,
        reader: type[Reader] = Reader,
    ) -> None:
        super().__init__()
        self._reporter = reporter
        self._labels = labels
        self._num_trainers = num_trainers
        self._reader = reader
        self._failed_starts = 0

    def readers(self, streams: Mapping[str, Any], lost: Sequence[str] = ()) -> Found:
        """Return the readers that can be asked, after replacing those that a rank has lost.

        Args:
            streams: references by role.

        Raises FeedError if no reader starts at all.
        """
        return self._find(streams, lost)

    def _note_start(self, answer: Any) -> None:
        self._failed_starts = 0

    def _fail_start(self, error: Exception) -> None:
        self._failed_starts += 1
        if self._failed_starts < _MAX_FAILED_STARTS:
            return
        failure = FeedError(f"no data worker comes up, {self._failed_starts} tries: {error}")
        self._reporter.on_failure(failure)
        raise failure

    def _room(self) -> dict[str, int]:
        """Return the number of readers per node: one for each CPU that no trainer holds."""
        nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        wanted = (self._labels or {}).items()
        there = [node for node in nodes if node["Alive"] and wanted <= node["Labels"].items()]
        room = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in there}
        if not self._labels:
            leave_room(room, self._num_trainers)
        return room

    def _create(self, node: str, held: Any) -> Any:
        # Soft if trainers are on the same nodes, since they may hold this node's CPUs.
        place = NodeAffinitySchedulingStrategy(node, soft=not self._labels)
        options: dict[str, Any] = {"num_cpus": 1, "scheduling_strategy": place}
        options["concurrency_groups"] = dict(self._reader.concurrency_groups)
        reader: Any = ray.remote(**options)(self._reader)
        return reader.remote(held, self._reporter)


def leave_room(room: dict[str, int], num_trainers: int) -> None:
    """Subtract the trainers' CPUs from the largest nodes, one by one; at least one CPU stays."""
    for _ in range(num_trainers):
        if sum(room.values()) <= 1:
            return
        room[max(room, key=lambda node: room[node])] -= 1


def start_pool(
    streams: Mapping[str, Stream],
    reporter: Reporter,
    labels: Mapping[str, str] | None,
    num_trainers: int,
    reader: type[Reader] | None = None,
) -> tuple[Any, Mapping[str, Any]]:
    """Start the pool on this process's node, and its first readers; all end with its handle.

    Args:
        streams: streams by role.
        reporter: called by the processes of the data workers.
        labels: of the nodes that readers run on; None for any node, beside the trainers.
        num_trainers: CPUs that trainers hold on these nodes, if no labels separate them.
        reader: the class of the readers, for benchmarks; None for the class that the streams need.

    Returns:
        The pool's handle, and the references of the streams by role, which the caller must keep.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    if reader is None:
        reads_ahead = any(stream.plan.reads_ahead for stream in streams.values())
        reader = AheadReader if reads_ahead else Reader
    held = {role: ray.put(stream) for role, stream in streams.items()}
    options = {"num_cpus": 0, "scheduling_strategy": here, "max_restarts": _MAX_POOL_RESTARTS}
    arguments = (reporter, labels, num_trainers, reader)
    pool: Any = ray.remote(ReaderPool).options(**options).remote(*arguments)
    pool.readers.remote(held)
    return pool, held


class ActorCrew:
    """The pool's readers as one rank sees them."""

    def __init__(self, pool: Any, streams: Mapping[str, Any], sending: Sending) -> None:
        self.call_seconds = _CALL_SECONDS if sending.batched_calls else 0.0
        self._pool = pool
        self._streams = streams
        self._sending = sending
        self._codecs = CodecChoice(sending.compression)
        self._space = find_process_space() if sending.shared_memory and CAN_SHARE else None
        # The node whose readers share their memory with this process.
        self._here = ray.get_runtime_context().get_node_id() if self._space is not None else None
        self._shared: dict[Hashable, str] = {}  # ticket of a call through shared memory -> reader
        self._on_its_way = 0.0  # seconds waited for the transfer of the next chunk
        self._late: set[Hashable] = set()  # tickets whose chunks were made, but do not arrive
        self._actors: dict[str, Any] = {}  # of the readers that can be asked
        self._handles: dict[str, Any] = {}  # of all readers, former ones included
        self._nodes: dict[str, str] = {}  # of all readers, former ones included
        self._is_growing = False
        self._lost: set[str] = set()
        self._look: Any | None = None
        self._looked = float("-inf")
        self._lost_pool_at: float | None = None  # when the first failed request was made

    def readers(self) -> Sequence[str]:
        """See Crew. Raises FeedError if the pool cannot restart, or no reader starts."""
        if self._look is None and time.monotonic() - self._looked >= self._interval():
            self._looked = time.monotonic()
            self._look = self._pool.readers.remote(self._streams, sorted(self._lost))
        if self._look is not None and ray.wait([self._look], timeout=0)[0]:
            look, self._look = self._look, None
            found = self._answer(look)
            self._is_growing = found.is_growing
            self._nodes.update(found.nodes)
            self._handles.update(found.actors)
            self._actors = {n: actor for n, actor in found.actors.items() if n not in self._lost}
        return tuple(self._actors)

    @property
    def is_growing(self) -> bool:
        """Return whether more readers are starting."""
        return self._is_growing

    def _interval(self) -> float:
        """Seconds between two requests for the list of readers."""
        if not self._actors and self._lost_pool_at is None:
            return _START_SECONDS
        return _JOIN_SECONDS if self._is_growing else _LOOK_SECONDS

    def _answer(self, look: Any) -> Found:
        """Return the pool's list of readers; an empty one while Ray restarts the pool."""
        try:
            found: Found = ray.get(look)
        except ray.exceptions.RayTaskError:
            raise  # the pool's own error, which the driver knows
        except ray.exceptions.RayActorError as error:
            if self._lost_pool_at is None:
                self._lost_pool_at = self._looked
            if self._looked - self._lost_pool_at > _POOL_SECONDS:
                raise FeedError(
                    f"the coordinator of the data workers died and does not come back: {error}; "
                    "run again with --resume"
                ) from error
            return Found(actors={}, nodes={}, is_growing=False)
        self._lost_pool_at = None
        return found

    def worker(self, reader: str) -> str:
        return self._nodes[reader]

    def ask(self, reader: str, role: str, tasks: Sequence[Task]) -> Hashable:
        wire = Wire(sparse=self._sending.sparse, codec=self._codecs.codec)
        beside = None
        if self._nodes[reader] == self._here and self._space is not None:
            beside = Beside(
                rank=os.getpid(),
                space=self._space,
                unused=MAPPED.take_unused(reader),
                sparse=self._sending.sparse and self._sending.to_gpus,
            )
        if self._sending.reads_ahead:
            self._actors[reader].read_ahead.remote(role, tasks[0])
        reference: Hashable = self._actors[reader].make.remote(role, tasks, wire, beside)
        if beside is not None:
            self._shared[reference] = reader
        return reference

    def wait(self, tickets: Sequence[Any], waited: Waited) -> Hashable | None:
        """See Crew. All finished chunks are pulled concurrently, not each when it is taken.

        A late chunk may be lost with its node: Ray reports it as ready once it knows that, 15 s
        after a machine failed. Meanwhile this waits for the other chunks.
        """
        pulled = _first(tickets, timeout=0.0, is_here=True)  # begins to pull all of them
        if pulled is not None:
            return pulled
        started = time.perf_counter()
        if not tickets:
            time.sleep(_START_SECONDS)
        self._late.intersection_update(tickets)  # others were lost with their reader
        in_time = [ticket for ticket in tickets if ticket not in self._late]
        interval = _JOIN_SECONDS if self._late else self._interval()
        made = _first(in_time, timeout=interval, is_here=False)
        known = time.perf_counter()
        waited.production += known - started
        if made is None and in_time:
            return None
        pulled = _first(tickets, timeout=_LOOK_SECONDS, is_here=True)
        self._on_its_way += time.perf_counter() - known
        if pulled is None and in_time:
            made_too, _ = ray.wait(
                in_time, num_returns=len(in_time), timeout=0.0, fetch_local=False
            )
            self._late.update(made_too)
        return pulled

    def take(self, ticket: Any, waited: Waited) -> Sequence[Chunk]:
        started = time.perf_counter()
        is_shared = ticket in self._shared
        try:
            chunks = self._unpack(ray.get(ticket), self._shared.pop(ticket, ""))
        except ray.exceptions.RayTaskError:
            raise  # the work itself failed, which the driver knows
        except ray.exceptions.RayError as error:
            raise ReaderLost from error
        finally:
            seconds, self._on_its_way = self._on_its_way, 0.0
            seconds += time.perf_counter() - started
            waited.transfer += seconds
        for chunk in chunks:
            rows = chunk.rows
            if isinstance(rows, Batches) and not is_shared:
                undone = _undo_seconds(rows) if self._codecs.is_judging else 0.0
                own = seconds / len(chunks)
                self._codecs.note(rows.codec, rows.num_bytes, own, undone, time.monotonic())
        return chunks

    def _unpack(self, block: Block, reader: str) -> Sequence[Chunk]:
        if not isinstance(block, SharedBlock):
            return unpack(block)
        try:
            return unpack_shared(block, MAPPED.open(reader, block.segment))
        except OSError:
            chunks = unpack(ray.get(self._handles[reader].send.remote(block)))
            self._here = None  # no other segment could be mapped either
            return chunks

    def lose(self, reader: str) -> None:
        self._lost.add(reader)
        MAPPED.forget(reader)
        self._shared = {ticket: name for ticket, name in self._shared.items() if name != reader}
        # If the pool died, so did all other readers; so no reader is asked before the pool answers.
        self._actors, self._look, self._looked = {}, None, float("-inf")

    def close(self) -> None:
        # The pool owns the readers. Ray frees the chunks that they still make for this rank with
        # its tickets, and the readers free those in shared memory.
        for ticket, reader in self._shared.items():
            self._handles[reader].free.remote(ticket)
        self._shared = {}


def _undo_seconds(rows: Batches) -> float:
    """Estimate the seconds to decompress batches by decompressing the first of them."""
    first = next(iter(rows.batches), None)
    if not isinstance(first, PackedBatch) or first.codec is None:
        return 0.0
    started = time.perf_counter()
    first.plain()
    return (time.perf_counter() - started) * rows.num_bytes / max(1, first.num_bytes)


def _first(tickets: Sequence[Any], *, timeout: float, is_here: bool) -> Hashable | None:
    """Return the first ticket whose chunks are made, or in this node's store, within a timeout."""
    if not tickets:
        return None
    ready, _ = ray.wait(list(tickets), timeout=timeout, fetch_local=is_here)
    return ready[0] if ready else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorReaders:
    """Opens feeds over the pool's readers, from any process of the run."""

    pool: Any
    streams: Mapping[str, Any]  # references by role; the driver keeps the streams alive
    chunk_rows: int
    sending: Sending = field(default_factory=Sending)

    def open(self, role: str, rank: int, groups: Sequence[Group], *, in_order: bool) -> ReaderFeed:
        """Open a feed of these groups; see `feed.base.FeedSource`."""
        return ReaderFeed(
            crew=ActorCrew(self.pool, self.streams, self.sending),
            role=role,
            groups=groups,
            chunk_rows=self.chunk_rows,
            in_order=in_order,
        )
