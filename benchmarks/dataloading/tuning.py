"""The search for the best setting of a peer before the comparison.

Every candidate runs once, on few rows. There, a setting that prefetches much looks fast in its
steady state, and one that starts quickly looks fast as a whole. So the fastest few of both kinds
run again on the rows of the comparison. The setting with the shortest median in its steady state,
which is the compared quantity, wins.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Final

from benchmarks.dataloading.jobs import Tuning
from benchmarks.dataloading.measuring.epochs import Epoch
from benchmarks.harness.rounds import check_agreement

_NUM_FINALISTS: Final = 4
Tried = list[tuple[Tuning, Epoch]]


def tune(
    run: Callable[[Tuning], Epoch],
    run_whole: Callable[[Tuning], Epoch],
    candidates: Sequence[Tuning],
    finals: int,
) -> Tuning:
    """Return the best setting.

    Args:
        run, run_whole: measure an epoch with a setting, on few rows and on all rows.
        candidates: at least one.
        finals: how often the fastest few run on all rows; with 0 the few rows decide.
    """
    run(candidates[0])  # so that it does not pay for what a process loads once
    tried = [(candidate, run(candidate)) for candidate in candidates]
    finalists = _choose_finalists(tried)
    whole = [(candidate, run_whole(candidate)) for _ in range(finals) for candidate in finalists]
    for epochs in (tried, whole):
        sums = {f"{tuning} ({place})": epoch.sums for place, (tuning, epoch) in enumerate(epochs)}
        if sums:
            check_agreement("tuning", sums)
    return _best_of(whole or tried)


def _choose_finalists(tried: Tried) -> list[Tuning]:
    """Return the fastest settings in their steady state and as a whole, in turn."""
    steady = sorted(tried, key=lambda pair: pair[1].steady_seconds_a_row)
    whole = sorted(tried, key=lambda pair: pair[1].seconds)
    ranked = [candidate for pair in zip(steady, whole, strict=True) for candidate, _ in pair]
    return list(dict.fromkeys(ranked))[:_NUM_FINALISTS]


def _best_of(epochs: Tried) -> Tuning:
    def seconds(candidate: Tuning) -> float:
        mine = [epoch for found, epoch in epochs if found == candidate]
        return statistics.median(epoch.steady_seconds_a_row for epoch in mine)

    return min(dict.fromkeys(candidate for candidate, _ in epochs), key=seconds)
