"""Rounds: the arms of each cell in turn, until the bounds of its ratios are narrow enough."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.dataloading.measuring.checksums import check_agreement
from benchmarks.dataloading.reporting.ratios import Ratio, pair_ratios
from benchmarks.pairs.arms import Arm, Measured
from benchmarks.pairs.cells import Cell
from benchmarks.turns import in_turn

TAKE, PROVE = "take", "prove"
# Some processes are a few percent slower than others of the same code, by where their memory lies.
# So an arm has several of them, one after another.
ROUNDS_OF_A_PROCESS = 5


class Runs(Protocol):
    """Measures epochs: `arms.Processes`, or a stand-in."""

    def run(self, arm: Arm, cell: Cell, consumer: str) -> Measured:
        """Measure an epoch in a process that stays."""
        ...

    def run_fresh(self, arm: Arm, cell: Cell, consumer: str) -> Measured:
        """Measure an epoch in a process of its own."""
        ...

    def renew(self) -> None:
        """End the processes that stay; later epochs run in new ones."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on the duration of a measurement.

    Attributes:
        width: rounds are added to a cell until its upper bounds are less than this share above
            the lower ones.
        rounds: at least so many in each cell.
        max_rounds: at most.
        fresh_rounds: in fresh processes, for the peak of their memory.
    """

    width: float
    rounds: int
    max_rounds: int
    fresh_rounds: int


@dataclass(slots=True, kw_only=True)
class CellEpochs:
    """The epochs of a cell by arm, round by round; `fresh` ones are of processes of their own."""

    taken: dict[Arm, list[Measured]] = field(default_factory=lambda: defaultdict(list))
    fresh: dict[Arm, list[Measured]] = field(default_factory=lambda: defaultdict(list))

    def speed(self, subject: Arm, base: Arm) -> Ratio:
        """Return the subject's steady speed over the base's."""
        mine, others = (
            [1 / epoch.steady_seconds_a_row for epoch in self.taken[arm]] for arm in (subject, base)
        )
        return pair_ratios(mine, others)


def measure(
    arms: Sequence[Arm], cells: Sequence[Cell], runs: Runs, limits: Limits
) -> dict[Cell, CellEpochs]:
    """Measure all cells; the first arm is the subject.

    Raises DisagreementError if arms deliver different rows, BenchmarkError if an epoch fails.
    """
    found = {cell: CellEpochs() for cell in cells}
    for cell in cells:
        _prove(arms, cell, runs)
        for index in range(limits.fresh_rounds):
            for arm in in_turn(arms, index):
                found[cell].fresh[arm].append(runs.run_fresh(arm, cell, TAKE))
    for index in range(limits.max_rounds):
        wide = [cell for cell in cells if not _is_enough(found[cell], arms, limits)]
        if not wide:
            break
        if index and index % ROUNDS_OF_A_PROCESS == 0:
            runs.renew()
            for cell in wide:
                _prove(arms, cell, runs)
        for cell in wide:
            for arm in in_turn(arms, index):
                found[cell].taken[arm].append(runs.run(arm, cell, TAKE))
            _check_and_tell(index, cell, found[cell], arms)
    return found


def _prove(arms: Sequence[Arm], cell: Cell, runs: Runs) -> None:
    """Check that arms deliver equal values; it loads kernels and fills the page cache besides."""
    check_agreement(cell.name, {arm.name: runs.run(arm, cell, PROVE).sums for arm in arms})


def _is_enough(epochs: CellEpochs, arms: Sequence[Arm], limits: Limits) -> bool:
    subject, *bases = arms
    if len(epochs.taken[subject]) < limits.rounds:
        return False
    return all(_width(epochs.speed(subject, base)) < limits.width for base in bases)


def _width(ratio: Ratio) -> float:
    if ratio.low is None or ratio.high is None:
        return float("inf")
    return ratio.high / ratio.low - 1


def _check_and_tell(index: int, cell: Cell, epochs: CellEpochs, arms: Sequence[Arm]) -> None:
    subject, *bases = arms
    check_agreement(cell.name, {arm.name: epochs.taken[arm][-1].sums for arm in arms})
    told = []
    for base in bases:
        ratio = epochs.speed(subject, base)
        width = "" if ratio.low is None else f" [{ratio.low:.3f}–{ratio.high:.3f}]"
        told.append(f"{ratio.median:.3f}{width} of {base.name}")
    print(f"round {index + 1}: {cell.name}: {'; '.join(told)}", file=sys.stderr, flush=True)
