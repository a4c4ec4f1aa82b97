"""Decides which reader makes which chunk: one rank's ledger of remaining, leased and made chunks.

A lease is a group of row groups that one reader works through, chunk by chunk. If a reader is lost,
its undelivered chunks are leased again, from the first missing one; if a reader leaves, so are the
chunks that it was not asked for yet. So every chunk is delivered once, whatever happens to readers.
The chunks that come first in the rank's order are leased first. A lease is split between two chunks
if an epoch would wait for a slow reader, or the end of the run for any reader. This module does no
I/O: `reader_feed` asks the readers and waits for them.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from pipeline_runtime.errors import FeedError
from pipeline_runtime.plan.groups import Group

# A lost reader costs no rows, but a group that kills each of its readers would be tried for ever.
# The feed over Ray Data allows a task as many retries.
MAX_LOSSES_PER_GROUP = 10
# A reader is slow if a row takes it more than this many times as long as the median reader.
SLOW = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One chunk to make; `position` is the group's place in the rank's order."""

    position: int
    group: Group
    chunk: int
    ends_lease: bool = False  # its reader is not asked for the group's next chunk

    @property
    def place(self) -> tuple[int, int]:
        """A key that sorts chunks in the order of the rank's rows."""
        return self.position, self.chunk


@dataclass(slots=True)
class _Lease:
    """Chunks of one group, in order, for one reader; one at least."""

    position: int
    chunks: deque[int]

    @property
    def place(self) -> tuple[int, int]:
        """The place of the first chunk, see `Task.place`."""
        return self.position, self.chunks[0]


@dataclass(slots=True)
class Ledger:
    """Hands out tasks; never one that is delivered or leased to another reader."""

    groups: Sequence[Group]
    chunk_rows: int
    _unleased: deque[_Lease] = field(init=False)
    _leases: dict[str, _Lease] = field(init=False, default_factory=dict)  # reader -> what is left
    _losses: dict[int, int] = field(init=False, default_factory=dict)  # position -> times lost
    num_left: int = field(init=False)  # tasks that no reader was given

    def __post_init__(self) -> None:
        self._unleased = deque(
            _Lease(position, deque(range(group.num_chunks(self.chunk_rows))))
            for position, group in enumerate(self.groups)
        )
        self.num_left = sum(len(lease.chunks) for lease in self._unleased)

    def choose(self, readers: Sequence[str]) -> str:
        """Choose the reader to ask next: the one that holds the earliest task.

        If the order is kept, the next chunk must never wait for later ones to be handed out.

        Args:
            readers: in the order of their load.
        """
        holders = [reader for reader in readers if reader in self._leases]
        earliest = min(holders, key=lambda reader: self._leases[reader].place, default=None)
        if earliest is not None and not self._comes_later(self._leases[earliest]):
            return earliest
        return next((reader for reader in readers if reader not in self._leases), readers[0])

    def _comes_later(self, lease: _Lease) -> bool:
        """Return whether an unleased chunk, which a reader has lost, comes before this lease."""
        return bool(self._unleased) and self._unleased[0].place < lease.place

    def take(self, reader: str, slow: Collection[str] = (), read_share: float = 0.0) -> Task | None:
        """Return a reader's next task, earliest group first; None if nothing is left to lease.

        Args:
            slow: readers whose leases may be split before all others are handed out.
            read_share: share of a chunk's time that another reader needs to skip over it.
        """
        lease = self._leases.pop(reader, None)
        if lease is None or self._comes_later(lease):
            if lease is not None:
                self._give_back(lease)
            lease = self._split(reader, slow, read_share)
            if lease is None:
                if not self._unleased:
                    return None
                lease = self._unleased.popleft()
        task = Task(
            position=lease.position,
            group=self.groups[lease.position],
            chunk=lease.chunks.popleft(),
            ends_lease=not lease.chunks,
        )
        if lease.chunks:
            self._leases[reader] = lease
        self.num_left -= 1
        return task

    def _split(self, reader: str, slow: Collection[str], read_share: float) -> _Lease | None:
        """Take later chunks from another reader's lease; return None if that gains nothing.

        The reader that gets them also reads the rows before them in their row group; of a mixed
        group, all rows, which the other reader has read by then.
        """
        following = self._epoch(self._unleased[0]) if self._unleased else None
        for name, lease in self._leases.items():
            is_awaited = following is None or (name in slow and self._epoch(lease) < following)
            if name == reader or not is_awaited:
                continue
            chunks = len(lease.chunks) * (SLOW if name in slow else 1.0)  # as the reader counts
            group, work = self.groups[lease.position], 1.0
            is_read = group.is_mixed and len(group.units) > 1  # its units, for its first chunk
            if is_read:
                work = max(0.0, 1.0 - read_share)
            for num_later in range(len(lease.chunks) // 2, 0, -1):
                first = lease.chunks[-num_later]
                over = group.num_chunks(self.chunk_rows) if is_read else first
                if over * read_share + num_later * work < chunks * work:
                    later = [lease.chunks.pop() for _ in range(num_later)]
                    return _Lease(lease.position, deque(reversed(later)))
        return None

    def _epoch(self, lease: _Lease) -> int:
        return self.groups[lease.position].epoch

    def was_lost(self, task: Task) -> bool:
        """Return whether a reader that worked on the task's group was lost."""
        return task.position in self._losses

    def keep(self, readers: Collection[str]) -> None:
        """Take back the leases of all other readers, which have left."""
        for reader in self._leases.keys() - readers:
            self._give_back(self._leases.pop(reader))

    def _give_back(self, lease: _Lease) -> None:
        insort(self._unleased, lease, key=lambda each: each.place)

    def lose(self, reader: str, undelivered: Iterable[Task]) -> None:
        """Take back the tasks of a lost reader.

        Raises FeedError if one group was lost too often to be an accident.
        """
        lost = defaultdict[int, list[int]](list)
        for task in undelivered:
            lost[task.position].append(task.chunk)
            self.num_left += 1
        lease = self._leases.pop(reader, None)
        if lease is not None:
            lost[lease.position].extend(lease.chunks)
        for position, chunks in lost.items():
            self._count_loss(position)
            self._give_back(_Lease(position, deque(sorted(chunks))))

    def _count_loss(self, position: int) -> None:
        self._losses[position] = self._losses.get(position, 0) + 1
        if self._losses[position] > MAX_LOSSES_PER_GROUP:
            group = self.groups[position]
            raise FeedError(
                f"group {group.index} of epoch {group.epoch}: {self._losses[position]} data "
                "workers died while they worked on it; it may need more memory than they have "
                "(spec.dataWorkers), or a map function crashes on its rows"
            )
