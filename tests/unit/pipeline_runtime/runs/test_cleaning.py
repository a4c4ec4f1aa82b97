"""The runs that `clean` deletes, and those that it must keep."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from failing_store import failing, store_in_memory
from stored_runs import StoredRun, rewrite_start, write_stored_run
from typer.testing import CliRunner

from pipeline_runtime.cli import app
from pipeline_runtime.output.storage import Storage
from pipeline_runtime.runs.cleaning import CleaningRule, delete, plan_cleaning
from pipeline_runtime.runs.listing import list_runs
from pipeline_runtime.runs.locking import locking
from pipeline_runtime.sources import open_location

NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)
AN_HOUR_AGO = NOW - timedelta(hours=1, minutes=5)
ALL = CleaningRule(keep_last=0)


def write_runs(root: Path, runs: Sequence[StoredRun]) -> None:
    """Write runs whose files were written more than an hour before NOW."""
    for run in runs:
        folder = write_stored_run(root, run, is_whole=False)
        for path in folder.rglob("*"):
            os.utime(path, (AN_HOUR_AGO.timestamp(),) * 2)


def run_at(start: int, outcome: str = "Complete", **options: str) -> StoredRun:
    return StoredRun(start=start, outcome=outcome, **options)  # type: ignore[arg-type]


FOUR = [run_at(1), run_at(2, "Failed"), run_at(3), run_at(4)]


def delete_by(root: Path, rule: CleaningRule) -> list[int]:
    """Delete runs, and return the minutes at which the deleted ones started."""
    runs = list_runs(str(root))
    done = delete(plan_cleaning(runs, rule, NOW))
    gone = {run.name for run in runs} - {run.name for run in list_runs(str(root))}
    assert gone == {deletion.run.name for deletion in done.deletions}
    return sorted(int(name[11:13]) for name in gone)


@pytest.mark.parametrize(
    ("rule", "gone"),
    [
        pytest.param(ALL, [1, 2, 3], id="all-but-the-newest"),
        pytest.param(CleaningRule(keep_last=1), [1, 2, 3], id="keep-one"),
        pytest.param(CleaningRule(keep_last=3), [1], id="keep-three"),
        pytest.param(CleaningRule(keep_last=9), [], id="keep-more-than-there-are"),
        pytest.param(CleaningRule(is_failed=True), [2], id="failed"),
        pytest.param(CleaningRule(older_than=timedelta(minutes=58)), [1, 2], id="age"),
        pytest.param(CleaningRule(older_than=timedelta(minutes=59)), [1], id="age-at-the-bound"),
        pytest.param(
            CleaningRule(older_than=timedelta(minutes=58), is_failed=True), [2], id="both"
        ),
    ],
)
def test_runs_are_deleted_by_rule(tmp_path: Path, rule: CleaningRule, gone: list[int]) -> None:
    write_runs(tmp_path, FOUR)
    assert delete_by(tmp_path, rule) == gone


def test_each_experiment_keeps_its_newest(tmp_path: Path) -> None:
    write_runs(tmp_path, [*FOUR, run_at(5, name="views")])
    assert delete_by(tmp_path, ALL) == [1, 2, 3]


@pytest.mark.parametrize("outcome", ["Complete", "Interrupted"])
def test_locked_run_is_kept(tmp_path: Path, outcome: str) -> None:
    write_runs(tmp_path, [run_at(1, outcome), run_at(2)])
    with (tmp_path / "clicks" / run_at(1).folder / "run.json").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert delete_by(tmp_path, ALL) == []
    os.utime(file.name, (AN_HOUR_AGO.timestamp(),) * 2)
    assert delete_by(tmp_path, ALL) == [1]


def test_run_that_starts_after_the_plan_is_kept(tmp_path: Path) -> None:
    write_runs(tmp_path, [run_at(1), run_at(2)])
    plan = plan_cleaning(list_runs(str(tmp_path)), ALL, NOW)
    with (tmp_path / "clicks" / run_at(1).folder / "run.json").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = delete(plan)
    assert done.deletions == ()
    assert [kept.run.name for kept in done.kept] == [run_at(2).folder, run_at(1).folder]


@pytest.mark.parametrize("only_checkpoints", [False, True])
def test_nobody_resumes_a_run_while_it_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only_checkpoints: bool
) -> None:
    write_runs(tmp_path, [run_at(1), run_at(2)])
    folder = tmp_path / "clicks" / run_at(1).folder
    refused: list[Storage] = []

    def resume_and_remove(storage: Storage) -> None:
        with pytest.raises(BlockingIOError), locking(folder):
            pass
        refused.append(storage)
        shutil.rmtree(storage.location.path)

    monkeypatch.setattr(Storage, "remove", resume_and_remove)
    rule = CleaningRule(keep_last=0, only_checkpoints=only_checkpoints)
    plan = plan_cleaning(list_runs(str(tmp_path)), rule, NOW)
    staged = open_location(str(folder / "checkpoints"))
    [deletion] = plan.deletions
    deletion = replace(deletion, folders=(staged, *deletion.folders[only_checkpoints:]))
    assert delete(replace(plan, deletions=(deletion,))).deletions == (deletion,)
    assert len(refused) == 1
    assert folder.exists() is only_checkpoints
    assert not (folder / "run.json").exists()  # these runs had none


def test_run_that_cannot_be_deleted_is_named(tmp_path: Path) -> None:
    write_runs(tmp_path, FOUR)
    os.mkfifo(tmp_path / "clicks" / FOUR[0].folder / "run.json")
    command = ["clean", str(tmp_path), "--keep-last", "0", "--json"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 1
    found = json.loads(result.output)
    assert {each["run"] for each in found["deleted"]} == {FOUR[1].folder, FOUR[2].folder}
    assert FOUR[0].folder in [each["run"] for each in found["kept"]]


def test_run_that_was_just_written_to_is_kept(tmp_path: Path) -> None:
    write_runs(tmp_path, [run_at(1, "Failed"), run_at(2)])
    (tmp_path / "clicks" / run_at(1).folder / "checkpoints" / "step-20").write_bytes(b"1")
    assert delete_by(tmp_path, ALL) == []


def test_target_of_latest_is_kept(tmp_path: Path) -> None:
    write_runs(tmp_path, FOUR)
    (tmp_path / "clicks" / "latest").symlink_to(FOUR[0].folder)
    assert delete_by(tmp_path, ALL) == [2, 3]


@pytest.mark.parametrize(
    ("outcomes", "gone"),
    [
        pytest.param(["Interrupted", "Failed", "Failed"], [2], id="nothing-complete-since"),
        pytest.param(["Interrupted", "Complete", "Failed"], [1, 2], id="complete-since"),
        pytest.param(["Complete", "Interrupted", "Failed"], [1], id="complete-before"),
    ],
)
def test_run_that_can_go_on_is_kept(tmp_path: Path, outcomes: list[str], gone: list[int]) -> None:
    write_runs(tmp_path, [run_at(1 + i, outcome) for i, outcome in enumerate(outcomes)])
    assert delete_by(tmp_path, ALL) == gone


def run_from(start: int, base: int, name: str = "clicks") -> StoredRun:
    """Return a run of `name` that went on from a checkpoint of the run of `clicks` at `base`."""
    uri = f"/moved/clicks/{run_at(base).folder}/checkpoints/step-10"
    return run_at(start, name=name, resumed_from=uri)


@pytest.mark.parametrize(
    ("runs", "gone"),
    [
        pytest.param([run_at(1), run_at(2), run_from(3, 1)], [2], id="base-of-the-newest"),
        pytest.param([run_at(1), run_from(2, 1), run_from(3, 2)], [], id="base-of-a-base"),
        pytest.param(
            [run_at(1), run_from(2, 1), run_from(3, 2), run_at(4), run_from(5, 3)], [4], id="chain"
        ),
        pytest.param([run_at(1), run_from(2, 1), run_at(3)], [1, 2], id="chain-that-nobody-needs"),
        pytest.param([run_at(1), run_at(2), run_from(3, 1, "views")], [], id="other-experiment"),
    ],
)
def test_bases_of_kept_runs_are_kept(
    tmp_path: Path, runs: list[StoredRun], gone: list[int]
) -> None:
    write_runs(tmp_path, runs)
    assert delete_by(tmp_path, CleaningRule(keep_last=0, name="clicks")) == gone


def test_runs_of_one_name_are_counted_apart(tmp_path: Path) -> None:
    four = [run_at(start) for start in range(1, 5)]
    write_runs(tmp_path / "desk", four)
    write_runs(tmp_path / "laptop", four)
    for run in four:
        rewrite_start(tmp_path / "laptop" / run.name / run.folder)
    runs = list_runs(str(tmp_path))
    done = delete(plan_cleaning(runs, CleaningRule(keep_last=5), NOW))
    assert [deletion.run for deletion in done.deletions] == runs[5:]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The URI of a store that can fail, with three runs."""
    monkeypatch.setenv("LASTMILE_STORAGE_SCHEMES", "away")
    write_runs(tmp_path, [run_at(1), run_at(2), run_at(3)])
    with store_in_memory() as files:
        files.put(str(tmp_path), "/shelf", recursive=True)
        yield "away://shelf"


@pytest.mark.parametrize("broken", [1, 2])
def test_store_that_refuses_a_deletion_hides_no_other(store: str, broken: int) -> None:
    command = ["clean", store, "--keep-last", "1", "--json"]
    # The name of a file, which only its deletion asks for.
    with failing(PermissionError("access denied"), f"{run_at(broken).folder}/checkpoints/step-10"):
        result = CliRunner().invoke(app, command)
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert [each["run"] for each in found["deleted"]] == [run_at(3 - broken).folder]
    [reason] = [each["reason"] for each in found["kept"] if each["run"] == run_at(broken).folder]
    assert "access denied" in reason


def test_folder_of_a_user_is_kept(tmp_path: Path) -> None:
    write_runs(tmp_path, FOUR)
    mine = (tmp_path / "clicks" / FOUR[0].folder).rename(tmp_path / "clicks" / "mine")
    assert delete_by(tmp_path, ALL) == [2, 3]
    assert mine.exists()


def test_both_folders_of_a_run_are_deleted(tmp_path: Path) -> None:
    write_runs(tmp_path, FOUR)
    write_runs(tmp_path / "experiments", FOUR)
    delete_by(tmp_path, ALL)
    assert [path.name for path in tmp_path.glob("**/clicks/*")] == [FOUR[3].folder] * 2


def test_checkpoints_alone_can_be_deleted(tmp_path: Path) -> None:
    write_runs(tmp_path, FOUR)
    rule = CleaningRule(keep_last=1, only_checkpoints=True)
    plan = delete(plan_cleaning(list_runs(str(tmp_path)), rule, NOW))
    assert plan.num_bytes == 3 * 1000
    assert len(list_runs(str(tmp_path))) == 4
    kept = [path.parent.name for path in tmp_path.glob("clicks/*/checkpoints")]
    assert kept == [FOUR[3].folder]


def test_links_in_a_run_are_not_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    (outside / "kept.txt").write_text("x" * 10**6)
    write_runs(root, FOUR)
    for run in FOUR:
        (root / "clicks" / run.folder / "loop").symlink_to(".")
        (root / "clicks" / run.folder / "outside").symlink_to(outside)
    plan = plan_cleaning(list_runs(str(root)), ALL, NOW)
    assert plan.num_bytes < 10**5
    assert delete(plan).deletions
    assert (outside / "kept.txt").exists()


def test_dry_run_deletes_nothing_and_lists_bytes(tmp_path: Path) -> None:
    write_runs(tmp_path, FOUR)
    sizes = [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()]
    command = ["clean", str(tmp_path), "--keep-last", "1", "--dry-run", "--json"]
    found = json.loads(CliRunner().invoke(app, command, catch_exceptions=False).output)
    assert len(list_runs(str(tmp_path))) == 4
    assert found["dryRun"]
    assert found["bytes"] == sum(each["bytes"] for each in found["deleted"])
    assert 0 < found["bytes"] < sum(sizes)
    assert [each["files"] for each in found["deleted"]] == [3, 3, 3]


def test_command_deletes_and_names_what_it_keeps(tmp_path: Path) -> None:
    write_runs(tmp_path, [run_at(1, "Interrupted"), run_at(2, "Failed"), run_at(3, "Failed")])
    result = CliRunner().invoke(
        app, ["clean", str(tmp_path), "--older-than", "1h"], catch_exceptions=False
    )
    assert len(list_runs(str(tmp_path))) == 2
    assert run_at(1).folder in result.output


@pytest.mark.parametrize("options", [[], ["--older-than", "old"], ["--keep-last", "-1"]])
def test_bad_rules_are_refused(tmp_path: Path, options: list[str]) -> None:
    write_runs(tmp_path, FOUR)
    assert CliRunner().invoke(app, ["clean", str(tmp_path), *options]).exit_code == 2
    assert len(list_runs(str(tmp_path))) == 4
