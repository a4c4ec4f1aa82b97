"""The sample manifest of Iceberg tables, as `make run-iceberg` runs it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import duckdb
import pytest
from run_support import LASTMILE, checksum_of, sampled

MANIFEST = Path(__file__).parents[3] / "deploy" / "samples" / "iceberg.yaml"
# The manifest's steps in another language; its downsampling is drawn apart.
REFERENCE = """
    select _lastmile_row_id, clicked or coalesce(saves, 0) > 0 as label
    from '{data}/impressions/data/*/*/*.parquet' i
    left join '{data}/user_features/data/*/*.parquet' f using (user_id)
    where i.day {day} date '2026-01-08' and f.spam_reason is null and position < 30
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_the_sample_trains_on_the_rows_of_duckdb(tmp_path: Path) -> None:
    sample = ["sample-data", "--iceberg", "--rows", "20000", "--output", "build/lake"]
    for command in (sample, ["run", "-f", str(MANIFEST), "--set", "spec.training.epochs=2"]):
        subprocess.run([LASTMILE, *command], cwd=tmp_path, check=True, capture_output=True)
    latest = tmp_path / "build" / "iceberg" / "latest"
    assert (latest / "report.html").exists()
    summary: dict[str, Any] = json.loads((latest / "summary.json").read_text())
    rows = _reference(tmp_path, "<")
    drawn = sampled([row for row, _ in rows], seed=17, keep_percent=50)
    kept = [row for (row, label), is_kept in zip(rows, drawn, strict=True) if label or is_kept]
    expected = checksum_of(kept, times=2)
    assert summary["checksum"]["rows"] == expected["rows"]
    assert summary["checksum"]["sum"] == expected["sum"]
    assert summary["evaluationSteps"][-1]["rowsOut"] == len(_reference(tmp_path, "="))
    assert [s["kind"] for s in summary["steps"]].count("join") == 2
    assert summary["training"]["evaluations"][-1]["metrics"]["eval_auc"] > 0.5


def _reference(folder: Path, day: str) -> list[tuple[int, bool]]:
    data = folder / "build" / "lake" / "warehouse" / "sample"
    with duckdb.connect() as connection:
        return connection.execute(REFERENCE.format(data=data, day=day)).fetchall()
