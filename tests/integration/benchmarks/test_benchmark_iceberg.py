"""The benchmark of Iceberg tables, on few rows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.report import cells_of

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 600

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_SECONDS)]


@pytest.mark.parametrize(
    "cells",
    [
        pytest.param(("stream", "join", "polars", "memory", "write"), id="one process each"),
        pytest.param(("spark", "ray"), id="engines with processes of their own"),
    ],
)
def test_programs_deliver_the_same_rows(tmp_path: Path, cells: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "benchmarks.iceberg", "--rows", "20000", "--rounds", "1"]
    command += ["--data", str(tmp_path / "data"), "--output", str(tmp_path / "results")]
    command += ["--cells", *cells]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
    )
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "results" / "iceberg.svg").exists(), ended.stderr
    found = cells_of(json.loads((tmp_path / "results" / "iceberg.json").read_text()))
    assert tuple(cell.name for cell in found) == cells
    # The Makefile installs Spark for the benchmark, which is not in the lock, and needs Java.
    left_out = {cell.name for cell in found if "notMeasured" in cell.facts}
    assert left_out <= {"spark"}, ended.stderr
