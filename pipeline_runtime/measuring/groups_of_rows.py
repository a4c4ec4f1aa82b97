"""Metrics of groups of rows, such as those of a user or of a request: GAUC and NDCG.

The rows of a group must lie together in the table. Of each part, the groups of its first and last
row may go on in other parts, so their rows are kept; the other groups are finished at once. A
sample of these tells how many were found in more than one place.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline_runtime import hashing
from pipeline_runtime.measuring.base import (
    NO_ROWS,
    MergesValues,
    Result,
    describe_rows,
    list_columns,
    read_columns,
)
from pipeline_runtime.measuring.exact import (
    UNIT,
    Bools,
    Floats,
    Hashes,
    Ints,
    divide,
    sum_exactly,
)
from pipeline_runtime.measuring.values import GroupRows, Sample, State, Sums

# A group with more rows is not that of a user or a request. It would not fit into the state.
MAX_GROUP_ROWS = 65_536
# Groups of which it is known in how many places they were. With one group in 1,000 in two places,
# 4,096 have some of them with 98 % certainty.
_SAMPLE_SIZE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class _Groups:
    """Rows of whole groups, sorted by group and ascending score.

    Attributes:
        starts_G: the first row of each group.
        counts_G: the rows of each group.
        groups_N: the number of each row's group.
    """

    hashes_G: Hashes
    starts_G: Ints
    counts_G: Ints
    groups_N: Ints
    scores_N: Floats
    labels_N: Floats

    @classmethod
    def of(cls, rows: GroupRows) -> _Groups:
        """Return the groups of rows, which are sorted."""
        hashes_G, starts_G, counts_G = np.unique(
            rows.hashes_N, return_index=True, return_counts=True
        )
        return cls(
            hashes_G=hashes_G,
            starts_G=starts_G,
            counts_G=counts_G,
            groups_N=np.repeat(np.arange(len(hashes_G)), counts_G),
            scores_N=rows.scores_N,
            labels_N=rows.labels_N,
        )

    def find_ties(self) -> Bools:
        """Return true for each row that is the first of its group with its score."""
        is_first_N = np.ones(len(self.scores_N), dtype=np.bool_)
        is_first_N[1:] = self.scores_N[1:] != self.scores_N[:-1]
        is_first_N[self.starts_G] = True
        return is_first_N


@dataclass(frozen=True, slots=True, kw_only=True)
class _PerGroup(MergesValues):
    """A metric of each group, and its mean over the groups."""

    score: str
    label: str
    per: str
    max_group_rows: int = MAX_GROUP_ROWS

    @property
    def columns(self) -> frozenset[str]:
        return list_columns(self.score, self.label, self.per)

    def empty(self) -> State:
        return {
            "rows": NO_ROWS,
            "totals": Sums((0,) * 4),
            "large": Sums((0, 0)),
            "finished": Sample.empty(_SAMPLE_SIZE),
            "open": GroupRows.empty(self.max_group_rows),
        }

    def update(self, table: pa.Table) -> State:
        read = read_columns(
            table, score=self.score, label=self.label, group=self.per, is_binary=self._is_binary
        )
        hashes_N = hashing.hash_values(table.column(self.per))[read.is_used]
        empty = GroupRows.empty(self.max_group_rows)
        state = dict(self.empty()) | {"rows": read.counts()}
        if not len(hashes_N):
            return state
        is_open_N = (hashes_N == hashes_N[0]) | (hashes_N == hashes_N[-1])
        is_whole_N = ~is_open_N
        opened, whole = (
            empty.of(hashes_N[chosen], read["score"][chosen], read["label"][chosen])
            for chosen in (is_open_N, is_whole_N)
        )
        groups = _Groups.of(whole)
        finished, _ = Sample.empty(_SAMPLE_SIZE).count(groups.hashes_G)
        return state | {
            "totals": self._total(groups),
            "large": Sums((len(whole.large), sum(whole.large.values()))),
            "finished": finished,
            "open": opened,
        }

    def _total(self, groups: _Groups) -> Sums:
        """Return the weighted sum of the metric, the weights, the groups, and those left out."""
        if not len(groups.hashes_G):
            return Sums((0,) * 4)
        values_G, weights_G, is_known_G = self._measure(groups)
        num_known = int(is_known_G.sum())
        products_G = (values_G * weights_G)[is_known_G]
        return Sums(
            (
                sum_exactly(products_G),
                int(weights_G[is_known_G].sum()),
                num_known,
                len(values_G) - num_known,
            )
        )

    @property
    @abstractmethod
    def _is_binary(self) -> bool:
        """True if labels must be 0 or 1."""

    @abstractmethod
    def _measure(self, groups: _Groups) -> tuple[Floats, Ints, Bools]:
        """Return the metric of each group, its weight, and whether the group has the metric."""

    def finish(self, state: State) -> Result:
        rows, totals, large, finished, opened = (state[name] for name in self.empty())
        assert isinstance(rows, Sums)
        assert isinstance(totals, Sums)
        assert isinstance(large, Sums)
        assert isinstance(finished, Sample)
        assert isinstance(opened, GroupRows)
        last = _Groups.of(opened)
        total, weight, num_groups, num_left_out = totals.merge([self._total(last)]).numbers
        large = large.merge([Sums((len(opened.large), sum(opened.large.values())))])
        also_open = np.concatenate([last.hashes_G, np.array(list(opened.large), dtype=np.uint64)])
        is_apart_K = (finished.counts_K > 1) | np.isin(finished.hashes_K, also_open)
        num_finished = totals.numbers[2] + totals.numbers[3]
        num_apart = int(is_apart_K.sum()) * num_finished // max(1, len(is_apart_K))
        return describe_rows(rows) | {
            "value": divide(total, weight * UNIT) if weight else None,
            "measuredGroups": num_groups,
            "leftOutGroups": num_left_out,
            "largeGroups": large.numbers[0],
            "scatteredGroups": num_apart,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAuc(_PerGroup):
    """The mean AUC of groups, weighted by their rows (GAUC); see Zhou et al., "Deep interest
    network for click-through rate prediction", 2018.

    A group whose rows have one label only has no AUC, and is left out.
    """

    @property
    def _is_binary(self) -> bool:
        return True

    def _measure(self, groups: _Groups) -> tuple[Floats, Ints, Bools]:
        runs = np.flatnonzero(groups.find_ties())
        positives_N = groups.labels_N.astype(np.int64)
        positives_R = np.add.reduceat(positives_N, runs)
        negatives_R = np.add.reduceat(1 - positives_N, runs)
        groups_R = groups.groups_N[runs]
        first_runs_G = np.searchsorted(groups_R, np.arange(len(groups.starts_G)))
        below_R = np.cumsum(negatives_R) - negatives_R
        below_R -= below_R[first_runs_G][groups_R]
        doubled_G = np.add.reduceat(positives_R * (2 * below_R + negatives_R), first_runs_G)
        positives_G = np.add.reduceat(positives_R, first_runs_G)
        pairs_G = positives_G * (groups.counts_G - positives_G)
        is_known_G = pairs_G > 0
        return doubled_G / (2 * np.maximum(pairs_G, 1)), groups.counts_G, is_known_G


@dataclass(frozen=True, slots=True, kw_only=True)
class Ndcg(_PerGroup):
    """The mean NDCG of groups; rows with equal scores share their mean gain, as in scikit-learn.

    The gain of a row is its label. A group without a positive label is left out.

    Attributes:
        k: only the rows with the k highest scores have a gain; None: all rows.
    """

    k: int | None = None

    @property
    def _is_binary(self) -> bool:
        return False

    def _measure(self, groups: _Groups) -> tuple[Floats, Ints, Bools]:
        longest = int(groups.counts_G.max())
        discounts = 1 / np.log2(np.arange(longest) + 2)
        if self.k is not None:
            discounts[self.k :] = 0
        cumulated = np.concatenate([[0], np.cumsum(discounts)])
        ends_G = groups.starts_G + groups.counts_G

        runs = np.flatnonzero(groups.find_ties())
        groups_R = groups.groups_N[runs]
        first_runs_G = np.searchsorted(groups_R, np.arange(len(ends_G)))
        stops_R = np.append(runs[1:], len(groups.scores_N))
        gains_R = np.add.reduceat(groups.labels_N, runs) / (stops_R - runs)
        # Rows are in ascending order, so the last row of a group is at place 0.
        shares_R = cumulated[ends_G[groups_R] - runs] - cumulated[ends_G[groups_R] - stops_R]
        found_G = np.add.reduceat(gains_R * shares_R, first_runs_G)

        order = np.lexsort((-groups.labels_N, groups.groups_N))
        places_N = np.arange(len(order)) - np.repeat(groups.starts_G, groups.counts_G)
        best_G = np.add.reduceat(groups.labels_N[order] * discounts[places_N], groups.starts_G)
        is_known_G = best_G > 0
        values_G = found_G / np.where(is_known_G, best_G, 1)
        return values_G, np.ones(len(values_G), dtype=np.int64), is_known_G
