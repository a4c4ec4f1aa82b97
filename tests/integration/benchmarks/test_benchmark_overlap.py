"""The benchmark of training while loading runs, and measures all sessions of every point."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
KINDS, READERS = ("feed", "both"), ("threads", "processes")


@pytest.mark.slow
def test_every_point_has_the_rates_of_all_sessions(tmp_path: Path) -> None:
    options = ["--rows", "60000", "--rounds", "2"]
    folders = ["--data", str(tmp_path / "data"), "--output", str(tmp_path / "results")]
    command = [sys.executable, "-m", "benchmarks.overlap", *options, *folders]
    subprocess.run(command, cwd=ROOT, check=True)
    results = json.loads((tmp_path / "results" / "overlap.json").read_text())
    for level in results["levels"]:
        assert [point["wanted"] for point in level["points"]] == [0.5, 1.0, 2.0]
        for point in level["points"]:
            rates = point["rows_per_second"]
            by_readers = {f"{kind}, {readers}" for kind in KINDS for readers in READERS}
            assert set(rates) == {"model", "model, beside", *by_readers}
            assert all(rate["min"] > 0 for rate in rates.values())
            for ratios in point["readers"].values():
                assert ratios["ratio_low"] <= ratios["ratio_median"] <= ratios["ratio_high"]
                assert 0 <= ratios["waited_share"]["min"] <= 1
            assert point["auto"] in READERS
            assert point["left"]["ratio_median"] > 0
            assert point["auto_of_left"]["ratio_median"] > 0
            assert 0 <= point["set_aside"] <= 2
    assert len(results["levels"]) == 2
    assert "<svg" in (tmp_path / "results" / "overlap.svg").read_text()
    assert "| heavy | 0.5 |" in (tmp_path / "results" / "overlap.md").read_text()
