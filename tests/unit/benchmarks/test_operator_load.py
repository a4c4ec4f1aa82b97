"""The benchmark of the operator's load: its cells and its targets."""

import pytest
from benchmark_environment import ENVIRONMENT

from benchmarks.harness.cells import Cell, Values
from benchmarks.harness.report import build_page, build_results, judge
from benchmarks.operator.__main__ import BARE, BENCHMARK, OPERATOR, Found, describe, find_slope


def trained(size: int) -> Values:
    """Return the measurements of an operator while all experiments train."""
    return {"cores": [0.0005 * size], "rssMiB": [100.0 + size], "writes": [0.0]}


def test_the_slope_is_that_of_all_sizes() -> None:
    assert find_slope({200: 101.0, 500: 107.0, 1000: 117.0}) == pytest.approx(0.02)


def test_each_period_is_a_cell() -> None:
    windows = {"all train": trained(5), "some change": trained(5) | {"editP50": [2.0]}}
    training, changing = describe(5, Found(windows=windows))
    assert (training.x, changing.x) == (5, None)
    assert changing.arms[OPERATOR]["editP50"] == [2.0]


@pytest.mark.parametrize(
    ("seconds", "kib", "writes", "missed"),
    [
        pytest.param(6.0, 100.0, 0.0, 0, id="all met"),
        pytest.param(6.2, 100.0, 0.0, 1, id="slow"),
        pytest.param(6.0, 101.0, 0.0, 1, id="large"),
        pytest.param(6.0, 100.0, 1.0, 1, id="restless"),
    ],
)
def test_targets_are_judged(seconds: float, kib: float, writes: float, missed: int) -> None:
    started: dict[str, Values] = {
        BARE: {"steadySeconds": [2.0] * 3},
        OPERATOR: {"steadySeconds": [seconds] * 3},
    }
    others: Values = {"kibPerExperiment": [kib], "suspendedWrites": [writes]}
    cells = [
        Cell(name="from nothing", base=BARE, arms=started),
        Cell(name="others", base="", arms={OPERATOR: others}),
    ]
    results = build_results(BENCHMARK, ENVIRONMENT, {}, cells)
    assert [row["met"] for row in judge(BENCHMARK, results)].count(False) == missed
    assert build_page(BENCHMARK, results).count("**missed**") == missed
