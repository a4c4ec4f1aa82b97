"""The evaluation rows that several runs share, with the predictions of all of them.

Each run keeps the rows of its last evaluation in `evaluation.parquet`. The column `row` is a hash
of the row's identity, by which rows of different runs are paired; rows that a join repeated have
equal hashes and are left out. `bootstrap` runs after this.

Legend: N rows in common, M runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline_runtime.comparison.bootstrap import ScoredRows

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedScores:
    """The rows in common.

    Attributes:
        num_changed_labels: rows whose label is not the same in all runs.
        has_changed_weights: whether a row's weight is not the same in all runs; those of the first
            run count.
        num_repeated: rows of the first run that are left out because they have the same identity.
    """

    rows: ScoredRows
    num_changed_labels: int
    has_changed_weights: bool
    num_repeated: int


def pair_rows(tables: Sequence[pa.Table]) -> SharedScores:
    """Pair the evaluation rows of runs, given their tables, at least one."""
    found = [_find_unique(table["row"].to_numpy()) for table in tables]
    shared_N = reduce(np.intersect1d, (row for row, _ in found))
    places = [place[np.searchsorted(row, shared_N)] for row, place in found]

    def pick(name: str) -> npt.NDArray[np.generic]:
        columns = (table[name].to_numpy() for table in tables)
        return np.stack([column[place] for column, place in zip(columns, places, strict=True)])

    label_MN, weight_MN = pick("label"), pick("weight")
    group_N = tables[0]["group"].to_numpy()[places[0]]
    return SharedScores(
        rows=ScoredRows(
            group_N=np.unique(group_N, return_inverse=True)[1].astype(np.int64),
            label_N=label_MN[0].astype(np.float64),
            weight_N=weight_MN[0].astype(np.float64),
            prediction_MN=pick("prediction").astype(np.float32),
            loss_MN=pick("loss").astype(np.float32),
        ),
        num_changed_labels=int((label_MN != label_MN[0]).any(axis=0).sum()),
        has_changed_weights=bool((weight_MN != weight_MN[0]).any()),
        num_repeated=tables[0].num_rows - len(found[0][0]),
    )


def _find_unique(row_N: Hashes) -> tuple[Hashes, npt.NDArray[np.intp]]:
    """Return the hashes that occur once, sorted, and their places."""
    row, place, count = np.unique(row_N, return_index=True, return_counts=True)
    return row[count == 1], place[count == 1]
