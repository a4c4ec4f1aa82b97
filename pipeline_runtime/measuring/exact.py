"""Exact sums: floats as integers, so that the order in which they are added does not matter.

A float is an integer times a power of two. A sum of floats is one integer in units of `UNIT`, which
Python holds whatever its size. Weights of histograms are rounded to multiples of 2**-32, and kept
as a whole part and a fraction, both int64.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Hashes: TypeAlias = npt.NDArray[np.uint64]
Bools: TypeAlias = npt.NDArray[np.bool_]

# Bits of a float64's significand.
_SIGNIFICAND_BITS = 53
# frexp returns −1073 as the lowest exponent, of the smallest subnormal number.
_LOWEST_EXPONENT = -1073
# Exact sums count in units of 2**-1126, of which every finite float64 is a multiple.
_UNIT_BITS = _SIGNIFICAND_BITS - _LOWEST_EXPONENT
UNIT = 1 << _UNIT_BITS
# Halves of a significand are added as float64, which is exact for so many rows at a time.
_HALF_BITS = 27
_BLOCK_ROWS = 1 << 24

# Weights are multiples of 2**-32. Larger ones than this are refused, so that sums fit int64.
FRACTION_BITS = 32
MAX_WEIGHT = float(1 << 32)


def sum_exactly(values_N: Floats) -> int:
    """Return the sum of finite values, in units of 1 / `UNIT`."""
    total = 0
    for first in range(0, len(values_N), _BLOCK_ROWS):
        total += _sum_block(values_N[first : first + _BLOCK_ROWS])
    return total


def sum_products(values_N: Floats, weights_N: Floats) -> int:
    """Return the sum of values times weights up to `MAX_WEIGHT`, in units of 1 / `UNIT`.

    Each product is rounded to a float64, or as if that had no largest number.
    """
    is_large = np.abs(values_N) > np.finfo(np.float64).max / MAX_WEIGHT
    large_N = values_N[is_large] / MAX_WEIGHT * weights_N[is_large]
    small = sum_exactly(values_N[~is_large] * weights_N[~is_large])
    return small + sum_exactly(large_N) * int(MAX_WEIGHT)


def _sum_block(values_N: Floats) -> int:
    parts_N, exponents_N = np.frexp(values_N)
    whole_N = (parts_N * float(1 << _SIGNIFICAND_BITS)).astype(np.int64)
    shifts_N = exponents_N - _LOWEST_EXPONENT
    lowest = int(shifts_N.min())
    high = np.bincount(shifts_N - lowest, weights=whole_N >> _HALF_BITS)
    low = np.bincount(shifts_N - lowest, weights=whole_N & ((1 << _HALF_BITS) - 1))
    total = 0
    for shift in np.flatnonzero((high != 0) | (low != 0)).tolist():
        total += ((int(high[shift]) << _HALF_BITS) + int(low[shift])) << (lowest + shift)
    return total


def sum_by_bin(values_N: Floats, bins_N: Ints, num_bins: int) -> tuple[int, ...]:
    """Return the exact sum of the values of each bin."""
    order = np.argsort(bins_N, kind="stable")
    cuts = np.searchsorted(bins_N[order], np.arange(num_bins + 1))
    ordered = values_N[order]
    return tuple(sum_exactly(ordered[start:stop]) for start, stop in pairwise(cuts.tolist()))


def to_exact(number: int) -> int:
    """Return an integer in the units of exact sums."""
    return number << _UNIT_BITS


def to_float(total: int) -> float:
    """Return an exact sum, rounded once; infinite if no float64 is as large."""
    return divide(total, UNIT)


def divide(numerator: int, denominator: int) -> float:
    """Return a quotient of integers, rounded once; infinite if no float64 is as large."""
    try:
        return numerator / denominator
    except OverflowError:
        return float("inf") if (numerator > 0) == (denominator > 0) else float("-inf")


def split_weights(weights_N: Floats) -> tuple[Ints, Ints]:
    """Return the whole parts of weights from 0 to `MAX_WEIGHT`, and fractions in units of 2**-32.

    A fraction is rounded to the nearest unit, half to even.
    """
    whole_N = np.floor(weights_N)
    fraction_N = np.rint((weights_N - whole_N) * float(1 << FRACTION_BITS))
    return carry(whole_N.astype(np.int64), fraction_N.astype(np.int64))


def carry(whole: Ints, fraction: Ints) -> tuple[Ints, Ints]:
    """Return equal amounts whose fractions are below 1, which is the only form of an amount."""
    return whole + (fraction >> FRACTION_BITS), fraction & ((1 << FRACTION_BITS) - 1)


def join_amounts(whole: Ints, fraction: Ints) -> list[int]:
    """Return amounts as Python integers, in units of 2**-32."""
    pairs = zip(whole.ravel().tolist(), fraction.ravel().tolist(), strict=True)
    return [(high << FRACTION_BITS) + low for high, low in pairs]
