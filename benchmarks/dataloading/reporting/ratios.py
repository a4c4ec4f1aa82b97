"""A ratio of speeds with its bounds, from rounds whose pairs ran minutes apart on one machine.

The bounds are Student's t over the logarithms of the rounds' ratios, each one-sided at 95 %. A
target is met if the lower bound meets it. A single round has no bounds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# 95 % quantiles of Student's t for 1, 2, … degrees of freedom; past the end the last one is used,
# which is a little too wide.
_T_95: Final = (
    *(6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812),
    *(1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """The median of the rounds, and the bounds of the ratio; they are None for a single round."""

    median: float
    low: float | None
    high: float | None


def pair_ratios(mine: Sequence[float], others: Sequence[float]) -> Ratio:
    """Return the ratio of two speeds.

    Args:
        mine, others: positive speeds of the same rounds, at least one.
    """
    logs = [math.log(a / b) for a, b in zip(mine, others, strict=True)]
    median = math.exp(statistics.median(logs))
    if len(logs) == 1:
        return Ratio(median=median, low=None, high=None)
    quantile = _T_95[min(len(logs) - 1, len(_T_95)) - 1]
    centre = statistics.mean(logs)
    margin = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(median=median, low=math.exp(centre - margin), high=math.exp(centre + margin))
