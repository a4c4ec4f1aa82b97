"""The benchmark of data-worker nodes runs: raylets are started, join a pass and leave it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 600


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_nodes_are_measured_and_no_row_is_lost_when_they_come_and_go(tmp_path: Path) -> None:
    options = ["--nodes", "1,2", "--stages", "1,2,1", "--rounds", "1", "--seconds", "8"]
    options += ["--rows", "131072", "--data", str(tmp_path / "data")]
    command = [sys.executable, "-m", "benchmarks.scaling", *options, "--output", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=TIMEOUT_SECONDS)
    results = json.loads((tmp_path / "scaling.json").read_text())
    found = [(cell["units"], cell["nodes"]) for cell in results["cells"]]
    assert found == [("normal", 1), ("normal", 2), ("50 ms", 1), ("50 ms", 2)]
    for cell in results["cells"]:
        assert cell["rate_ratio_median"] <= 1.1  # a reader is not faster than it is told to be
    for row in results["elastic"]:
        assert row["equalRows"] is True
        assert len(row["joinedSeconds"]) == 1
        assert row["piecesAfterLeaving"] > 0
    assert "**Indicative" in (tmp_path / "scaling.md").read_text()
