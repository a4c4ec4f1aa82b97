"""The benchmark of mixed batches trains on the same rows in each order, and shows that they mix."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_mixed_batches_vary_less_than_those_of_a_sorted_table(tmp_path: Path) -> None:
    options = ["--rows", "20000", "--seeds", "1", "--rounds", "2"]
    folders = ["--data", str(tmp_path / "data"), "--output", str(tmp_path / "results")]
    command = [sys.executable, "-m", "benchmarks.mixing", *options, *folders]
    subprocess.run(command, cwd=ROOT, check=True)  # fails if two arms read different rows
    results = json.loads((tmp_path / "results" / "mixing.json").read_text())
    arms = {arm["name"]: arm for arm in results["arms"]}
    assert arms["mixed"]["dayVariance"] < 2 < arms["unmixed"]["dayVariance"]
    assert all(0.5 < arm["auc"][0] < 1 for arm in arms.values())
    assert results["speedOfMixed"]["min"] > 0
