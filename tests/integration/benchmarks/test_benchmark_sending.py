"""The benchmarks of reading ahead and of shared memory run, over the same rows each way."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("module", ["read_ahead", "shared_memory"])
def test_a_benchmark_of_one_option_measures_both_ways(module: str, tmp_path: Path) -> None:
    name = module.replace("_", "-")
    options = ["--rows", "60000", "--rounds", "2"]
    folders = ["--data", str(tmp_path / "data"), "--output", str(tmp_path / "results")]
    command = [sys.executable, "-m", f"benchmarks.{module}", *options, *folders]
    subprocess.run(command, cwd=ROOT, check=True)
    results = json.loads((tmp_path / "results" / f"{name}.json").read_text())
    assert {cell["work"] for cell in results["cells"]} == {"none", "heavy"}
    for cell in results["cells"]:
        assert min(cell["rows_per_second"][way]["min"] for way in ("on", "off")) > 0
        assert cell["gain"]["ratio_low"] <= cell["gain"]["ratio_median"]
    assert "<svg" in (tmp_path / "results" / f"{name}.svg").read_text()
    assert "| heavy |" in (tmp_path / "results" / f"{name}.md").read_text()
