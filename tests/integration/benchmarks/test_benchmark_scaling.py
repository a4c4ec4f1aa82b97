"""The benchmark of data-worker nodes runs: raylets are started, and their readers deliver rows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.report import cells_of

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 600


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_each_number_of_nodes_is_measured(tmp_path: Path) -> None:
    options = ["--nodes", "1", "2", "--rounds", "1", "--seconds", "8"]
    options += ["--rows", "131072", "--data", str(tmp_path / "data")]
    command = [sys.executable, "-m", "benchmarks.scaling", *options, "--output", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=TIMEOUT_SECONDS)
    one, two = cells_of(json.loads((tmp_path / "scaling.json").read_text()))
    units = ["normal units", "50 ms units"]
    assert list(one.arms) == units
    assert list(two.arms) == [*units, "50 ms units, batchedCalls: false"]
    for cell in (one, two):
        # A slowed reader is not faster than its rate.
        assert all(0 < values["share"][0] <= 1.1 for values in cell.arms.values())
