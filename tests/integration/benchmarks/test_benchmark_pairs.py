"""The benchmark of Lastmile against itself, with a worktree of the current commit as the base."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.cells import Cell
from benchmarks.harness.report import cells_of

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 600
QUICK = ["--rounds", "1", "--max-rounds", "1", "--fresh-rounds", "1"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_SECONDS)]


def run(tmp_path: Path, *options: str) -> list[Cell]:
    """Run the benchmark once, and return its cells."""
    folders = ["--data", str(tmp_path / "data"), "--output", str(tmp_path / "results")]
    command = [sys.executable, "-m", "benchmarks.pairs", *QUICK, *options, *folders]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
    )
    assert ended.returncode in (0, 1), ended.stderr  # targets may be missed beside other tests
    assert (tmp_path / "results" / "pairs.svg").exists(), ended.stderr
    return cells_of(json.loads((tmp_path / "results" / "pairs.json").read_text()))


def test_a_commit_and_the_loader_are_compared_with_the_feed(tmp_path: Path) -> None:
    found = run(tmp_path, "--base", "HEAD,loader", "--rows", "20000", "--work", "heavy")
    assert [(cell.name, cell.base) for cell in found] == [
        (name, base) for name in ("heavy, flat", "heavy, nested") for base in ("HEAD", "loader")
    ]
    for cell in found:
        assert cell.ratio("feed", "rowsPerSecond") is not None
        assert cell.ratio("feed", "peakBytes") is not None


def test_a_filter_leaves_few_rows_of_the_wide_table(tmp_path: Path) -> None:
    found = run(tmp_path, "--base", "loader", "--rows", "20000", "--cells", "selective")
    assert len(found) == 12
    rows = {cell.name: cell.facts["rows"] for cell in found}
    assert rows["flat, 0.1 % in rows"] == rows["nested, 0.1 % in rows"]
    assert 0 < rows["flat, 1 % in rows"] < 400 < rows["flat, 10 % in rows"] < 4000
