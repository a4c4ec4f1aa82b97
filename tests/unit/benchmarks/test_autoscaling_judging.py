"""Figures of the autoscaling benchmark are of pairs of seeds, and the page lists missed limits."""

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.autoscaling.__main__ import ALL_CELLS, BENCHMARK, ROUNDS
from benchmarks.autoscaling.judging import (
    LIMITS,
    NUM_GPUS,
    PRICE,
    collect,
    find_upper_bound,
    judge,
    sum_up,
    sum_up_limits,
)
from benchmarks.autoscaling.policies import ORACLE, OURS, POLICIES
from benchmarks.autoscaling.scenarios import SCENARIOS
from benchmarks.autoscaling.simulations import Found
from benchmarks.harness.cells import Cell
from benchmarks.harness.report import build_page, build_results
from dataset_operator.simulation.measures import Measures

PLAIN = Measures(
    seconds=7200.0,
    rows=1e6,
    idle_share=0.01,
    worker_hours=18.0,
    overshoot_workers=0,
    settling_seconds=60.0,
    unsettled=0,
    steps=2,
    late_steps=0,
    reversals=0,
    hours=2,
    turned_hours=0,
    moves=2,
    up_moves=1,
    has_ended=True,
)
OTHER = "HPA on CPU"
SCENARIO = {scenario.name: scenario for scenario in SCENARIOS}


def found(policy: str, *changes: dict[str, Any]) -> Found:
    """Return the measures of a cell, in which one policy differs from all others."""
    plain = [PLAIN] * len(changes)
    return dict.fromkeys(POLICIES, plain) | {policy: [replace(PLAIN, **c) for c in changes]}


def is_kept(name: str, figures: dict[str, float]) -> bool:
    return LIMITS[name].is_kept(figures[name])


@pytest.mark.parametrize(
    ("up_moves", "kept"),
    [
        pytest.param([1, 1, 1, 1], True, id="one probe with every seed"),
        pytest.param([0, 0, 0, 2], False, id="two with one of them, one in the mean or fewer"),
    ],
)
def test_a_trap_is_judged_by_its_worst_seed(up_moves: list[int], kept: bool) -> None:
    cell = found(OURS, *({"up_moves": number} for number in up_moves))
    assert is_kept("probes", judge(cell, SCENARIO["GPU-bound model"])) == kept
    assert "probes" not in judge(cell, SCENARIO["steady"])


@pytest.mark.parametrize(
    ("turned", "kept"),
    [
        pytest.param([1] + [0] * 9, True, id="one hour of twenty"),
        pytest.param([2] + [0] * 9, False, id="two hours of twenty, both of one seed of ten"),
        pytest.param([1, 1] + [0] * 8, False, id="two hours of twenty, of two seeds"),
    ],
)
def test_reversals_are_judged_by_the_hours_of_all_seeds(turned: list[int], kept: bool) -> None:
    cell = found(OURS, *({"turned_hours": hours} for hours in turned))
    assert is_kept("turned", judge(cell, SCENARIO["steady"])) == kept


def test_one_late_step_of_any_seed_misses_the_limit() -> None:
    figures = judge(found(OURS, {}, {"late_steps": 1}), SCENARIO["ramp"])
    assert figures["late"] == 0.25
    assert not is_kept("late", figures)


def test_idle_is_judged_by_the_upper_bound_over_pairs_of_seeds() -> None:
    shares = [0.01, 0.05, 0.01, 0.01]  # 1 % above the oracle in the mean
    figures = judge(found(OURS, *({"idle_share": s} for s in shares)), SCENARIO["steady"])
    assert figures["idle"] == pytest.approx(find_upper_bound([0.0, 0.04, 0.0, 0.0]), rel=1e-3)
    assert not is_kept("idle", figures)


def test_bounds_are_students() -> None:
    assert find_upper_bound([0.0, 2.0]) == pytest.approx(1.0 + 12.706, rel=1e-4)
    assert find_upper_bound([2.0]) == 2.0


def test_costs_are_judged_against_the_best_other_policy_of_the_cell() -> None:
    cell = found(OTHER, {"worker_hours": 9.0}, {"worker_hours": 9.0})
    best = cell[OTHER][0].cost_per_row(NUM_GPUS, PRICE)
    figures = judge(cell, SCENARIO["steady"])
    assert figures["cost"] == pytest.approx(PLAIN.cost_per_row(NUM_GPUS, PRICE) / best, rel=1e-3)
    assert figures["cost"] > 1.0


def test_means_over_cells_are_relative_to_the_oracle_seed_by_seed() -> None:
    cheap, same = found(OURS, {"worker_hours": 9.0}, {}), found(OURS, {}, {"moves": 4})
    values = sum_up([cheap, same], OURS, 20)
    ratio = cheap[OURS][0].cost_per_row(NUM_GPUS, 20) / PLAIN.cost_per_row(NUM_GPUS, 20)
    assert values["cost"] == pytest.approx([ratio**0.5, 1.0])
    assert values["hours"] == [0.75, 1.0]
    assert values["moves"] == [2.0, 3.0]
    assert sum_up([cheap, same], ORACLE, 20)["cost"] == [1.0, 1.0]


def test_the_page_lists_scenarios_that_miss_a_limit() -> None:
    figures = collect([{"idle": 0.0, "hours": -1.0}] * 7 + [{"idle": 0.047, "hours": -1.0}])
    circumstances = {
        **dict.fromkeys(("command", "commit", "finishedAt"), "x"),
        "minutes": 1.0,
        "machine": {"processor": "x", "cores": 2},
        "loadAverage": [0.0, 0.0],
    }
    arms = {OURS: {"cost": [1.0, 1.0]}, OTHER: {"cost": [1.02, 1.03]}}
    facts = sum_up_limits({"churn": figures, "ramp": collect([{"idle": 0.0}] * 8)})
    cells = [Cell(name=ALL_CELLS[20], base=OURS, arms=arms, facts=facts)]
    page = build_page(
        BENCHMARK, build_results(BENCHMARK, circumstances, {"rounds": 2, "scenarios": "x"}, cells)
    )
    assert f"fewer than {ROUNDS} seeds; not all scenarios" in page
    assert f"{OTHER} over {OURS} | 1.025 [" in page
    assert "| 15 of 16 | 4.70 | churn, L 300 s, 20 % |" in page
    assert f"| churn |{' · |' * 7} 4.70 |" in page
    assert page.count("| churn | ·") == 1  # worker hours keep their limit
    assert "| ramp |" not in page
