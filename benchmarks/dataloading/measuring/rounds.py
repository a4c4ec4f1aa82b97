"""Rounds: all contenders of a level in turn, after a calibration that says how calm the machine is.

A round whose calibration is far off the median of all is set aside and repeated, and counted.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.dataloading.errors import BenchmarkError
from benchmarks.dataloading.measuring.epochs import Epoch
from benchmarks.dataloading.peers import Contender

MAX_OFF: Final = 0.15  # of the median calibration
# A machine that is never calm ends the repeating; the results then say how many rounds there are.
_MAX_TRIES_A_ROUND: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One turn of all contenders of a level, and who only decodes just before it."""

    level: str
    calibration: dict[Contender, Epoch]
    epochs: dict[Contender, Epoch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """The rounds of a level that count, and those that were set aside."""

    kept: list[Round]
    set_aside: list[Round]


def measure_rounds(
    measure: Callable[[int], Round], wanted: int, *, keeps_all: bool = False
) -> Rounds:
    """Measure rounds until so many count.

    Args:
        measure: one round; takes its index.
        wanted: rounds that shall count; fewer do if the machine is hardly ever calm.
        keeps_all: whether rounds count whatever their calibration.

    Raises:
        BenchmarkError: no round counts.
    """
    if keeps_all:
        return Rounds(kept=[measure(index) for index in range(wanted)], set_aside=[])
    rounds: list[Round] = []
    while len(rounds) < wanted * _MAX_TRIES_A_ROUND:
        rounds.append(measure(len(rounds)))
        if sum(are_calm(rounds)) >= wanted:
            break
    calm = are_calm(rounds)
    if not any(calm):
        raise BenchmarkError(
            f"calibrations: must be within {MAX_OFF:.0%} of their median, got none of "
            f"{len(rounds)} that is; stop what runs beside the benchmark"
        )
    return Rounds(
        kept=[found for found, keeps in zip(rounds, calm, strict=True) if keeps][:wanted],
        set_aside=[found for found, keeps in zip(rounds, calm, strict=True) if not keeps],
    )


def are_calm(rounds: Sequence[Round]) -> list[bool]:
    """Return for each round whether the calibration of every floor is near the median."""
    medians = {
        name: statistics.median(found.calibration[name].seconds for found in rounds)
        for name in rounds[0].calibration
    }
    return [
        all(abs(e.seconds / medians[n] - 1) <= MAX_OFF for n, e in found.calibration.items())
        for found in rounds
    ]
