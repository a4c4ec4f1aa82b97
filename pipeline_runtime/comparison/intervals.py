"""The interval of a difference between two variants, from paired seeds and a bootstrap of rows.

The difference of seed k on the shared evaluation rows is D_k. Its mean D over K seeds errs for two
reasons: the seeds (weights, order of rows, dropout), which the K differences show, and the choice
of evaluation rows, which all seeds share and which the bootstrap shows. The interval is

    D ± √( t²(K-1) · s²/K  +  t²(m) · v )

with s² the variance of the D_k, v the variance of D over bootstrap draws of groups of rows, and
t(f) the two-sided quantile of Student's distribution with f degrees of freedom. This is the
interval for a sum of two errors by Howe (1974, JASA 69, 789) and Zou and Donner (2008, Statistics
in Medicine 27, 1693).

It errs in at most α of the cases, whatever the ratio of the two errors. Let them be normal with
variances a and b, let s²/K and v estimate a and b independently, with u₁ = s²/(K·a) and u₂ = v/b,
and let w = a / (a+b). The interval misses with probability E[g(w·t₁²·u₁ + (1-w)·t₂²·u₂)], where
g(x) = P(χ²₁ > x). The density of χ²₁ falls, so g is convex, and the probability is at most
w·E[g(t₁²·u₁)] + (1-w)·E[g(t₂²·u₂)] = w·α + (1-w)·α = α. A Satterthwaite interval is narrower, but
has no such bound: with K = 3, s² is often small by chance. Row noise that differs between seeds is
counted in s² and again in v, which only widens the interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, mean, variance

from pipeline_runtime.measuring.student import find_t

# Fewer seeds show too little of the noise: with two, t is 12.7 and nothing is ever found.
MIN_SEEDS = 3
CONFIDENCE = 0.95
# The difference that a comparison "could have detected" is one that it finds in four of five cases.
POWER = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class RowNoise:
    """The variance of a mean difference due to the choice of evaluation rows.

    Attributes:
        degrees: degrees of freedom of the variance: groups of rows or bootstrap draws, the smaller
            number, less one.
    """

    variance: float
    degrees: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean difference and its interval.

    Attributes:
        half_width: infinite with one seed, whose noise nobody knows.
        detectable: true difference that a comparison like this one finds in four of five cases;
            with one seed, what it would be without any noise of training.
    """

    difference: float
    half_width: float
    detectable: float
    num_seeds: int

    @property
    def low(self) -> float:
        """The lower end."""
        return self.difference - self.half_width

    @property
    def high(self) -> float:
        """The upper end."""
        return self.difference + self.half_width

    @property
    def is_conclusive(self) -> bool:
        """Return whether there are enough seeds, and the interval leaves out 0."""
        return self.num_seeds >= MIN_SEEDS and not self.low <= 0 <= self.high


def build_interval(
    differences_K: Sequence[float], rows: RowNoise, confidence: float = CONFIDENCE
) -> Interval:
    """Return the interval of the mean of paired differences, one a seed. See the module.

    Args:
        rows: the noise of the mean of these differences.
        confidence: at least the share of intervals that contain the true difference.
    """
    num_seeds = len(differences_K)
    row_part = find_t(confidence, rows.degrees) ** 2 * rows.variance if rows.variance else 0.0
    likely = NormalDist().inv_cdf(POWER)
    if num_seeds < 2:
        at_least = math.sqrt(row_part) + likely * math.sqrt(rows.variance)
        return Interval(
            difference=differences_K[0], half_width=math.inf, detectable=at_least, num_seeds=1
        )
    seed_variance = variance(differences_K) / num_seeds
    half = math.sqrt(find_t(confidence, num_seeds - 1) ** 2 * seed_variance + row_part)
    return Interval(
        difference=mean(differences_K),
        half_width=half,
        detectable=half + likely * math.sqrt(seed_variance + rows.variance),
        num_seeds=num_seeds,
    )
