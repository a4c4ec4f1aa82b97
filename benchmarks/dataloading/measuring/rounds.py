"""Rounds: all contenders of a level in turn, after a calibration that shows if the machine is calm.

A round whose calibration is far from the median of all is dropped, counted and repeated.
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
# The bound for a machine that is never calm; the results have the number of rounds.
_MAX_TRIES_A_ROUND: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One turn of all contenders of a level, and the decode floors just before it."""

    level: str
    calibration: dict[Contender, Epoch]
    epochs: dict[Contender, Epoch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """The valid rounds of a level, and the dropped ones."""

    kept: list[Round]
    set_aside: list[Round]


def measure_rounds(
    measure: Callable[[int], Round], wanted: int, *, keeps_all: bool = False
) -> Rounds:
    """Measure rounds until enough are valid.

    Args:
        measure: measures the round with an index.
        wanted: number of valid rounds; there are fewer if the machine is hardly ever calm.
        keeps_all: rounds are valid whatever their calibration.

    Raises:
        BenchmarkError: no round is valid.
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
