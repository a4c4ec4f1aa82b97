"""The benchmark of the operator's load: its cells and its targets."""

import pytest
from benchmark_environment import ENVIRONMENT

from benchmarks.harness.cells import Cell, Values
from benchmarks.harness.report import build_page, build_results, judge
from benchmarks.operator.__main__ import BARE, BENCHMARK, OPERATOR, describe, fit
from benchmarks.operator.arms import Found


def trained(size: int, *, kib_each: float = 60.0, due: float = 1.0) -> Values:
    """Return the measurements of an operator while all experiments train."""
    return {
        "cores": [0.0005 * size * due],
        "rssMiB": [100 + size * kib_each / 2**10],
        "requestsPerSecond": [0.4 * size],
        "writes": [0.0],
        "duePasses": [due],
    }


def test_slopes_are_of_all_sizes() -> None:
    found = fit({size: trained(size) for size in (200, 500, 1000)})
    assert found["kibPerExperiment"] == pytest.approx([60.0])
    assert found["coresPerThousand"] == pytest.approx([0.5])


def test_an_operator_that_falls_behind_does_not_flatten_the_slopes() -> None:
    sizes = {size: trained(size) for size in (200, 500)} | {1000: trained(1000, due=0.5)}
    assert fit(sizes)["coresPerThousand"] == pytest.approx([0.5])
    assert "coresPerThousand" not in fit({200: trained(200), 1000: trained(1000, due=0.5)})


def test_each_period_is_a_cell_with_its_edits() -> None:
    windows = {"all train": trained(5), "some change": trained(5)}
    training, changing = describe(5, OPERATOR, Found(windows=windows, edits=[1.0, 3.0]))
    assert training.x == 5
    assert "editP50" not in training.arms[OPERATOR]
    assert changing.arms[OPERATOR]["editP50"] == [2.0]


@pytest.mark.parametrize(
    ("seconds", "kib", "writes", "edit", "missed"),
    [
        pytest.param(6.0, 100.0, 0.0, 5.0, 0, id="all met"),
        pytest.param(6.2, 100.0, 0.0, 5.0, 1, id="slow"),
        pytest.param(6.0, 101.0, 0.0, 5.0, 1, id="large"),
        pytest.param(6.0, 100.0, 1.0, 5.0, 1, id="restless"),
        pytest.param(6.0, 100.0, 0.0, 5.5, 1, id="unfair"),
    ],
)
def test_targets_are_judged(
    seconds: float, kib: float, writes: float, edit: float, missed: int
) -> None:
    started: dict[str, Values] = {
        BARE: {"steadySeconds": [2.0] * 3},
        OPERATOR: {"steadySeconds": [seconds] * 3},
    }
    others: Values = {
        "kibPerExperiment": [kib],
        "suspendedWrites": [writes],
        "besideSilent": [edit],
    }
    cells = [
        Cell(name="from nothing", base=BARE, arms=started),
        Cell(name="others", base="", arms={OPERATOR: others}),
    ]
    results = build_results(BENCHMARK, ENVIRONMENT, {}, cells)
    assert [row["met"] for row in judge(BENCHMARK, results)].count(False) == missed
    assert build_page(BENCHMARK, results).count("**missed**") == missed
