"""Settings of peers, and the search for the best one before the comparison.

Every candidate runs once, on few rows. There, a setting that prefetches much looks fast in its
steady state, and one that starts quickly looks fast as a whole. So the fastest few of both kinds
run again on the rows of the comparison. The setting with the shortest median in its steady state,
which is the compared quantity, wins.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from benchmarks.dataloading.jobs import BATCHES, ROW_GROUPS, Tuning
from benchmarks.dataloading.measuring.epochs import Epoch

_WORKERS: Final = (0, 1, 2, 3, 4)
_PREFETCH: Final = (2, 4, 8)
_GROUPS_A_TASK: Final = (1, 2, 4, 8)
_NUM_FINALISTS: Final = 4


def dataloader_candidates() -> list[Tuning]:
    """List the candidates of a DataLoader: workers, prefetched units, and the unit that is sent."""
    alone = [Tuning(unit=unit) for unit in (BATCHES, ROW_GROUPS)]
    grid = product(_WORKERS[1:], _PREFETCH, (BATCHES, ROW_GROUPS))
    return alone + [Tuning(workers=w, prefetch=p, unit=u) for w, p, u in grid]


def ray_candidates() -> list[Tuning]:
    """List the candidates of Ray Data: the row groups of a task."""
    return [Tuning(groups=groups) for groups in _GROUPS_A_TASK]


def quick(candidates: Sequence[Tuning]) -> list[Tuning]:
    """Return the first and the last candidate: enough to test the tuning."""
    return [candidates[0], candidates[-1]] if len(candidates) > 1 else list(candidates)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The result of a tuning.

    Attributes:
        best: the setting for the comparison.
        tried: every setting with its epoch on few rows.
        finals: the fastest settings, with each of their epochs on all rows.
    """

    best: Tuning
    tried: list[tuple[Tuning, Epoch]]
    finals: list[tuple[Tuning, Epoch]]


def tune(
    run: Callable[[Tuning], Epoch],
    run_whole: Callable[[Tuning], Epoch],
    candidates: Sequence[Tuning],
    finals: int,
) -> Tuned:
    """Find the best setting.

    Args:
        run, run_whole: measure an epoch with a setting, on few rows and on all rows.
        candidates: at least one.
        finals: how often the fastest few run on all rows; with 0 the few rows decide.
    """
    run(candidates[0])  # so that it does not pay for what a process loads once
    tried = [(candidate, run(candidate)) for candidate in candidates]
    finalists = _choose_finalists(tried)
    whole = [(candidate, run_whole(candidate)) for _ in range(finals) for candidate in finalists]
    return Tuned(best=best_of(whole or tried), tried=tried, finals=whole)


def _choose_finalists(tried: Sequence[tuple[Tuning, Epoch]]) -> list[Tuning]:
    """Return the fastest settings in their steady state and as a whole, in turn."""
    steady = sorted(tried, key=lambda pair: pair[1].steady_seconds_a_row)
    whole = sorted(tried, key=lambda pair: pair[1].seconds)
    ranked = [candidate for pair in zip(steady, whole, strict=True) for candidate, _ in pair]
    return list(dict.fromkeys(ranked))[:_NUM_FINALISTS]


def best_of(epochs: Sequence[tuple[Tuning, Epoch]]) -> Tuning:
    """Return the setting with the shortest median epoch in its steady state."""

    def seconds(candidate: Tuning) -> float:
        mine = [epoch for found, epoch in epochs if found == candidate]
        return statistics.median(epoch.steady_seconds_a_row for epoch in mine)

    return min(dict.fromkeys(candidate for candidate, _ in epochs), key=seconds)
