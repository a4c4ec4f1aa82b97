"""The position of a rank in its rows, with the checksum of the rows that reached the model.

A position records which chunks of the current epoch were consumed, completely or in part, so that
a resumed run reads the remaining rows and none twice. Every checkpoint has one per rank.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from pipeline_runtime.feed.chunk import Header, StepCount, add_counts
from pipeline_runtime.hashing import Checksum
from pipeline_runtime.plan.model import StreamPlan

_DIGEST_CHARS = 16  # as long as the run's hash


@dataclass(slots=True)
class _OpenGroup:
    """A group of which some rows were consumed."""

    rows: dict[int, int] = field(default_factory=dict)  # chunk -> rows consumed
    whole: set[int] = field(default_factory=set)  # chunks consumed to the end
    num_chunks: int | None = None  # known once the last chunk was seen

    @property
    def is_done(self) -> bool:
        return self.num_chunks is not None and len(self.whole) == self.num_chunks


@dataclass(slots=True)
class Position:
    """The rows that a rank consumed in an epoch, and the counts of each step of the run."""

    epoch: int = 0
    epoch_start: int = 0  # `batches` when the epoch began
    batches: int = 0  # since the run began
    samples: int = 0  # rows in them
    done: set[int] = field(default_factory=set)  # groups consumed to the end
    open: dict[int, _OpenGroup] = field(default_factory=dict)
    checksum: Checksum = field(default_factory=Checksum)
    counts: tuple[StepCount, ...] = ()
    _before: Position | None = None  # the position before the last batch, as far as that changed it

    def consumed(self, header: Header) -> int:
        """Rows of a chunk that were consumed before this run was resumed."""
        group = self.open.get(header.group)
        return group.rows.get(header.chunk, 0) if group else 0

    def consume(self, header: Header, rows: int) -> bool:
        """Note that `rows` more rows of a chunk went into a batch (0 for a chunk without rows).

        Returns whether the chunk is now used up.
        """
        group = self.open.setdefault(header.group, _OpenGroup())
        group.rows[header.chunk] = group.rows.get(header.chunk, 0) + rows
        if header.is_last:
            group.num_chunks = header.chunk + 1
        is_used_up = group.rows[header.chunk] == header.num_rows and header.chunk not in group.whole
        if is_used_up:
            group.whole.add(header.chunk)
            self.counts = add_counts(self.counts, header.counts)
        if group.is_done:
            self.done.add(header.group)
            del self.open[header.group]
        return is_used_up

    def start_epoch(self, epoch: int) -> None:
        """Forget the groups of the epoch before; a no-op for the epoch that is resumed."""
        if epoch != self.epoch:
            self.epoch, self.done, self.open = epoch, set(), {}
            self.epoch_start = self.batches

    def remember(self, groups: Collection[int]) -> None:
        """Keep what the next batch will change, so that `before_last` can undo it.

        Args:
            groups: those that the batch takes rows of.
        """
        self._before = replace(
            self,
            done=set(groups),
            open={index: deepcopy(self.open[index]) for index in groups if index in self.open},
            checksum=replace(self.checksum),
            _before=None,
        )

    def before_last(self) -> Position | None:
        """Return the position before the last batch; None if nobody called `remember`."""
        if self._before is None:
            return None
        changed = self._before.done
        opened = {index: group for index, group in self.open.items() if index not in changed}
        return replace(
            self._before, done=self.done - changed, open=opened | self._before.open
        ).copy()

    def copy(self) -> Position:
        """Return a position that later rows leave as it is."""
        return Position.from_json(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the position as a checkpoint stores it."""
        return {
            "epoch": self.epoch,
            "epochStart": self.epoch_start,
            "batches": self.batches,
            "samples": self.samples,
            "done": sorted(self.done),
            "open": {
                str(index): {
                    "rows": {str(chunk): rows for chunk, rows in sorted(group.rows.items())},
                    "whole": sorted(group.whole),
                    "numPieces": group.num_chunks,
                }
                for index, group in sorted(self.open.items())
            },
            "checksum": self.checksum.to_json(),
            "counts": [[c.rows, c.num_bytes, c.seconds] for c in self.counts],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Position:
        """The inverse of `to_json`."""
        opened = {
            int(index): _OpenGroup(
                rows={int(chunk): rows for chunk, rows in group["rows"].items()},
                whole=set(group["whole"]),
                num_chunks=group["numPieces"],
            )
            for index, group in value["open"].items()
        }
        counts = tuple(StepCount(rows=r, num_bytes=b, seconds=s) for r, b, s in value["counts"])
        epoch_start = value.get("epochStart")
        return cls(
            epoch=value["epoch"],
            # Earlier releases did not save it: the epoch then seems to begin with the resume.
            epoch_start=value["batches"] if epoch_start is None else epoch_start,
            batches=value["batches"],
            samples=value["samples"],
            done=set(value["done"]),
            open=opened,
            checksum=Checksum.from_json(value["checksum"]),
            counts=counts,
        )


def digest_units(stream: StreamPlan) -> str:
    """Return a digest of the row groups that a position counts.

    With other row groups, the same position would mean other rows.
    """
    return stream.table.digest(stream.scan.units)[:_DIGEST_CHARS]


def merge_checksums(positions: Iterable[Position]) -> Checksum:
    """The checksum over all ranks."""
    merged = Checksum()
    for position in positions:
        merged = merged.merge(position.checksum)
    return merged


def redistribute(positions: list[Position], world_size: int) -> list[Position]:
    """Return positions for another number of ranks; rows that any rank consumed stay consumed.

    Group indices are the epoch's own, whichever rank read them, so that the union says what is
    left. Totals stay with rank 0.
    """
    if len(positions) == world_size:
        return positions
    done = set().union(*(position.done for position in positions))
    opened = {index: group for position in positions for index, group in position.open.items()}
    # A group belongs to rank `index mod world size`, and to no other: a second copy would go stale.
    owned = [{i: g for i, g in opened.items() if i % world_size == r} for r in range(world_size)]
    counts: tuple[StepCount, ...] = ()
    for position in positions:
        counts = add_counts(counts, position.counts)
    first = positions[0]
    shared = [
        Position(
            epoch=first.epoch,
            epoch_start=first.epoch_start,
            batches=first.batches,
            done=set(done),
            open=groups,
        )
        for groups in owned
    ]
    shared[0].checksum, shared[0].counts = merge_checksums(positions), counts
    shared[0].samples = sum(position.samples for position in positions)
    return shared
