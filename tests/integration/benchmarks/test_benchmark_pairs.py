"""The benchmark of Lastmile against itself, with a worktree of the current commit as the base."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 600
QUICK = ["--rounds", "1", "--max-rounds", "1", "--fresh-rounds", "1"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_SECONDS)]


def run(tmp_path: Path, *options: str) -> list[dict[str, Any]]:
    """Run the benchmark once, and return its comparisons."""
    folders = ["--data", str(tmp_path / "data"), "--output", str(tmp_path / "results")]
    command = [sys.executable, "-m", "benchmarks.pairs", *QUICK, *options, *folders]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
    )
    assert ended.returncode in (0, 1), ended.stderr  # targets may be missed beside other tests
    assert (tmp_path / "results" / "pairs.svg").exists(), ended.stderr
    found: list[dict[str, Any]] = json.loads((tmp_path / "results" / "pairs.json").read_text())[
        "pairs"
    ]
    return found


def test_a_commit_and_the_loader_are_compared_with_the_feed(tmp_path: Path) -> None:
    pairs = run(tmp_path, "--base", "HEAD,loader", "--rows", "20000", "--work", "heavy")
    cells = ("heavy, flat", "heavy, nested")
    assert [(row["cell"], row["base"]) for row in pairs] == [
        (cell, base) for cell in cells for base in ("HEAD", "loader")
    ]
    for row in pairs:
        assert 0 < row["rows_out"] < 20_000
        assert row["speed"]["ratio_median"] > 0
        assert row["memory"]["ratio_median"] > 0


def test_a_filter_leaves_few_rows_of_the_wide_table(tmp_path: Path) -> None:
    pairs = run(tmp_path, "--base", "loader", "--rows", "20000", "--cells", "selective")
    assert len(pairs) == 12
    rows = {row["cell"]: row["rows_out"] for row in pairs}
    assert rows["flat, 0.1 % in rows"] == rows["nested, 0.1 % in rows"]
    assert 0 < rows["flat, 1 % in rows"] < 400 < rows["flat, 10 % in rows"] < 4000
