"""The benchmark of data-worker nodes runs: raylets are started, join a pass and leave it."""

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
def test_nodes_are_measured_and_no_row_is_lost_when_they_come_and_go(tmp_path: Path) -> None:
    options = ["--nodes", "1,2", "--stages", "1,2,1", "--rounds", "1", "--seconds", "8"]
    options += ["--rows", "131072", "--data", str(tmp_path / "data")]
    command = [sys.executable, "-m", "benchmarks.scaling", *options, "--output", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=TIMEOUT_SECONDS)
    one, two, elastic = cells_of(json.loads((tmp_path / "scaling.json").read_text()))
    units = ["normal units", "50 ms units"]
    assert list(one.arms) == list(elastic.arms) == units
    assert list(two.arms) == [*units, "50 ms units, batchedCalls: false"]
    for cell in (one, two):
        # a reader is not faster than it is told to be
        assert all(values["share"][0] <= 1.1 for values in cell.arms.values())
    assert all(len(values["waitedSeconds"]) == 1 for values in elastic.arms.values())
    assert elastic.facts["chunksAfterLeaving"] > 0
