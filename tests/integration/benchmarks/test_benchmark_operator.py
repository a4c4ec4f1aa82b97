"""The benchmark of the operator's load runs with all parts at a small size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.report import cells_of
from benchmarks.operator.__main__ import OPERATOR

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 1200


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_the_benchmark_of_the_operator_runs(tmp_path: Path) -> None:
    sizes = ["--size", "5", "--rounds", "1", "--sizes", "10"]
    times = ["--minutes", "0.5", "--hold", "20"]
    command = [sys.executable, "-m", "benchmarks.operator", *sizes, *times]
    command += ["--output", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=TIMEOUT_SECONDS)

    results = json.loads((tmp_path / "operator.json").read_text())
    found = {cell.name: cell for cell in cells_of(results)}
    for size in (5, 10):
        ratio = found[f"{size} experiments, from nothing"].ratio(OPERATOR, "steadySeconds")
        assert ratio is not None
    assert found["10 experiments, suspended"].arms[OPERATOR]["suspendedWrites"] == [0]
    assert found["10 experiments, some change"].arms[OPERATOR]["edits"][0] > 0
