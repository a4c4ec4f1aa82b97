"""Medians, and ratios with bounds, from rounds in which all arms ran.

Bounds are Student's t over the logarithms of the values of the rounds, each at 95 % on its own
side. One round has no bounds.
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


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median of rounds with its bounds, which are None for a single round."""

    median: float
    low: float | None = None
    high: float | None = None

    def scaled(self, factor: float) -> Estimate:
        """Return the estimate in another unit."""
        bounds = [None if bound is None else bound * factor for bound in (self.low, self.high)]
        return Estimate(self.median * factor, *bounds)


def estimate(values: Sequence[float]) -> Estimate:
    """Return the median of positive values of rounds, with bounds. Zeros give no bounds."""
    median = statistics.median(values)
    if len(values) == 1 or min(values) <= 0:
        return Estimate(median)
    logs = [math.log(value) for value in values]
    quantile = _T_95[min(len(logs) - 1, len(_T_95)) - 1]
    centre = statistics.mean(logs)
    margin = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    return Estimate(median, math.exp(centre - margin), math.exp(centre + margin))


def estimate_ratio(mine: Sequence[float], others: Sequence[float]) -> Estimate:
    """Return the ratio of two arms, by the ratios of the single rounds."""
    return estimate([a / b for a, b in zip(mine, others, strict=True)])


def rounded(value: float) -> float:
    """Round to four significant digits; more would only look exact."""
    return float(f"{value:.4g}")
