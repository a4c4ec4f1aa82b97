"""Ratios as fields of the results of other benchmarks."""

from __future__ import annotations

from benchmarks.dataloading.reporting.ratios import Ratio
from benchmarks.harness.statistics import rounded as rounded


def describe_ratio(ratio: Ratio) -> dict[str, float | None]:
    """Return a ratio as a field of the results."""
    return {
        "ratio_median": rounded(ratio.median),
        "ratio_low": None if ratio.low is None else rounded(ratio.low),
        "ratio_high": None if ratio.high is None else rounded(ratio.high),
    }
