"""From units (row groups) to groups: rows that one reader reads, shuffles and delivers in order.

Units are permuted by (seed, epoch) and cut into groups at plan time, so that a batch depends only
on (plan, seed, epoch, group, index) and never on the worker that made it. A group longer than the
window is delivered in chunks of at most `rows_per_chunk` rows; rows are permuted within a chunk.
If neighbouring rows of the table are alike, a group has units from all over the table, and each of
its chunks has rows of all of them (`mixing`).
The ranks of a loader get equal shares of the groups, to the row (`share_groups`), so that no rank
trains on padding while others have rows.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt

from pipeline_runtime.config import Shuffle
from pipeline_runtime.config.training import DEFAULT_SHUFFLE_ROWS
from pipeline_runtime.plan.mixing import Mixing, spread_units
from pipeline_runtime.sources import Unit

# A chunk is held whole by a worker, the object store and the trainer: 256 MiB uncompressed is
# memory that the smallest data worker (2 GiB) can spare for two of them at once.
MAX_CHUNK_BYTES = 256 << 20
# Shares of a turn that are far from each other: rows of several units that are cut off by rounding
# do not end up in one chunk.
_GOLDEN = (5**0.5 - 1) / 2
# A longer row group is cut without a shuffle too: its first rows should not wait for its last.
_MAX_UNCUT_ROWS = 131_072


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Units that one reader reads in this order, in this epoch.

    Attributes:
        rows: the group's rows, counted over its units; None for all. Other rows of the first and
            last unit belong to groups of other ranks.
        is_mixed: each chunk has rows of all units in proportion; otherwise units that share a group
            fit one chunk.
    """

    epoch: int
    index: int
    units: tuple[Unit, ...]
    rows: range | None = None
    is_mixed: bool = False

    @property
    def row_range(self) -> range:
        """The group's rows, counted over its units."""
        return range(sum(unit.num_rows for unit in self.units)) if self.rows is None else self.rows

    @property
    def unit_rows(self) -> list[range]:
        """The group's rows of each unit, counted over that unit."""
        found, first, wanted = [], 0, self.row_range
        for unit in self.units:
            start = min(unit.num_rows, max(0, wanted.start - first))
            found.append(range(start, max(start, min(unit.num_rows, wanted.stop - first))))
            first += unit.num_rows
        return found

    def num_chunks(self, chunk_rows: int) -> int:
        """Return the number of chunks that readers make of the group.

        It is one, but for a mixed group, and for a unit longer than a chunk, whose chunks begin at
        multiples of `chunk_rows` whatever part of it the group has.
        """
        if len(self.units) > 1:
            return len(self.cuts(chunk_rows)) - 1 if self.is_mixed else 1
        rows = self.row_range
        return max(1, -(-rows.stop // chunk_rows) - rows.start // chunk_rows)

    def cuts(self, chunk_rows: int) -> npt.NDArray[np.int64]:
        """Return where the chunks of a mixed group begin in each unit, and where the last one ends.

        Returns:
            int64 of shape [chunks + 1, units]: rows, counted over each unit, in ascending order.
        """
        starts = np.array([rows.start for rows in self.unit_rows])
        counts = np.array([len(rows) for rows in self.unit_rows])
        # Each unit rounds at another place, so that chunks have nearly the same number of rows.
        phases = np.arange(len(counts)) * _GOLDEN % 1
        num_rows = int(counts.sum())
        num_chunks = max(1, -(-num_rows // chunk_rows))
        while True:
            ends = np.arange(num_chunks + 1)[:, np.newaxis] * counts / num_chunks
            cuts: npt.NDArray[np.int64] = starts + np.floor(ends + phases).astype(np.int64)
            if np.diff(cuts.sum(axis=1)).max() <= chunk_rows or num_chunks >= num_rows:
                return cuts
            num_chunks += 1

    def chunk_rows_of_units(self, chunk: int, chunk_rows: int) -> list[range]:
        """Return the rows of a chunk in each unit, counted over that unit."""
        if len(self.units) > 1 and self.is_mixed:
            starts, stops = self.cuts(chunk_rows)[chunk : chunk + 2].tolist()
            return [range(start, stop) for start, stop in zip(starts, stops, strict=True)]
        if len(self.units) > 1:
            return self.unit_rows
        rows = self.row_range
        first = (rows.start // chunk_rows + chunk) * chunk_rows
        return [range(max(rows.start, first), min(rows.stop, first + chunk_rows))]

    def cut(self, rows: range) -> Group:
        """Return the part of the group with these rows, counted over its units."""
        first, units, before = 0, [], 0
        for unit in self.units:
            if first + unit.num_rows <= rows.start:
                before += unit.num_rows
            elif first < rows.stop:
                units.append(unit)
            first += unit.num_rows
        kept = range(rows.start - before, rows.stop - before)
        is_whole = kept == range(sum(unit.num_rows for unit in units))
        return replace(self, units=tuple(units), rows=None if is_whole else kept)


def build_generator(seed: int, epoch: int, *keys: int) -> np.random.Generator:
    """Build a generator of an order: the one place where seed and epoch enter it."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, epoch, *keys])))


def permutation(seed: int, epoch: int, *keys: int, size: int) -> np.ndarray:
    """Return a permutation of range(size)."""
    return build_generator(seed, epoch, *keys).permutation(size)


def rows_per_chunk(units: Sequence[Unit], shuffle: Shuffle, limit: int | None = None) -> int:
    """Return the largest number of rows of a chunk: the window, less where rows are wide.

    Without a shuffle a longer row group is not cut, unless the window is smaller than the default:
    what a chunk costs whatever its length, some milliseconds of Python's lock, is a fifth of the
    work on 32,768 narrow rows.
    """
    rows = sum(unit.num_rows for unit in units)
    width_bytes = max(1, sum(unit.num_bytes for unit in units) // max(1, rows))
    fitting = max(1, MAX_CHUNK_BYTES // width_bytes)
    window = shuffle.window_rows
    if shuffle.unit == "None" and window >= DEFAULT_SHUFFLE_ROWS:
        window = max([window, *(min(unit.num_rows, _MAX_UNCUT_ROWS) for unit in units)])
    return min(window, fitting, limit or window)


def plan_groups(
    units: Sequence[Unit],
    *,
    seed: int,
    epoch: int,
    shuffle: Shuffle,
    chunk_rows: int,
    mixing: Mixing | None = None,
) -> list[Group]:
    """Cut an epoch's units into groups of about `chunk_rows` rows, in the epoch's order.

    Args:
        mixing: makes groups mixed, which are longer; None leaves each unit in a chunk of its own,
            or with others that fit it. Without a shuffle no group is mixed.
    """
    if mixing is not None and shuffle.unit != "None":
        spread = spread_units(units, chunk_rows, mixing, build_generator(seed, epoch))
        return [
            Group(epoch=epoch, index=index, units=tuple(members), is_mixed=True)
            for index, members in enumerate(spread)
        ]
    order = (
        range(len(units)) if shuffle.unit == "None" else permutation(seed, epoch, size=len(units))
    )
    groups: list[Group] = []
    current: list[Unit] = []
    rows = 0
    for position in order:
        unit = units[int(position)]
        if current and rows + unit.num_rows > chunk_rows:
            groups.append(Group(epoch=epoch, index=len(groups), units=tuple(current)))
            current, rows = [], 0
        current.append(unit)
        rows += unit.num_rows
    if current:
        groups.append(Group(epoch=epoch, index=len(groups), units=tuple(current)))
    return groups


# Rows of one group: its place in the epoch, its first row, and the one after its last row.
_Part = tuple[int, int, int]


def share_groups(groups: Sequence[Group], num_ranks: int) -> list[list[Group]]:
    """Return each rank's groups, so that the rows of ranks differ by one at most.

    A group goes to the rank with the fewest rows, which keeps all ranks near the same place of the
    epoch. Then the excess rows of some ranks are cut off their last groups, for the others. Groups
    get new indices, in the epoch's order.

    Args:
        groups: whole ones, as `plan_groups` returns them.
    """
    if num_ranks == 1:
        return [list(groups)]
    num_rows = sum(len(group.row_range) for group in groups)
    left = [num_rows // num_ranks + (rank < num_rows % num_ranks) for rank in range(num_ranks)]
    parts: list[list[_Part]] = [[] for _ in range(num_ranks)]
    fewest = [(0, rank) for rank in range(num_ranks)]
    for place, group in enumerate(groups):
        rows, rank = fewest[0]
        count = len(group.row_range)
        heapq.heapreplace(fewest, (rows + count, rank))
        parts[rank].append((place, 0, count))
        left[rank] -= count
    _even_out(parts, left)
    order = {part: index for index, part in enumerate(sorted(chain.from_iterable(parts)))}
    return [
        [
            replace(groups[place].cut(range(start, stop)), index=order[place, start, stop])
            for place, start, stop in sorted(mine)
        ]
        for mine in parts
    ]


def _even_out(parts: Sequence[list[_Part]], left: list[int]) -> None:
    """Move the last rows of ranks that have too many to ranks that have too few.

    Args:
        left: rows that each rank should still get; negative if it has too many. Its last part has
            all of these, since the rank had no more rows than any other when it got that.
    """
    takers = [rank for rank, rows in enumerate(left) if rows > 0]
    for rank, excess in enumerate(-rows for rows in left):
        if excess <= 0:
            continue
        place, start, stop = parts[rank].pop()
        if stop - excess > start:
            parts[rank].append((place, start, stop - excess))
        first = stop - excess
        while first < stop:
            taker = takers[-1]
            last = min(stop, first + left[taker])
            parts[taker].append((place, first, last))
            left[taker] -= last - first
            first = last
            if not left[taker]:
                takers.pop()
