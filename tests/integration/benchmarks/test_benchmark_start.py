"""The benchmark of starting runs, with a worktree of the current commit as the old one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 600


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_it_measures_each_moment_of_each_arm(tmp_path: Path) -> None:
    options = ["--rows", "20000", "--rounds", "1", "--old", "HEAD"]
    folders = ["--data", str(tmp_path / "data"), "--output", str(tmp_path / "results")]
    command = [sys.executable, "-m", "benchmarks.start", *options, *folders]
    ended = subprocess.run(command, cwd=ROOT, check=False, timeout=TIMEOUT_SECONDS)
    assert ended.returncode in (0, 1)  # targets may be missed beside other tests
    results = json.loads((tmp_path / "results" / "start.json").read_text())
    names = [arm["name"] for arm in results["arms"]]
    assert names == ["lastmile", "DataLoader script", "old commit"]
    for arm in results["arms"]:
        assert 0 < arm["first_step"]["median"] < arm["whole"]["median"]
        assert 0 < arm["end"]["median"] < arm["whole"]["median"]
        is_script = arm["name"] == "DataLoader script"
        assert is_script == (arm["plan"] is None) == (arm["report"] is None)
        assert is_script or arm["report"]["median"] < arm["end"]["median"]
    assert (tmp_path / "results" / "start.svg").exists()
