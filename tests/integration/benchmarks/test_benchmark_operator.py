"""The benchmark of the operator's load runs with all parts at a small size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 1200


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_the_benchmark_of_the_operator_runs(
    tmp_path: Path,
) -> None:
    sizes = ["--size", "5", "--rounds", "1", "--sizes", "10", "--silent", "8"]
    times = ["--changing", "5", "--minutes", "0.5", "--hold", "20"]
    folders = ["--journal", str(tmp_path), "--output", str(tmp_path)]
    command = [sys.executable, "-m", "benchmarks.operator", *sizes, *times, *folders]
    subprocess.run(command, cwd=ROOT, check=True, timeout=TIMEOUT_SECONDS)

    results = json.loads((tmp_path / "operator.json").read_text())
    assert [rise["size"] for rise in results["rises"]] == [5, 10]
    assert [row["writes"] for row in results["asleep"]] == [0]
    [changing] = results["changing"]
    assert changing["edits"] > 0
    [silent] = results["silent"]
    assert silent["size"] == 8
    assert silent["edits"] >= 5
    assert silent["mostOpen"] > 0
    [ablation] = results["forgetful"]
    without, remembering = (ablation[key]["requestsPerExperiment"] for key in ("without", "with"))
    assert without > remembering
    assert "**Indicative" in (tmp_path / "operator.md").read_text()
