"""From units (row groups) to groups: what one reader reads, shuffles within, and hands on in order.

Units are permuted by (seed, epoch) and cut into groups at plan time, so that a batch depends only
on (plan, seed, epoch, group, index) and never on which worker made it. A group longer than the
window is handed on in pieces of at most `rows_per_piece` rows; rows are permuted within a piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline_runtime.config import Shuffle
from pipeline_runtime.config.training import DEFAULT_SHUFFLE_ROWS
from pipeline_runtime.sources import Unit

# A piece is held whole by a worker, the object store and the trainer: 256 MiB uncompressed is
# memory that the smallest data worker (2 GiB) can spare for two of them at once.
MAX_PIECE_BYTES = 256 << 20
# A longer row group is cut without a shuffle too: its first rows should not wait for its last.
_MAX_UNCUT_ROWS = 131_072


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Units that one reader reads in this order, in this epoch."""

    epoch: int
    index: int
    units: tuple[Unit, ...]


def permutation(seed: int, epoch: int, *keys: int, size: int) -> np.ndarray:
    """The one place where seed and epoch enter an order: a permutation of range(size)."""
    sequence = np.random.SeedSequence([seed, epoch, *keys])
    return np.random.Generator(np.random.Philox(sequence)).permutation(size)


def rows_per_piece(units: Sequence[Unit], shuffle: Shuffle, limit: int | None = None) -> int:
    """Rows that a piece has at most: the window, less where rows are wide.

    Without a shuffle a longer row group is not cut, unless the window is smaller than the default:
    what a piece costs whatever its length, some milliseconds of Python's lock, is a fifth of the
    work on 32,768 narrow rows.
    """
    rows = sum(unit.num_rows for unit in units)
    width_bytes = max(1, sum(unit.num_bytes for unit in units) // max(1, rows))
    fitting = max(1, MAX_PIECE_BYTES // width_bytes)
    window = shuffle.window_rows
    if shuffle.unit == "None" and window >= DEFAULT_SHUFFLE_ROWS:
        window = max([window, *(min(unit.num_rows, _MAX_UNCUT_ROWS) for unit in units)])
    return min(window, fitting, limit or window)


def plan_groups(
    units: Sequence[Unit], *, seed: int, epoch: int, shuffle: Shuffle, piece_rows: int
) -> list[Group]:
    """Cut an epoch's units into groups of about `piece_rows` rows, in the epoch's order."""
    order = (
        range(len(units)) if shuffle.unit == "None" else permutation(seed, epoch, size=len(units))
    )
    groups: list[Group] = []
    current: list[Unit] = []
    rows = 0
    for position in order:
        unit = units[int(position)]
        if current and rows + unit.num_rows > piece_rows:
            groups.append(Group(epoch=epoch, index=len(groups), units=tuple(current)))
            current, rows = [], 0
        current.append(unit)
        rows += unit.num_rows
    if current:
        groups.append(Group(epoch=epoch, index=len(groups), units=tuple(current)))
    return groups
