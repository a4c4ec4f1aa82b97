"""The benchmark of the simulator runs: the policy starts raylets, and a run uses them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 1200


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_real_workers_follow_the_policy(tmp_path: Path) -> None:
    options = ["--share", "0.3", "--seeds", "3", "--data", str(tmp_path / "data")]
    command = [sys.executable, "-m", "benchmarks.simulator", *options, "--output", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=TIMEOUT_SECONDS)
    results = json.loads((tmp_path / "simulator.json").read_text())
    assert [row["predicted"] for row in results["profiles"]] == [False, False, True]
    for row in results["profiles"]:
        assert row["startSeconds"]  # the policy requested more, and they delivered
        assert row["course"]["real"]["rows"][-1] >= row["rows"]
        assert max(row["course"]["real"]["ready"]) > row["course"]["real"]["ready"][0]
    assert "**Indicative" in (tmp_path / "simulator.md").read_text()
