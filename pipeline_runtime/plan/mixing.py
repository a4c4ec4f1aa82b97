"""The order of units in a table whose neighbouring rows are alike: sorted, bucketed, partitioned.

A batch of such a table would hold the rows of one user or one day. So every group gets units from
all over the table, and its chunks take rows of all of them in proportion (`groups.Group.cuts`).

    strata    units sorted by partition, then by place in their bucket, and cut into strata of as
              many units as there are groups. A group gets one unit of each stratum. Strata are
              drawn in pairs, one from each end, so that the means of all groups' places are equal:
              with eight units of 30 days, groups would otherwise differ by days.
    windows   a join by bucket needs an index of the side table for each residue of its buckets. So
              the epoch is cut into windows of few residues, and the groups of a window follow one
              after another. Rows of a bucket are chosen by a hash, so that windows are alike.

`groups.plan_groups` calls `spread_units`; the generator is the only source of randomness.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline_runtime.sources import Unit

# Units that a group reads at a time. Eight is the least that mixes, and what memory must allow.
MIN_UNITS = 8
# Thirty days, the usual length of a training window; more open files gain little.
MAX_UNITS = 32
# Uncompressed bytes of the units that a group reads at a time, unless eight have more. A reader
# holds their compressed columns that the plan reads, a fraction of this.
MAX_OPEN_BYTES = 1 << 30
# A unit is no use in chunks that have fewer rows of it.
_MIN_ROWS_OF_UNIT = 8
# With fewer groups, readers wait at the end of an epoch, and ranks have unequal numbers of rows.
_MIN_GROUPS = 32
# Residues of a window: eight buckets are mixed, and eight indices are in memory.
_WINDOW_RESIDUES = 8
# Fill of a chunk by units that are much smaller, so that most groups stay one chunk.
_FILL = 7 / 8
# Times that each stratum is dealt again; more gain nothing that shows in batches.
_NUM_TURNS = 4

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """The way in which groups get units from all over a table.

    Attributes:
        residues: buckets with equal remainders of a division by this number need the same indices
            of side tables; None if no step needs any.
    """

    residues: int | None = None

    @property
    def num_windows(self) -> int:
        """Number of windows of an epoch, each with at least eight residues if there are as many."""
        return max(1, (self.residues or 1) // _WINDOW_RESIDUES)


def count_units(units: Sequence[Unit], chunk_rows: int) -> int:
    """Return the number of units that a group should read at a time; 1 if chunks are too short."""
    mean_bytes = max(1, sum(unit.num_bytes for unit in units) // max(1, len(units)))
    most = min(MAX_UNITS, MAX_OPEN_BYTES // mean_bytes, len(units) // _MIN_GROUPS)
    return max(1, min(max(MIN_UNITS, most), chunk_rows // _MIN_ROWS_OF_UNIT))


def spread_units(
    units: Sequence[Unit], chunk_rows: int, mixing: Mixing, generator: np.random.Generator
) -> list[list[Unit]]:
    """Return the units of each group of an epoch; every unit is in one group."""
    if not units:
        return []
    num_units = count_units(units, chunk_rows)
    values = _values_of(units)
    rows = np.array([unit.num_rows for unit in units], dtype=np.float64)
    pulls = rows * (values - np.dot(rows, values) / max(1.0, rows.sum()))
    groups: list[list[Unit]] = []
    for window in _cut_into_windows(units, pulls, mixing, generator):
        num_chunks = -(-int(rows[window].sum()) // max(1, int(chunk_rows * _FILL)))
        num_groups = max(1, min(num_chunks, len(window) // num_units))
        order = window[np.argsort(values[window], kind="stable")]
        group_of = dict(zip(order, _deal(pulls[order], num_groups, generator), strict=True))
        members: list[list[Unit]] = [[] for _ in range(num_groups)]
        for place in window:
            members[group_of[place]].append(units[place])
        groups += members
    return groups


def _cut_into_windows(
    units: Sequence[Unit], pulls: _Floats, mixing: Mixing, generator: np.random.Generator
) -> list[_Ints]:
    """Return the places of the units of each window, in random order.

    Units without a bucket may need any index, and are spread over all windows.
    """
    shuffled = generator.permutation(len(units))
    if mixing.residues is None or mixing.num_windows == 1:
        return [shuffled]
    residues = np.array([-1 if unit.bucket is None else unit.bucket for unit in units])
    residues = np.where(residues < 0, -1, residues % mixing.residues)
    counted = np.bincount(residues + 1, weights=pulls, minlength=mixing.residues + 1)
    totals = counted[1:].astype(np.float64)
    order = generator.permutation(mixing.residues)
    order = order[np.argsort(totals[order], kind="stable")]
    window_of = np.empty(mixing.residues, dtype=np.int64)
    window_of[order] = _deal(totals[order], mixing.num_windows, generator)
    anywhere = np.arange(len(units)) % mixing.num_windows
    windows = np.where(residues < 0, anywhere, window_of[residues])[shuffled]
    cut = [shuffled[windows == window] for window in range(mixing.num_windows)]
    return [window for window in cut if len(window)]


def _values_of(units: Sequence[Unit]) -> _Floats:
    """Return a number for each unit: of its partition in order, and its relative place in there.

    The relative place is that among the units of its bucket. Rows of buckets that are written in
    the order of time are as old if they are at the same relative place.
    """
    names = sorted({name for unit in units for name in unit.partition})
    partitions = [tuple(_sortable(unit.partition.get(name)) for name in names) for unit in units]
    ranks = {partition: rank for rank, partition in enumerate(sorted(set(partitions)))}
    places = [(ranks[p], unit.bucket) for p, unit in zip(partitions, units, strict=True)]
    totals, seen = Counter(places), Counter[tuple[int, int | None]]()
    values = []
    for place in places:
        values.append(place[0] + (seen[place] + 0.5) / totals[place])
        seen[place] += 1
    return np.array(values)


def _sortable(value: Any) -> tuple[bool, str, Any]:
    """Return a key that sorts the values of a partition column, nulls and other types included."""
    is_null = value is None or value != value  # NaN
    return (is_null, type(value).__name__, 0 if is_null else value)


def _deal(pulls: _Floats, num_groups: int, generator: np.random.Generator) -> _Ints:
    """Return the group of each unit: of each stratum, one unit in each group.

    Units are dealt at random first. Then each stratum is dealt again in the order that brings the
    groups closest together: those with the largest pulls go to the groups with the smallest sums.

    Args:
        pulls: of each unit, the rows by which it moves the mean of its group from the table's, in
            the order by which strata are cut.
    """
    strata, first, last = [], 0, len(pulls)
    while last - first >= 2 * num_groups:  # from both ends to the middle, where pulls are small
        strata += [np.arange(first, first + num_groups), np.arange(last - num_groups, last)]
        first, last = first + num_groups, last - num_groups
    middle = first + np.argsort(-np.abs(pulls[first:last]), kind="stable")
    strata += [middle[:num_groups], middle[num_groups:]]
    group_of = np.empty(len(pulls), dtype=np.int64)
    for stratum in strata:
        group_of[stratum] = generator.permutation(num_groups)[: len(stratum)]
    sums = np.bincount(group_of, weights=pulls, minlength=num_groups).astype(np.float64)
    for stratum in strata * _NUM_TURNS:
        groups = group_of[stratum]
        sums[groups] -= pulls[stratum]
        ascending = stratum[np.argsort(pulls[stratum], kind="stable")]
        group_of[ascending] = groups[np.argsort(-sums[groups], kind="stable")]
        sums[group_of[stratum]] += pulls[stratum]
    return group_of
