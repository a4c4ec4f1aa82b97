"""The benchmark of the simulator runs: the policy starts raylets, and a run uses them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.simulator.comparison import SEEDS

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 1200


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_real_workers_follow_the_policy(tmp_path: Path) -> None:
    options = ["--share", "0.3", "--data", str(tmp_path / "data"), "--output", str(tmp_path)]
    command = [sys.executable, "-m", "benchmarks.simulator", *options]
    subprocess.run(command, cwd=ROOT, check=True, timeout=TIMEOUT_SECONDS)
    results = json.loads((tmp_path / "simulator.json").read_text())
    assert ["costs" in cell["facts"] for cell in results["cells"]] == [False, False, True]
    for cell in results["cells"]:
        assert cell["facts"]["startSeconds"]  # the policy requested more, and they delivered
        assert max(cell["facts"]["workersReal"]) > 1
        assert len(cell["arms"]["simulated"]["idleSeconds"]) == len(SEEDS)
    assert "**Indicative" in (tmp_path / "simulator.md").read_text()
