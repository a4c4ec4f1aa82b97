"""The benchmark of the order of batches trains on the same rows with and without it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_each_training_is_measured_in_both_orders(tmp_path: Path) -> None:
    options = ["--rows", "20000", "--rounds", "2"]
    folders = ["--data", str(tmp_path / "data"), "--output", str(tmp_path / "results")]
    command = [sys.executable, "-m", "benchmarks.order", *options, *folders]
    subprocess.run(command, cwd=ROOT, check=True)  # fails if two runs train on other rows
    results = json.loads((tmp_path / "results" / "order.json").read_text())
    assert len(results["cells"]) == 4
    for cell in results["cells"]:
        assert cell["ratio"]["min"] > 0
        assert cell["differentLossesOn"] in (None, 1)  # equal runs have equal results
    assert "<svg" in (tmp_path / "results" / "order.svg").read_text()
