"""Spreads, as fields of the results of other benchmarks."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from benchmarks.harness.statistics import rounded


def spread(values: Iterable[float]) -> dict[str, float]:
    """Return median, smallest and largest."""
    values = list(values)
    return {
        "median": rounded(statistics.median(values)),
        "min": rounded(min(values)),
        "max": rounded(max(values)),
    }
