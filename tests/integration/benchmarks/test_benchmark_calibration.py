"""The calibration trains, compares, counts and draws, and equal arguments give equal results."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.calibration.command import main
from benchmarks.calibration.comparisons import KEPT_SHARES, POWER_SEEDS
from benchmarks.calibration.report import count_false_positives

pytestmark = pytest.mark.slow


def run(folder: Path) -> dict[str, Any]:
    sizes = ["--comparisons", "3", "--power", "1", "--rows", "400", "--processes", "1"]
    main([*sizes, "--output", str(folder)])
    found: dict[str, Any] = json.loads((folder / "calibration.json").read_text())
    return found


def test_every_comparison_is_counted(tmp_path: Path) -> None:
    results = run(tmp_path)
    assert [entry["metric"] for entry in results["falsePositives"]] == ["auc", "loss"]
    assert all(entry["comparisons"] == 3 for entry in results["falsePositives"])
    cells = {(e["metric"], e["seeds"], e["keptShare"]) for e in results["power"]}
    assert len(cells) == 2 * len(POWER_SEEDS) * len(KEPT_SHARES)
    assert results["trainings"] == 3 * 6 + (1 + len(KEPT_SHARES)) * max(POWER_SEEDS)
    differences = {value for row in results["rows"] for value in row["differences"]}
    assert len(differences) == 6  # trainings are real
    assert "<svg" in (tmp_path / "calibration.svg").read_text()
    assert "| auc | 3 |" in (tmp_path / "calibration.md").read_text()
    assert run(tmp_path)["rows"] == results["rows"]


@pytest.mark.parametrize(("num_false", "is_met"), [(0, True), (1, True), (2, False)])
def test_one_false_verdict_of_twenty_is_allowed(num_false: int, is_met: bool) -> None:
    row = {
        "kept_share": 1.0,
        "metric": "auc",
        "half_width": 0.01,
        "unpaired": False,
        "unpaired_half_width": 0.1,
        "rows_alone": True,
    }
    verdicts = ["Better"] * num_false + ["Inconclusive"] * (20 - num_false)
    [entry] = count_false_positives([{**row, "verdict": verdict} for verdict in verdicts])
    assert entry["isMet"] is is_met
    assert entry["narrowerThanUnpaired"] == 10
