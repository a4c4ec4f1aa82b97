"""The rounds of a cell: all arms in each, in a random order that the seed fixes."""

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
_MAX_SHOWN: Final = 5

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of an arm: its metrics, and a checksum of its output that all arms must share."""

    values: Mapping[str, float]
    checksum: Any = None


Arm = Callable[[], Sample]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Number and order of rounds.

    Attributes:
        count: rounds that count.
        warmups: runs of each arm before the rounds, whose output is checked and whose values are
            not used.
        seed: of the order of arms.
        max_count: at most so many rounds, if `is_enough` asks for more than `count`.
        is_enough: returns whether the values of a cell are precise enough.
        before: called before each round with its index, for example to renew processes.
        calibration: a metric, and arms for which it shows how calm the machine is. A round in which
            it deviates more than `MAX_OFF` from the median is set aside, and another one is
            measured, up to `max_count` in all.
    """

    count: int
    warmups: int = 1
    seed: int = 0
    max_count: int | None = None
    is_enough: Callable[[Cell], bool] = lambda _: True
    before: Callable[[int], None] = lambda _: None
    calibration: tuple[str, Sequence[str]] | None = None


def in_order_of(items: Sequence[T], index: int, seed: int = 0) -> list[T]:
    """Return the items in the random order of a round."""
    shuffled = list(items)
    random.Random(f"{seed}-{index}").shuffle(shuffled)
    return shuffled


@dataclass(slots=True)
class _Checked:
    """Compares the output of each run with that of the first one."""

    cell: str
    first: tuple[str, Any] | None = None

    def run(self, name: str, arm: Arm) -> Mapping[str, float]:
        sample = arm()
        if sample.checksum is not None:
            first, expected = self.first = self.first or (name, sample.checksum)
            check_agreement(self.cell, {first: expected, f"{name} (again)": sample.checksum})
        return sample.values


def measure(
    name: str,
    arms: Mapping[str, Arm],
    rounds: Rounds,
    *,
    base: str | None = None,
    x: float | None = None,
) -> Cell:
    """Measure a cell. The base is the first arm if none is given.

    Raises:
        DisagreementError: two arms delivered different output.
        BenchmarkError: an arm failed, or no round was calm.
    """
    checked = _Checked(name)
    for _ in range(rounds.warmups):
        for arm, run in arms.items():
            checked.run(arm, run)
    kept: list[dict[str, Mapping[str, float]]] = []
    max_count = max(rounds.count, rounds.max_count or rounds.count)
    cell = Cell(name=name, base=base or next(iter(arms)), arms={}, x=x)
    while len(kept) < max_count:
        rounds.before(len(kept))
        order = in_order_of(list(arms), len(kept), rounds.seed)
        kept.append({arm: checked.run(arm, arms[arm]) for arm in order})
        calm = find_calm(kept, rounds.calibration)
        cell.arms = _collect([kept[index] for index in calm], arms)
        tell(cell, len(kept))
        if len(calm) >= rounds.count and rounds.is_enough(cell):
            break
    if not calm:
        raise BenchmarkError(
            f"{name}: the calibration must be within {MAX_OFF:.0%} of its median, but is not in "
            f"any of {len(kept)} rounds. Stop other work on this machine."
        )
    if len(kept) > len(calm):
        cell.facts["setAside"] = len(kept) - len(calm)
    if checked.first is not None:
        checksum = checked.first[1]
        cell.facts["checksum"] = shorten(checksum)
        if isinstance(checksum, Mapping) and "rows" in checksum:
            cell.facts["rows"] = checksum["rows"]
    return cell


def _collect(kept: Sequence[Mapping[str, Mapping[str, float]]], arms: Mapping[str, Arm]) -> Any:
    found: dict[str, Values] = {arm: {} for arm in arms}
    for one in kept:
        for arm in arms:
            for metric, value in one[arm].items():
                found[arm].setdefault(metric, []).append(value)
    return found


def find_calm(
    kept: Sequence[Mapping[str, Mapping[str, float]]],
    calibration: tuple[str, Sequence[str]] | None,
) -> list[int]:
    """Return the indices of rounds whose calibration is near the median of all."""
    if calibration is None:
        return list(range(len(kept)))
    metric, arms = calibration
    medians = {arm: statistics.median(one[arm][metric] for one in kept) for arm in arms}
    return [
        index
        for index, one in enumerate(kept)
        if all(abs(one[arm][metric] / medians[arm] - 1) <= MAX_OFF for arm in arms)
    ]


def check_agreement(what: str, found: Mapping[str, Any]) -> None:
    """Compare the checksums of arms; each is a value, or a mapping with one for every column.

    Raises DisagreementError, which names arms, columns and both sides.
    """
    (first, expected), *others = found.items()
    problems = [
        f"{arm} differs from {first} in {_explain(expected, got)}"
        for arm, got in others
        if got != expected
    ]
    if problems:
        raise DisagreementError(
            f"{what}: all arms must deliver the same output, but {'; '.join(problems)}. Speeds "
            "of arms that disagree are not reported: correct the arm that is wrong."
        )


def _explain(expected: Any, got: Any) -> str:
    if not isinstance(expected, Mapping) or not isinstance(got, Mapping):
        return f"its output ({shorten(expected)}, got {shorten(got)})"
    names = sorted(expected.keys() | got.keys())
    wrong = [name for name in names if expected.get(name) != got.get(name)]
    shown = [f"{n!r} ({shorten(expected.get(n))}, got {shorten(got.get(n))})" for n in wrong]
    more = f" and {len(shown) - _MAX_SHOWN} more" if len(shown) > _MAX_SHOWN else ""
    return ", ".join(shown[:_MAX_SHOWN]) + more


def shorten(checksum: Any) -> Any:
    """Return a checksum as it is shown: the sum of all columns for a mapping, and large numbers in
    hex."""
    if checksum is None:
        return "absent"
    if isinstance(checksum, Mapping):
        return shorten(sum(v for v in checksum.values() if isinstance(v, int)) % 2**64)
    if isinstance(checksum, int) and checksum > 1 << 40:
        return f"{checksum:x}"
    return checksum[:16] if isinstance(checksum, str) else checksum


def tell(cell: Cell, num_rounds: int) -> None:
    """Print how a cell stands to standard error."""
    found = []
    for arm in cell.arms:
        metric = next(iter(cell.arms[arm]), None)
        ratio = cell.ratio(arm, metric) if metric and arm != cell.base else None
        if ratio is not None:
            found.append(f"{arm} {ratio.median:.3f} × {cell.base} by {metric}")
    line = f"{cell.name}, round {num_rounds}: {'; '.join(found)}"
    print(line, file=sys.stderr, flush=True)
