"""Decisions are written to the folder of the current run, and from there to its report."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline_runtime.cli import app
from pipeline_runtime.cli.for_clusters.fetch import fetch_run
from pipeline_runtime.errors import SourceError
from pipeline_runtime.report.files.autoscaler_decisions import ScalingDecision, load_decisions
from pipeline_runtime.run.decisions import WAIT_SECONDS, fetch_decisions, keep_decisions
from pipeline_runtime.sources import Location
from pipeline_runtime.sources.filesystem import open_location

DECISION = ScalingDecision(
    version=1,
    time=datetime(2026, 3, 1, 12, tzinfo=UTC),
    before=2,
    after=4,
    reason="DesiredWithinRange",
    inputs={"need": 3.5},
)
OLDER = "20260301T000000Z-0123456789abcdef-0f3c6c1e-2"
NEWEST = "20260301T110000Z-0123456789abcdef-0f3c6c1e-2"
FOREIGN = "20260301T115900Z-0123456789abcdef-0f3c6c1e-3"
NAME = "20260301T120000Z-2-4.json"


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    folder = tmp_path / "clicks"
    for name in (OLDER, NEWEST, FOREIGN):
        (folder / name).mkdir(parents=True)
    return folder


def at(folder: Path) -> Location:
    return open_location(str(folder))


def test_decisions_go_to_the_newest_folder_of_their_run(experiment: Path) -> None:
    for _ in range(2):
        assert keep_decisions(str(experiment), "0f3c6c1e-2", [DECISION])[0].endswith(NAME)
    assert load_decisions(experiment / NEWEST) == [DECISION]
    assert [path.name for path in (experiment / NEWEST / "decisions").iterdir()] == [NAME]
    assert not (experiment / OLDER / "decisions").exists()
    assert not (experiment / FOREIGN / "decisions").exists()


def test_a_missing_run_folder_is_waited_for(tmp_path: Path) -> None:
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            (tmp_path / NEWEST).mkdir()

    keep_decisions(str(tmp_path), "0f3c6c1e-2", [DECISION], sleep=sleep)
    assert load_decisions(tmp_path / NEWEST) == [DECISION]


def test_waiting_for_a_run_folder_ends(tmp_path: Path) -> None:
    waited: list[float] = []
    with pytest.raises(SourceError, match="0f3c6c1e-2"):
        keep_decisions(str(tmp_path / "none"), "0f3c6c1e-2", [DECISION], sleep=waited.append)
    assert sum(waited) == WAIT_SECONDS


def test_the_command_accepts_the_operators_arguments(experiment: Path) -> None:
    text = f"[{DECISION.to_json()}]"
    command = ["keep-decisions", "--artifacts", "clicks/", "--run-id", "0f3c6c1e-2"]
    command += ["--storage-root", str(experiment.parent), text]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert load_decisions(experiment / NEWEST) == [DECISION]


def test_a_report_has_only_decisions_of_its_run(experiment: Path, tmp_path: Path) -> None:
    keep_decisions(str(experiment), "0f3c6c1e-2", [DECISION])
    output = tmp_path / "output"
    stale = output / "decisions" / "20250101T000000Z-1-2.json"
    stale.parent.mkdir(parents=True)
    stale.write_text("{}")
    assert fetch_decisions(at(experiment / NEWEST), output) is None
    assert load_decisions(output) == [DECISION]
    assert fetch_decisions(at(experiment / OLDER), output) is None
    assert load_decisions(output) == []


def test_a_download_includes_logs_and_decisions(experiment: Path, tmp_path: Path) -> None:
    keep_decisions(str(experiment), "0f3c6c1e-2", [DECISION])
    (experiment / NEWEST / "summary.json").write_text("{}")
    (experiment / NEWEST / "logs").mkdir()
    (experiment / NEWEST / "logs" / "driver.log").write_text("…")
    fetched = fetch_run(str(experiment), "0f3c6c1e-2", tmp_path / "here", pytest.fail)
    names = {str(path.relative_to(tmp_path / "here")) for path in fetched}
    assert names == {"summary.json", "logs/driver.log", f"decisions/{NAME}"}
    assert load_decisions(tmp_path / "here") == [DECISION]
