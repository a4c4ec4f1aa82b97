"""The calibration trains, compares and counts, and equal logs give equal comparisons."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.calibration.__main__ import BENCHMARK, COMPARE, EQUAL, build_cell, main
from benchmarks.calibration.comparisons import KEPT_SHARES, POWER_SEEDS, Compared, compare_equal
from benchmarks.harness.report import judge

pytestmark = pytest.mark.slow


def run(folder: Path) -> list[dict[str, Any]]:
    main(["--rounds", "5", "--rows", "400", "--output", str(folder)])
    found: dict[str, Any] = json.loads((folder / "calibration.json").read_text())
    cells: list[dict[str, Any]] = found["cells"]
    return cells


def test_every_comparison_is_counted(tmp_path: Path) -> None:
    equal, *power = run(tmp_path)
    assert (equal["cell"], equal["facts"]["comparisons"]) == (EQUAL, 5)
    assert [cell["x"] for cell in power] == [100 * share for share in KEPT_SHARES]
    assert all(cell["facts"]["comparisons"] == 1 for cell in power)
    assert all(len(cell["arms"]) == 2 * len(POWER_SEEDS) for cell in power)
    differences = {
        value
        for cell in power
        for values in cell["arms"].values()
        for value in values.get("aucDifference", [])
    }
    assert len(differences) == len(power) * len(POWER_SEEDS)  # trainings are real
    assert "<svg" in (tmp_path / "calibration.svg").read_text()
    assert f"| {EQUAL} | {COMPARE} |" in (tmp_path / "calibration.md").read_text()


def test_equal_logs_give_equal_comparisons() -> None:
    assert compare_equal(1, 400) == compare_equal(1, 400)


@pytest.mark.parametrize(("num_false", "is_met"), [(0, True), (1, True), (2, False)])
def test_one_false_verdict_of_twenty_is_allowed(num_false: int, is_met: bool) -> None:
    def compared(metric: str, *, found: bool) -> Compared:
        return Compared(
            kept_share=1.0,
            seeds=3,
            metric=metric,
            difference=0.0,
            found=found,
            unpaired=False,
            unpaired_width=10.0,
            rows_alone=True,
        )

    verdicts = [True] * num_false + [False] * (20 - num_false)
    auc = [compared("auc", found=verdict) for verdict in verdicts]
    cell = build_cell([*auc, *(compared("loss", found=False) for _ in range(20))])
    judged = judge(BENCHMARK, {"cells": [cell.to_json()]})
    assert [row["met"] for row in judged] == [is_met, True]
    assert cell.arms["unpaired, 3 seeds"]["aucWidth"] == [10.0]
