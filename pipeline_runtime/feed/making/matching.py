"""Counts the rows of training and evaluation before the steps of the pipeline.

Planning knows files and row groups alone. Whether an evaluation matches a row at all, how many rows
it matches, and which of them are the first by hash is known only once the columns of the condition
and of the identity have been read. `run.training` asks before anything starts, `explain` to show
the counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from pipeline_runtime.config import Evaluation
from pipeline_runtime.feed.making.work import run_group
from pipeline_runtime.plan.groups import Group
from pipeline_runtime.plan.model import Plan, StreamPlan
from pipeline_runtime.steps.base import ROW_HASH_COLUMN

_Hashes = npt.NDArray[np.uint64]
# Groups that are counted at a time for each thread: their hashes are held together.
_GROUPS_PER_THREAD = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """Rows that a stream matches.

    Attributes:
        num_rows: number of all of them.
        bound: the smallest hash that does not belong to the first `max_rows` rows by hash; None if
            all rows do.
        num_kept: number of rows with a smaller hash.
    """

    num_rows: int
    bound: int | None
    num_kept: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleCounts:
    """Rows of training and evaluation before the steps of the pipeline.

    Attributes:
        training: rows to train on.
        matching: rows that the evaluation holds out.
        evaluation: rows of these that evaluate the model; fewer with `maxRows`.
    """

    training: int
    matching: int
    evaluation: int

    def describe(self) -> str:
        """Return a line for people."""
        limit = f" of {self.matching:,} that match" if self.evaluation < self.matching else ""
        return (
            f"Rows before the steps: {self.training:,} for training, {self.evaluation:,}{limit} "
            "for evaluation"
        )

    def to_json(self) -> dict[str, int]:
        """Return the counts as `explain --json` has them."""
        return asdict(self)


def count_roles(plan: Plan, evaluation: Evaluation | None) -> RoleCounts | None:
    """Read and count the rows of training and evaluation; None without an evaluation."""
    if evaluation is None or not plan.matching:
        return None
    found = count_matches(plan.matching["evaluation"], evaluation.max_rows)
    return RoleCounts(
        training=count_matches(plan.matching["training"]).num_rows,
        matching=found.num_rows,
        evaluation=found.num_kept,
    )


def has_row(stream: StreamPlan) -> bool:
    """Return whether any row comes out of a stream; reading stops at the first one."""
    chunk_rows = stream.chunk_rows
    return any(len(_read_hashes(stream, g, chunk_rows)) for g in stream.groups(0, chunk_rows))


def count_matches(stream: StreamPlan, max_rows: int | None = None) -> Matches:
    """Read a stream and count its rows.

    Args:
        stream: without columns, such as one of `Plan.matching`.
        max_rows: number of rows to keep, by the smallest hashes; None: all.
    """
    num_rows, first = 0, np.empty(0, dtype=np.uint64)
    for hashes in _read_all(stream):
        num_rows += len(hashes)
        if max_rows is not None:
            first = np.concatenate([first, hashes])
            if len(first) > max_rows:
                first = np.partition(first, max_rows)[: max_rows + 1]
    if max_rows is None or num_rows <= max_rows:
        return Matches(num_rows=num_rows, bound=None, num_kept=num_rows)
    # Rows of equal hashes have equal keys: all or none of them evaluate.
    bound = first.max()
    return Matches(num_rows=num_rows, bound=int(bound), num_kept=int((first < bound).sum()))


def _read_all(stream: StreamPlan) -> Iterator[_Hashes]:
    """Yield the hashes of each group's rows; threads read the groups."""
    chunk_rows, num_threads = stream.chunk_rows, len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(num_threads, "lastmile-counting") as threads:
        groups, at_once = stream.groups(0, chunk_rows), num_threads * _GROUPS_PER_THREAD
        for first in range(0, len(groups), at_once):
            some = groups[first : first + at_once]
            yield from threads.map(lambda group: _read_hashes(stream, group, chunk_rows), some)


def _read_hashes(stream: StreamPlan, group: Group, chunk_rows: int) -> _Hashes:
    """Return the identity hashes of the rows that a group leaves."""
    parts = [np.empty(0, dtype=np.uint64)]
    for chunk in run_group(stream, group, chunk_rows):
        parts.append(chunk.table.column(ROW_HASH_COLUMN).to_numpy())
    return np.concatenate(parts)
