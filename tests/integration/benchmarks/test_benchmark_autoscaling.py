"""The benchmark of autoscaling policies simulates, judges, and writes the results."""

import json
from pathlib import Path

import pytest

from benchmarks.autoscaling.__main__ import ALL_CELLS, main
from benchmarks.autoscaling.judging import PRICE
from benchmarks.autoscaling.policies import ORACLE, POLICIES

SCENARIO = "two on one quota"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_simulates_and_judges(tmp_path: Path) -> None:
    options = ["--rounds", "2", "--scenarios", SCENARIO, "--output", str(tmp_path)]
    assert main(options) == 0
    results = json.loads((tmp_path / "autoscaling.json").read_text())
    cells = {cell["cell"]: cell for cell in results["cells"]}
    assert cells.keys() == {*ALL_CELLS.values()}
    for name in ALL_CELLS.values():
        assert cells[name]["arms"].keys() == POLICIES.keys()
        assert cells[name]["arms"][ORACLE]["cost"] == [1, 1]
    limits = cells[ALL_CELLS[PRICE]]["facts"]["limits"]
    judged = {name: num_cells for name, (_, num_cells, *_) in limits.items() if num_cells}
    assert judged == dict.fromkeys(("idle", "hours", "late", "cost"), 4 * 2)
    assert "<svg" in (tmp_path / "autoscaling.svg").read_text()
    assert "**Indicative" in (tmp_path / "autoscaling.md").read_text()
