"""Quantiles of Student's distribution, for intervals of means of a few repeats."""

from __future__ import annotations

import math
from functools import cache

_BISECTIONS = 200


@cache
def find_t(confidence: float, degrees: int) -> float:
    """Return t such that |T| < t with this probability, for Student's T.

    Args:
        degrees: degrees of freedom, at least 1.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if _probability_within(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan(low)


def _probability_within(angle: float, degrees: int) -> float:
    """Return P(|T| < √degrees · tan(angle)).

    The finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4, for whole degrees of freedom.
    """
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = degrees % 2 == 1
    term = cosine if is_odd else 1.0
    total = 0.0 if degrees == 1 else term
    for power in range(2 + is_odd, degrees - 1, 2):
        term *= cosine * cosine * (power - 1) / power
        total += term
    return 2 / math.pi * (angle + sine * total) if is_odd else sine * total
