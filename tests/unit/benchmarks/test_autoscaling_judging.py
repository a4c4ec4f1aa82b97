"""Targets are judged by seeds or bounds, and runs that were cut off are not compared."""

from dataclasses import replace
from math import exp, log
from statistics import fmean
from typing import Any

import pytest

from benchmarks.autoscaling.judging import Target, compare, judge
from benchmarks.autoscaling.policies import LATENCY_ORACLE, OURS
from benchmarks.autoscaling.report import build_markdown
from benchmarks.autoscaling.result_rows import NUM_GPUS, PRICES, Measured, make_rows, mean_and_error
from benchmarks.autoscaling.scenarios import CellKey
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
STEADY: CellKey = ("steady", 30.0, 5)
TRAP: CellKey = ("GPU-bound model", 30.0, 5)


def seeds(*changes: dict[str, Any]) -> list[Measures]:
    """Return a seed for each change; all differ a little, as with noise."""
    return [replace(PLAIN, seconds=PLAIN.seconds + i, **change) for i, change in enumerate(changes)]


def measured(*changes: dict[str, Any]) -> Measured:
    return Measured(by_price=dict.fromkeys(PRICES, seeds(*changes)))


def judged(ours: Measured, other: Measured | None = None, cell: CellKey = STEADY) -> list[Target]:
    none: dict[str, Any] = {}
    oracle = measured(*[none] * len(ours.measures))
    by_policy = {OURS: ours, LATENCY_ORACLE: oracle, OTHER: other or oracle}
    return judge(make_rows({cell: by_policy}))


def target_of(targets: list[Target], words: str) -> Target:
    [target] = [target for target in targets if words in target.name]
    return target


@pytest.mark.parametrize(
    ("up_moves", "is_met"),
    [
        pytest.param([1, 1, 1, 1], True, id="one probe with every seed"),
        pytest.param([0, 0, 0, 2], False, id="two with one of them, one in the mean or fewer"),
    ],
)
def test_a_trap_is_judged_by_its_worst_seed(up_moves: list[int], is_met: bool) -> None:
    targets = judged(measured(*({"up_moves": number} for number in up_moves)), cell=TRAP)
    assert target_of(targets, "traps").verdicts[0].is_met == is_met


@pytest.mark.parametrize(
    ("turned", "is_met"),
    [
        pytest.param([1] + [0] * 9, True, id="one hour of twenty"),
        pytest.param([2] + [0] * 9, False, id="two hours of twenty, both of one seed of ten"),
        pytest.param([1, 1] + [0] * 8, False, id="two hours of twenty, of two seeds"),
    ],
)
def test_reversals_are_judged_by_the_hours_of_all_seeds(turned: list[int], is_met: bool) -> None:
    targets = judged(measured(*({"turned_hours": hours} for hours in turned)))
    assert target_of(targets, "reversal").verdicts[0].is_met == is_met


def test_idle_is_judged_by_the_upper_bound_over_pairs_of_seeds() -> None:
    shares = [0.01, 0.05, 0.01, 0.01]  # 1 % above the oracle in the mean
    [verdict] = target_of(judged(measured(*({"idle_share": s} for s in shares))), "idle").verdicts
    mean, error = mean_and_error([share - 0.01 for share in shares])
    assert mean == pytest.approx(0.01)
    assert verdict.measured == pytest.approx(mean + error)
    assert not verdict.is_met
    assert verdict.missed_by == pytest.approx(mean + error - 0.02)


def test_bounds_are_students() -> None:
    assert mean_and_error([0.0, 2.0]) == pytest.approx((1.0, 12.706))
    mean, error = mean_and_error([float(i % 2) for i in range(20)])
    assert (mean, error) == pytest.approx((0.5, 2.093 * 0.512989 / 20**0.5), rel=1e-4)


def test_a_run_that_was_cut_off_is_not_compared() -> None:
    none: dict[str, Any] = {}
    cut = measured({"has_ended": False, "worker_hours": 0.1}, none)
    targets = judged(measured(none, none), other=cut)
    assert not [
        target for target in targets if "best other policy" in target.name
    ]  # there is no other
    results = {STEADY: {OURS: measured(none, none), OTHER: cut}}
    assert compare(results) == []
    both = results | {TRAP: {OURS: measured(none, none), OTHER: measured(none, none)}}
    assert {(c.cells, c.left_out) for c in compare(both)} == {(1, 1)}
    ours = judged(cut)
    assert not target_of(ours, "not all rows").verdicts[0].is_met


def test_costs_are_compared_seed_by_seed_over_all_cells() -> None:
    cheap, dear = measured({"worker_hours": 10.0}, {"worker_hours": 11.0}), measured({}, {})
    results = {cell: {OURS: cheap, OTHER: dear} for cell in (STEADY, TRAP)}
    for found in compare(results):
        logs = [
            log(a.cost_per_row(NUM_GPUS, found.price) / b.cost_per_row(NUM_GPUS, found.price))
            for a, b in zip(cheap.measures, dear.measures, strict=True)
        ]
        assert found.ratio == pytest.approx(exp(fmean(logs)))
        assert found.low < found.ratio < found.high
        assert (found.cells, found.cheaper) == (2, 2)
    assert {found.price for found in compare(results)} == set(PRICES)


def test_the_best_constant_costs_its_own_at_each_price() -> None:
    few, many = seeds({"worker_hours": 9.0}, {}), seeds({"worker_hours": 30.0}, {})
    constant = Measured(by_price={5: few, 20: few, 50: many})
    assert constant.measures == few
    assert constant.log_costs(50)[0] == pytest.approx(log(many[0].cost_per_row(NUM_GPUS, 50)))


def test_the_page_lists_cells_that_miss_a_target() -> None:
    verdict = ["churn", 300.0, 20, 0.047]
    missed = {"name": "idle", "limit": "≤ 2 %", "unit": "share", "numCells": 8, "numMet": 7}
    policies = [{"policy": OTHER, "cut_off": 3, "settings": {}}]
    numbers = ("idle_share", "worker_hours_ratio", "reversals_per_hour", "moves", "seeds")
    policies[0] |= dict.fromkeys(numbers, 1.0) | {"cost": {"5": 1.0, "20": 1.0, "50": 1.0}}
    page = build_markdown(
        {
            **dict.fromkeys(("command", "commit", "finishedAt"), "x"),
            "seeds": 2,
            "ablationSeeds": 2,
            "numRuns": 4,
            "isWhole": False,
            "comparisons": [],
            "policies": policies,
            "scenarios": [],
            "targets": [missed | {"worst": verdict, "misses": [verdict]}],
        }
    )
    assert "| scenario | L 300 s, 20 % |" in page
    assert "| churn | 4.7% |" in page
    assert f"**{OTHER}: 3 " in page
    assert "**Indicative**" in page
