"""The benchmark of table sizes runs, on tables that really are larger."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 300


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_SECONDS)
def test_it_measures_the_first_batch_and_the_memory_of_each_size(tmp_path: Path) -> None:
    options = ["--rows", "20000", "--factors", "1", "3", "--repeats", "1", "--steps", "2"]
    folders = ["--data", str(tmp_path / "data"), "--output", str(tmp_path / "results")]
    command = [sys.executable, "-m", "benchmarks.table_size", *options, *folders]
    subprocess.run(command, cwd=ROOT, check=True, timeout=TIMEOUT_SECONDS)
    results = json.loads((tmp_path / "results" / "table-size.json").read_text())
    assert [table["rows"] for table in results["tables"]] == [20_000, 60_000]
    for table in results["tables"]:
        assert table["firstBatchSeconds"]["median"] > 0
        assert table["peakGiB"]["median"] > 0.1
    files = list((tmp_path / "data" / "table-size-20000-3").rglob("impressions/**/*.parquet"))
    assert len(files) % 3 == 0
