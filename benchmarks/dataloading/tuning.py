"""What can be set of a peer, and how its best setting is found before it is compared.

Every candidate runs once; the fastest few run again, and the shortest median wins. A peer that is
tuned on fewer rows than it is measured on is tuned by its steady state, which is what is compared.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import product
from typing import Final

from benchmarks.dataloading.epochs import Epoch
from benchmarks.dataloading.jobs import BATCHES, ROW_GROUPS, Tuning

_WORKERS: Final = (0, 1, 2, 3, 4)
_PREFETCH: Final = (2, 4, 8)
_GROUPS_A_TASK: Final = (1, 2, 4, 8)
_NUM_FINALISTS: Final = 4


def dataloader_candidates() -> list[Tuning]:
    """A DataLoader's: workers, how far ahead, and what is shipped."""
    alone = [Tuning(unit=unit) for unit in (BATCHES, ROW_GROUPS)]
    grid = product(_WORKERS[1:], _PREFETCH, (BATCHES, ROW_GROUPS))
    return alone + [Tuning(workers=w, prefetch=p, unit=u) for w, p, u in grid]


def ray_candidates() -> list[Tuning]:
    """Ray Data's: how much work a task carries."""
    return [Tuning(groups=groups) for groups in _GROUPS_A_TASK]


def quick(candidates: Sequence[Tuning]) -> list[Tuning]:
    """The first and the last: enough to see that tuning works."""
    return [candidates[0], candidates[-1]] if len(candidates) > 1 else list(candidates)


def tune(
    run: Callable[[Tuning], Epoch], candidates: Sequence[Tuning], finals: int
) -> tuple[Tuning, list[tuple[Tuning, Epoch]]]:
    """Find the best of some settings.

    Args:
        run: measures an epoch with a setting.
        candidates: at least one.
        finals: how often the fastest few run again.

    Returns:
        The setting with the shortest median epoch in its steady state, and all epochs measured.
    """
    epochs = [(candidate, run(candidate)) for candidate in candidates]
    ranked = sorted(epochs, key=lambda pair: pair[1].steady_seconds_a_row)
    finalists = [candidate for candidate, _ in ranked[:_NUM_FINALISTS]]
    for _ in range(finals):
        epochs += [(candidate, run(candidate)) for candidate in finalists]
    return best_of(epochs, finalists), epochs


def best_of(epochs: Sequence[tuple[Tuning, Epoch]], finalists: Sequence[Tuning]) -> Tuning:
    """The finalist whose median epoch was the shortest in its steady state."""

    def seconds(candidate: Tuning) -> float:
        mine = [epoch for found, epoch in epochs if found == candidate]
        return statistics.median(epoch.steady_seconds_a_row for epoch in mine)

    return min(finalists, key=seconds)
