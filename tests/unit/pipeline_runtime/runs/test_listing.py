"""The list of runs below a root, and its filters."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from stored_runs import StoredRun, rewrite_start, write_stored_run
from typer.testing import CliRunner

from pipeline_runtime.cli import app
from pipeline_runtime.errors import SourceError
from pipeline_runtime.runs.listing import ListedRun, RunFilter, list_runs
from pipeline_runtime.runs.variants import describe_variants

FIRST = StoredRun(start=1, labels={"team": "ads"})
SECOND = StoredRun(start=2, seed=1, outcome="Failed")
OTHER = StoredRun(name="views", start=3)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with three runs, a copy of one among the artifacts, and one that has not ended."""
    for run in (FIRST, SECOND, OTHER):
        write_stored_run(tmp_path, run, is_whole=False)
    write_stored_run(tmp_path / "experiments", FIRST, is_whole=False)
    (tmp_path / "clicks" / "latest").symlink_to(SECOND.folder)
    unfinished = write_stored_run(tmp_path, StoredRun(start=4), is_whole=False)
    (unfinished / "summary.json").unlink()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "part-0.parquet").write_bytes(b"no run")
    return tmp_path


def at(minute: int) -> datetime:
    return datetime(2026, 1, 1, 0, minute, tzinfo=UTC)


@pytest.mark.parametrize(
    ("choice", "minutes"),
    [
        pytest.param(RunFilter(), [4, 3, 2, 1], id="all-newest-first"),
        pytest.param(RunFilter(name="views"), [3], id="name"),
        pytest.param(RunFilter(phase="Failed"), [2], id="phase"),
        pytest.param(RunFilter(phase="Unfinished"), [4], id="unfinished"),
        pytest.param(RunFilter(since=at(3)), [4, 3], id="since-includes-its-moment"),
        pytest.param(RunFilter(until=at(3)), [2, 1], id="until-leaves-it-out"),
        pytest.param(RunFilter(labels={"team": "ads"}), [1], id="label"),
        pytest.param(RunFilter(labels={"team": "x"}), [], id="other-label"),
        pytest.param(RunFilter(name="clicks", phase="Complete"), [1], id="all-conditions"),
    ],
)
def test_runs_are_listed_by_conditions(root: Path, choice: RunFilter, minutes: list[int]) -> None:
    found = list_runs(str(root), choice)
    assert [run.started_at for run in found] == [at(minute) for minute in minutes]


def test_run_in_two_folders_is_listed_once(root: Path) -> None:
    [run] = list_runs(str(root), RunFilter(labels={"team": "ads"}))
    assert [folder.path for folder in run.folders] == [
        str(root / "clicks" / FIRST.folder),
        str(root / "experiments" / "clicks" / FIRST.folder),
    ]


def test_runs_of_one_name_are_listed_apart(tmp_path: Path) -> None:
    write_stored_run(tmp_path / "desk", FIRST, is_whole=False)
    rewrite_start(write_stored_run(tmp_path / "laptop", FIRST, is_whole=False))
    assert [len(run.folders) for run in list_runs(str(tmp_path))] == [1, 1]


@pytest.mark.parametrize(
    ("uri", "num_runs"),
    [
        pytest.param("{stored}", 1, id="names-the-other"),
        pytest.param("/before/the/move", 1, id="both-name-the-same"),
        pytest.param(None, 2, id="names-none"),
    ],
)
def test_unfinished_run_is_known_by_its_artifacts(
    tmp_path: Path, uri: str | None, num_runs: int
) -> None:
    stored = tmp_path / "experiments" / "clicks" / FIRST.folder
    for root in (tmp_path, tmp_path / "experiments"):
        folder = write_stored_run(root, FIRST, is_whole=False)
        (folder / "summary.json").unlink()
        if uri is not None and (root == tmp_path or uri != "{stored}"):
            text = json.dumps({"artifactsUri": uri.format(stored=stored)})
            (folder / "run.json").write_text(text)
    assert len(list_runs(str(tmp_path))) == num_runs


def test_last_attempt_of_a_run_is_listed(tmp_path: Path) -> None:
    stored = tmp_path / "experiments" / "clicks" / FIRST.folder
    for root, attempt, outcome in ((tmp_path, 1, "Failed"), (stored.parents[1], 2, "Complete")):
        path = write_stored_run(root, FIRST, is_whole=False) / "summary.json"
        document = json.loads(path.read_text())
        document["run"] |= {"attempt": attempt, "outcome": outcome, "artifactsUri": str(stored)}
        path.write_text(json.dumps(document))
    assert [(run.phase, len(run.folders)) for run in list_runs(str(tmp_path))] == [("Complete", 2)]


@pytest.mark.parametrize("below", ["clicks", f"clicks/{FIRST.folder}"])
def test_folders_below_the_root_can_be_listed(root: Path, below: str) -> None:
    assert FIRST.folder in {run.name for run in list_runs(str(root / below))}


def test_damaged_summary_is_a_problem_of_its_run(root: Path) -> None:
    (root / "views" / OTHER.folder / "summary.json").write_text("{")
    [run] = list_runs(str(root), RunFilter(name="views"))
    assert run.summary is None
    assert "summary.json" in str(run.problem)


def test_variants_show_their_unusual_values(tmp_path: Path) -> None:
    usual = [StoredRun(start=start, seed=start) for start in (1, 2)]
    others = [StoredRun(start=3, keep_percent=50), StoredRun(name="views", start=4)]
    for run in (*usual, *others):
        write_stored_run(tmp_path, run, is_whole=False)
    damaged = write_stored_run(tmp_path, StoredRun(start=5), is_whole=False)
    (damaged / "manifest.yaml").write_text("[")
    texts = describe_variants(list_runs(str(tmp_path)))
    assert texts == ["", "", 'keepPercent="50"', "", ""]


def test_variants_show_few_fields_of_bounded_length() -> None:
    specs: list[dict[str, object]] = [{f"field{i}": "x" * 1000 for i in range(100)}, {}, {}]
    runs = [
        ListedRun(experiment="a", name="b", phase="Failed", started_at=None, folders=(), spec=spec)
        for spec in specs
    ]
    assert [len(text) < 150 for text in describe_variants(runs)] == [True] * 3


def test_missing_root_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="must be a folder"):
        list_runs(str(tmp_path / "nothing"))


def test_command_prints_json(root: Path) -> None:
    command = ["runs", str(root), "--phase", "complete", "--since", "2026-01-01", "--json"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    found = json.loads(result.output)
    assert [(each["experiment"], each["phase"]) for each in found] == [
        ("views", "Complete"),
        ("clicks", "Complete"),
    ]
    assert found[1]["labels"] == {"team": "ads"}
    assert found[1]["summary"]["seeds"]["training"] == 0


def test_command_prints_a_table(root: Path) -> None:
    result = CliRunner().invoke(app, ["runs", str(root)], catch_exceptions=False)
    lines = result.output.splitlines()
    assert sum("clicks" in line and SECOND.folder in line for line in lines) == 1


@pytest.mark.parametrize(
    "options",
    [["--phase", "Done"], ["--since", "yesterday"], ["--label", "team"], ["--until", "7x"]],
)
def test_bad_conditions_are_refused(root: Path, options: list[str]) -> None:
    assert CliRunner().invoke(app, ["runs", str(root), *options]).exit_code == 2
