"""Intervals of differences: quantiles, coverage in simulations, and the reasons for no verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from pipeline_runtime.comparison.bootstrap import AUC, LOSS, ScoredRows, draw_metric, measure
from pipeline_runtime.comparison.intervals import RowNoise, build_interval
from pipeline_runtime.measuring.student import find_t

SEEDS = 3


@pytest.mark.parametrize(
    ("confidence", "degrees", "expected"),
    [  # from tables of Student's distribution
        (0.95, 1, 12.7062),
        (0.95, 2, 4.3027),
        (0.95, 3, 3.1824),
        (0.95, 4, 2.7764),
        (0.99, 10, 3.1693),
        (0.95, 30, 2.0423),
        (0.95, 1000, 1.9623),
    ],
)
def test_quantiles_are_those_of_student(confidence: float, degrees: int, expected: float) -> None:
    assert find_t(confidence, degrees) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("ratio", [0.0, 0.03, 0.3, 1.0, 3.0, 30.0, math.inf])
def test_interval_misses_at_most_one_in_twenty(ratio: float) -> None:
    """For every ratio of the two errors, against the known variances of simulated ones."""
    random = np.random.default_rng(7)
    row_sd = 0.0 if ratio == math.inf else 1.0
    seed_sd = 1.0 if ratio == math.inf else math.sqrt(ratio * SEEDS)
    rows = RowNoise(variance=row_sd**2, degrees=399)
    misses = 0
    for _ in range(4000):
        errors_K = seed_sd * random.standard_normal(SEEDS) + row_sd * random.standard_normal()
        interval = build_interval(errors_K.tolist(), rows)
        misses += not interval.low <= 0 <= interval.high
    assert misses <= 0.05 * 4000 + 3 * math.sqrt(4000 * 0.05 * 0.95)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Two equal variants: the interval of their difference, and that of unpaired means."""

    missed: bool
    width_ratio: float


def simulate_pair(random: np.random.Generator, metric: str) -> Simulated:
    """Score rows of 100 users by three models of each of two equal variants.

    A row's score has its difficulty, which all models share, a part that the models of a variant
    share, and a part of each model; a model also shifts all losses.
    """
    num_groups, num_rows = 100, 500
    group_N = np.concatenate([np.arange(num_groups), random.integers(0, num_groups, 400)])
    label_N = (random.random(num_rows) < 0.3).astype(np.float64)
    users_G = random.standard_normal(num_groups)
    shared_N = users_G[group_N] + 2 * random.standard_normal(num_rows) + label_N
    of_variant_VN = 0.1 * random.standard_normal((2, num_groups))[:, group_N]
    of_model_MN = 0.1 * random.standard_normal((2 * SEEDS, num_rows))
    score_MN = shared_N + np.repeat(of_variant_VN, SEEDS, axis=0) + of_model_MN
    shift_M = 0.02 * random.standard_normal(2 * SEEDS)
    rows = ScoredRows(
        group_N=group_N,
        label_N=label_N,
        weight_N=np.ones(num_rows),
        prediction_MN=score_MN.astype(np.float32),
        loss_MN=(score_MN + shift_M[:, None]).astype(np.float32),
    )
    value_M, drawn_RM = measure(rows, metric), draw_metric(rows, metric, seed=1)
    drawn_R = (drawn_RM[:, SEEDS:] - drawn_RM[:, :SEEDS]).mean(axis=1)
    noise = RowNoise(variance=float(drawn_R.var(ddof=1)), degrees=num_groups - 1)
    interval = build_interval((value_M[SEEDS:] - value_M[:SEEDS]).tolist(), noise)
    unpaired = sum(
        value_M[part].var(ddof=1) / SEEDS + drawn_RM[:, part].mean(axis=1).var(ddof=1)
        for part in (slice(SEEDS), slice(SEEDS, None))
    )
    return Simulated(
        missed=not interval.low <= 0 <= interval.high,
        width_ratio=1.96 * math.sqrt(unpaired) / interval.half_width,
    )


@pytest.mark.parametrize(("metric", "num_pairs"), [(LOSS, 1000), (AUC, 60)])
def test_equal_variants_are_told_apart_in_one_of_twenty(metric: str, num_pairs: int) -> None:
    random = np.random.default_rng(11)
    pairs = [simulate_pair(random, metric) for _ in range(num_pairs)]
    assert sum(pair.missed for pair in pairs) <= 0.05 * num_pairs
    # Paired rows make the interval at least five times narrower than unpaired means.
    assert np.median([pair.width_ratio for pair in pairs]) >= 5


@pytest.mark.parametrize(
    ("differences", "is_conclusive"),
    [
        pytest.param([0.1], False, id="one-seed"),
        pytest.param([0.1, 0.1000001], False, id="two-seeds-that-agree"),
        pytest.param([0.1, 0.101, 0.099], True, id="three-seeds-that-agree"),
        pytest.param([0.1, 0.3, -0.1], False, id="three-seeds-that-differ"),
    ],
)
def test_verdict_needs_three_seeds_that_agree(
    differences: list[float], is_conclusive: bool
) -> None:
    interval = build_interval(differences, RowNoise(variance=1e-8, degrees=399))
    assert interval.is_conclusive is is_conclusive


def test_one_seed_has_no_interval_but_a_bound() -> None:
    interval = build_interval([0.1], RowNoise(variance=1e-4, degrees=5000))
    assert interval.half_width == math.inf
    assert interval.detectable == pytest.approx((1.96 + 0.8416) * 1e-2, rel=1e-3)


def test_detectable_difference_is_found_in_four_of_five_cases() -> None:
    random = np.random.default_rng(3)
    rows = RowNoise(variance=1.0, degrees=5000)
    true = build_interval([0.0] * SEEDS, rows).detectable
    found = sum(
        build_interval([true + random.standard_normal()] * SEEDS, rows).is_conclusive
        for _ in range(2000)
    )
    assert found / 2000 == pytest.approx(0.8, abs=0.03)
