"""The benchmark of shared columns runs, and every cell hands over the same rows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_every_cell_is_measured_for_every_number_of_rows_a_request(tmp_path: Path) -> None:
    options = ["--rows", "6000", "--factors", "1", "5", "--rounds", "2"]
    folders = ["--data", str(tmp_path / "data"), "--output", str(tmp_path / "results")]
    command = [sys.executable, "-m", "benchmarks.deduplication", *options, *folders]
    subprocess.run(command, cwd=ROOT, check=True)  # fails if two cells differ in a row
    results = json.loads((tmp_path / "results" / "deduplication.json").read_text())
    assert [table["rowsPerRequest"] for table in results["tables"]] == [1, 5]
    for table in results["tables"]:
        assert len(table["cells"]) == 6
        assert table["cells"]["flat, off"]["ratio"]["median"] == 1.0
        assert all(cell["rowsPerSecond"]["min"] > 0 for cell in table["cells"].values())
    assert "| 5 | " in (tmp_path / "results" / "deduplication.md").read_text()
    assert "<svg" in (tmp_path / "results" / "deduplication.svg").read_text()
