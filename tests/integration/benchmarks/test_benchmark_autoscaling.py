"""The benchmark of autoscaling policies runs, and describes what it ran."""

import json
from pathlib import Path

import pytest

from benchmarks.autoscaling.command import main
from benchmarks.autoscaling.policies import BEST_CONSTANT, LATENCY_ORACLE, OURS

SCENARIO = "two on one quota"
# Every policy trains in tests/unit; here are those with a treatment of their own.
POLICIES = (OURS, LATENCY_ORACLE, BEST_CONSTANT, "HPA on CPU", "lastmile without headroom")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_simulates_and_judges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = ["--data", str(tmp_path / "data"), "--output", str(tmp_path / "results")]
    options = ["--seeds", "2", "--scenarios", SCENARIO, *folders]
    assert main([*options, "--policies", ";".join(POLICIES)]) == 0
    results = json.loads((tmp_path / "results" / "autoscaling.json").read_text())
    assert len(results["cells"]) == 4 * 2
    rows = {row["policy"]: row for row in results["rows"]}
    assert rows.keys() == set(POLICIES)
    assert all(len(row["cost"]) == 8 for row in rows.values())
    assert rows[LATENCY_ORACLE]["cost"] == [1.0] * 8
    targets = results["targets"]
    assert all(0 <= target["numMet"] <= target["numCells"] for target in targets)
    assert not any(policy["cut_off"] for policy in results["policies"] if policy["policy"] == OURS)
    assert "<svg" in (tmp_path / "results" / "autoscaling.svg").read_text()
    assert SCENARIO in (tmp_path / "results" / "autoscaling.md").read_text()
    # A second run simulates nothing again.
    capsys.readouterr()
    assert main([*options, "--policies", "HPA on CPU; lastmile without headroom"]) == 0
    assert "runs in" not in capsys.readouterr().err
    results = json.loads((tmp_path / "results" / "autoscaling.json").read_text())
    assert len(results["rows"]) == 4


def test_unknown_policies_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for options in (
        ["--policies", "no such policy"],
        ["--scenarios", "steady;none"],
        ["--seeds", "1"],
    ):
        with pytest.raises(SystemExit):
            main(options)
    assert "no such policy" in capsys.readouterr().err
