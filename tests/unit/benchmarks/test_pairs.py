"""Number and order of measured rounds, and the agreement of arms."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from benchmarks.dataloading.errors import DisagreementError
from benchmarks.pairs.arms import Arm, Measured
from benchmarks.pairs.cells import Cell
from benchmarks.pairs.report import summarise
from benchmarks.pairs.rounds import TAKE, Limits, measure

NEW, OLD = Arm("feed", Path("new")), Arm("old", Path("old"))
CELL, OTHER = Cell("none, flat", ()), Cell("heavy, flat", ())
LIMITS = Limits(width=0.03, rounds=3, max_rounds=20, fresh_rounds=1)


@dataclass
class Machine:
    """Gives epochs whose seconds are known, and notes which were asked for."""

    noise: tuple[float, ...] = (0.0,)  # of the new arm's epochs, one after another
    calm_from: int = 0  # epochs of the new arm
    rows: dict[Arm, int] = field(default_factory=dict)
    taken: list[tuple[Cell, Arm]] = field(default_factory=list)
    epochs_of_process: list[int] = field(default_factory=lambda: [0])

    def run(self, arm: Arm, cell: Cell, consumer: str) -> Measured:
        """See Runs."""
        seconds = 1.0
        if consumer == TAKE:
            mine = self.taken.count((cell, arm))
            self.taken.append((cell, arm))
            self.epochs_of_process[-1] += 1
            is_noisy = arm == NEW and (not self.calm_from or mine < self.calm_from)
            seconds += self.noise[mine % len(self.noise)] if is_noisy else 0.0
        return Measured(
            seconds=seconds,
            steady_seconds_a_row=seconds / 100,
            cpu_seconds=seconds,
            sums={"rows": self.rows.get(arm, 100)},
            peak_bytes=1000 if arm == OLD else 1020,
        )

    def run_fresh(self, arm: Arm, cell: Cell, consumer: str) -> Measured:
        """See Runs."""
        return Machine().run(arm, cell, consumer)

    def renew(self) -> None:
        """See Runs."""
        self.epochs_of_process.append(0)


def test_arms_take_turns_and_another_is_first_each_round() -> None:
    machine = Machine()
    measure([NEW, OLD], [CELL], machine, LIMITS)
    assert [arm for _, arm in machine.taken] == [NEW, OLD, OLD, NEW, NEW, OLD]


def test_an_arm_has_several_processes_one_after_another() -> None:
    machine = Machine()
    limits = replace(LIMITS, rounds=12)
    measure([NEW, OLD], [CELL], machine, limits)
    assert machine.epochs_of_process == [10, 10, 4]


def test_rounds_are_added_until_the_bounds_are_narrow() -> None:
    machine = Machine(noise=(0.05, -0.05), calm_from=4)
    found = measure([NEW, OLD], [CELL], machine, LIMITS)
    num_rounds = len(found[CELL].taken[NEW])
    assert LIMITS.rounds < num_rounds < LIMITS.max_rounds
    ratio = found[CELL].speed(NEW, OLD)
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.high / ratio.low - 1 < LIMITS.width


def test_a_machine_that_is_never_calm_ends_at_the_most_rounds() -> None:
    found = measure([NEW, OLD], [CELL], Machine(noise=(0.5, -0.5)), LIMITS)
    assert len(found[CELL].taken[OLD]) == LIMITS.max_rounds


def test_arms_that_deliver_other_rows_are_refused() -> None:
    with pytest.raises(DisagreementError, match="old differs from feed"):
        measure([NEW, OLD], [CELL], Machine(rows={OLD: 99}), LIMITS)


def test_a_slower_subject_misses_its_target() -> None:
    arms = [NEW, OLD]
    found = measure(arms, [CELL], Machine(noise=(0.05,)), LIMITS)
    found |= measure(arms, [OTHER], Machine(), LIMITS)
    slow, equal = summarise(found, arms, 100)
    assert (slow["is_speed_met"], equal["is_speed_met"]) == (False, True)
    assert slow["speed"]["ratio_median"] == pytest.approx(1 / 1.05, rel=1e-3)
    assert (equal["memory"]["ratio_median"], equal["is_memory_met"]) == (1.02, True)
