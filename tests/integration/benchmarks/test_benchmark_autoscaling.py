"""The benchmark of laws of scaling runs, and says what it ran."""

import json
from pathlib import Path

import pytest

from benchmarks.autoscaling.command import main
from benchmarks.autoscaling.policies import BEST_CONSTANT, LATENCY_ORACLE, OURS

SCENARIO = "two on one quota"
# Every law trains in tests/unit; here are those that are treated unlike the others.
POLICIES = (OURS, LATENCY_ORACLE, BEST_CONSTANT, "HPA on CPU", "lastmile without headroom")
# Readers of the results file find these in every row.
FIELDS = {
    *("scenario", "provisioning_delay_seconds", "noise_percent", "policy", "seeds"),
    *("idle_excess_share", "worker_hours_ratio", "cost_per_row_ratio_by_price"),
    *("settling_seconds", "overshoot_workers", "reversals_per_hour"),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_simulates_and_judges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = ["--data", str(tmp_path / "data"), "--output", str(tmp_path / "results")]
    options = ["--seeds", "2", "--scenarios", SCENARIO, *folders]
    assert main([*options, "--policies", ";".join(POLICIES)]) == 0
    results = json.loads((tmp_path / "results" / "autoscaling.json").read_text())
    cells = {
        (row["scenario"], row["provisioning_delay_seconds"], row["noise_percent"])
        for row in results["rows"]
    }
    assert len(cells) == 4 * 2
    assert len(results["rows"]) == len(cells) * len(POLICIES)
    assert all(row.keys() >= FIELDS for row in results["rows"])
    assert {row["policy"] for row in results["rows"]} == set(POLICIES)
    oracle = [row for row in results["rows"] if row["policy"] == LATENCY_ORACLE]
    assert all(row["worker_hours_ratio"] == 1.0 for row in oracle)
    assert all(0 <= bar["num_met"] <= bar["num_cells"] for bar in results["bars"])
    assert all(row["cut_off"] == 0 for row in results["rows"] if row["policy"] == OURS)
    assert "<svg" in (tmp_path / "results" / "autoscaling.svg").read_text()
    assert SCENARIO in (tmp_path / "results" / "autoscaling.md").read_text()
    # Asked again, it simulates nothing again.
    capsys.readouterr()
    assert main([*options, "--policies", "HPA on CPU; lastmile without headroom"]) == 0
    assert "runs in" not in capsys.readouterr().err
    results = json.loads((tmp_path / "results" / "autoscaling.json").read_text())
    assert len({row["policy"] for row in results["rows"]}) == 4


def test_what_is_no_law_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for options in (
        ["--policies", "no such law"],
        ["--scenarios", "steady;none"],
        ["--seeds", "1"],
    ):
        with pytest.raises(SystemExit):
            main(options)
    assert "no such law" in capsys.readouterr().err
