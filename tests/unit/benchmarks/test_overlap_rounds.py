"""Selection of the rounds of training while loading that count."""

import pytest

from benchmarks.overlap.rounds import find_calm, find_distances


def test_rounds_far_off_the_median_of_the_model_alone_do_not_count() -> None:
    assert find_calm([100.0, 114.0, 60.0, 101.0, 120.0]) == [0, 1, 3]


def test_nothing_is_calm_before_the_first_round() -> None:
    assert find_calm([]) == []


def test_distances_are_shares_of_the_median() -> None:
    assert find_distances([80.0, 100.0, 110.0]) == pytest.approx([0.2, 0.0, 0.1])
