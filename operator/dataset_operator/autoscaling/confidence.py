"""Confidence bounds for the mean of a few numbers, without scipy."""

from __future__ import annotations

# Student's t, 95 % on each side, by degrees of freedom from 1 (Fisher and Yates, table III).
_T = (
    *(6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812),
    *(1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725),
)
_NORMAL = 1.645


def t_quantile(degrees: int) -> float:
    """Return the 95 % quantile of Student's t with this number of degrees of freedom."""
    return _T[degrees - 1] if degrees <= len(_T) else _NORMAL


def mean_of(values: list[float]) -> float:
    """Return the arithmetic mean."""
    return sum(values) / len(values)


def squares_of(values: list[float]) -> float:
    """Return the sum of the squared distances from the mean."""
    mean = mean_of(values)
    return sum((value - mean) ** 2 for value in values)
