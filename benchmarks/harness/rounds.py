"""The rounds of a cell: all arms in each, in a random order that is fixed for each round."""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from benchmarks.harness.cells import Cell, Values
from benchmarks.harness.errors import BenchmarkError, DisagreementError

# A round is set aside if a calibrating arm is further than this from its median.
MAX_OFF: Final = 0.15
_MAX_SHOWN: Final = 5  # columns that a message names

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of an arm: its metrics, and a checksum of its output that all arms must share."""

    values: Mapping[str, float]
    checksum: Any = None


Arm = Callable[[], Sample]
_Round = dict[str, Mapping[str, float]]  # the values of each arm


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Number of rounds.

    Attributes:
        count: rounds that count.
        warmups: runs of each arm before the rounds, whose output is checked and whose values are
            not used.
        max_count: at most so many rounds, if some are set aside.
        before: called before each round with its index, for example to renew processes.
        calibration: a metric, and arms for which it shows how calm the machine is. A round in which
            it deviates more than `MAX_OFF` from the median is set aside, and another one is
            measured, up to `max_count` in all.
    """

    count: int
    warmups: int = 1
    max_count: int = 0
    before: Callable[[int], None] = lambda _: None
    calibration: tuple[str, Sequence[str]] | None = None


def in_order_of(items: Sequence[T], index: int) -> list[T]:
    """Return the items in the random order of a round."""
    return random.Random(index).sample(items, len(items))


def measure(
    name: str,
    arms: Mapping[str, Arm],
    rounds: Rounds,
    *,
    x: float | None = None,
) -> Cell:
    """Measure a cell, whose base is the first arm.

    Raises:
        DisagreementError: two arms delivered different output.
        BenchmarkError: an arm failed, or no round was calm.
    """
    first: dict[str, Any] = {}  # the arm that ran first, and its output

    def run(arm: str) -> Mapping[str, float]:
        sample = arms[arm]()
        if sample.checksum is not None:
            first.update({} if first else {arm: sample.checksum})
            check_agreement(name, {**first, f"{arm} (again)": sample.checksum})
        return sample.values

    for arm in list(arms) * rounds.warmups:
        run(arm)
    cell = Cell(name=name, base=next(iter(arms)), arms={}, x=x)
    kept: list[_Round] = []
    calm: list[_Round] = []
    while len(kept) < max(rounds.count, rounds.max_count):
        rounds.before(len(kept))
        kept.append({arm: run(arm) for arm in in_order_of(list(arms), len(kept))})
        calm = _choose_calm(kept, rounds.calibration)
        cell.arms = {arm: _collect([one[arm] for one in calm]) for arm in arms}
        _print_progress(cell, len(kept))
        if len(calm) >= rounds.count:
            break
    if not calm:
        raise BenchmarkError(
            f"{name}: the calibration must be within {MAX_OFF:.0%} of its median, but is not in "
            f"any of {len(kept)} rounds. Stop other work on this machine."
        )
    if len(kept) > len(calm):
        cell.facts["setAside"] = len(kept) - len(calm)
    for checksum in first.values():
        cell.facts["checksum"] = _shorten(checksum)
        if isinstance(checksum, Mapping) and "rows" in checksum:
            cell.facts["rows"] = checksum["rows"]
    return cell


def _collect(rounds: Sequence[Mapping[str, float]]) -> Values:
    found: Values = {}
    for values in rounds:
        for metric, value in values.items():
            found.setdefault(metric, []).append(value)
    return found


def _choose_calm(
    kept: Sequence[_Round], calibration: tuple[str, Sequence[str]] | None
) -> list[_Round]:
    """Return the rounds whose calibration is near the median of all."""
    metric, arms = calibration or ("", ())
    medians = {arm: statistics.median(one[arm][metric] for one in kept) for arm in arms}
    return [
        one
        for one in kept
        if all(abs(one[arm][metric] / median - 1) <= MAX_OFF for arm, median in medians.items())
    ]


def check_agreement(what: str, found: Mapping[str, Any]) -> None:
    """Compare the checksums of arms; each is a value, or a mapping with one for every column.

    Raises DisagreementError, which names arms, columns and both sides.
    """
    outputs = {arm: c if isinstance(c, Mapping) else {"output": c} for arm, c in found.items()}
    (first, expected), *others = outputs.items()
    for arm, got in others:
        wrong = [n for n in {**expected, **got} if expected.get(n) != got.get(n)]
        shown = [f"{n!r} ({expected.get(n)}, got {got.get(n)})" for n in wrong[:_MAX_SHOWN]]
        if wrong:
            raise DisagreementError(
                f"{what}: all arms must deliver the same output, but {arm} differs from {first} in "
                f"{len(wrong)} of its parts, such as {', '.join(shown)}. Speeds of arms that "
                "disagree are not reported: correct the arm that is wrong."
            )


def _shorten(checksum: Any) -> Any:
    """Return a checksum as results have it: the sum of a mapping's, and large numbers in hex."""
    if isinstance(checksum, Mapping):
        checksum = sum(v for v in checksum.values() if isinstance(v, int)) % 2**64
    if isinstance(checksum, int):
        return f"{checksum:x}" if checksum > 1 << 40 else checksum
    return str(checksum)[:16]


def _print_progress(cell: Cell, num_rounds: int) -> None:
    """Print to standard error how each arm compares by its first metric."""
    ratios = []
    for arm, values in cell.arms.items():
        ratio = cell.ratio(arm, next(iter(values), "")) if arm != cell.base else None
        ratios += [f"{arm} {ratio.median:.3f} × {cell.base}"] if ratio else []
    print(f"{cell.name}, round {num_rounds}: {'; '.join(ratios)}", file=sys.stderr, flush=True)
