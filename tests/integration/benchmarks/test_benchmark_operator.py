"""The benchmark of the operator's load runs with all parts at a small size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.report import cells_of
from benchmarks.operator.__main__ import FORGETFUL, OPERATOR

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 1200


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_the_benchmark_of_the_operator_runs(
    tmp_path: Path,
) -> None:
    sizes = ["--size", "5", "--rounds", "1", "--sizes", "10", "--silent", "8"]
    times = ["--changing", "5", "--minutes", "0.5", "--hold", "20"]
    command = [sys.executable, "-m", "benchmarks.operator", *sizes, *times]
    command += ["--output", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=TIMEOUT_SECONDS)

    cells = cells_of(json.loads((tmp_path / "operator.json").read_text()))
    found = {cell.name: cell for cell in cells}
    for size in (5, 10):
        ratio = found[f"{size} experiments, from nothing"].ratio(OPERATOR, "steadySeconds")
        assert ratio is not None
    assert found["10 experiments, suspended"].arms[OPERATOR]["suspendedWrites"] == [0]
    assert found["10 experiments, some change"].facts["edits"] > 0
    silent = found["8 experiments, silent heads"]
    assert len(silent.arms[OPERATOR]["besideSilent"]) >= 5
    assert silent.facts["mostOpen"] > 0
    requests = {
        arm: values["requestsPerExperiment"][0]
        for cell in cells
        if cell.name == "5 experiments, all train"
        for arm, values in cell.arms.items()
    }
    assert requests[FORGETFUL] > requests[OPERATOR]
