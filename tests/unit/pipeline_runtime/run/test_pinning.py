"""A run reads the same snapshots in all of its attempts, although the tables have moved on."""

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from facts import assert_told
from iceberg_tables import Lake
from prepared_runs import leave_checkpoint
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, ForbiddenError
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField

from pipeline_runtime.config import parse_experiment
from pipeline_runtime.errors import SourceError
from pipeline_runtime.iceberg.pins import PINS_FILE
from pipeline_runtime.report import load_summary
from pipeline_runtime.run.consumers import ConsumerRun, Reading
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.session import Finished, Watcher, run_experiment
from pipeline_runtime.run.training.training_run import TrainingRun
from pipeline_runtime.runs.cleaning import CleaningRule, delete, plan_cleaning
from pipeline_runtime.runs.listing import list_runs

MAIN = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "clicked", DoubleType(), required=False),
)
SIDE = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "feature", DoubleType(), required=False),
)


class KilledError(Exception):
    """In the place of a SIGKILL as the work is about to begin."""


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Return a catalog with db.main of 100 rows and db.side of 100 features."""
    monkeypatch.chdir(tmp_path)
    lake = Lake(tmp_path)
    lake.create("main", MAIN)
    lake.create("side", SIDE)
    grow(lake, 0, 100)
    return lake


def grow(lake: Lake, start: int, stop: int) -> None:
    """Append rows to both tables; a later feature is negative."""
    ids = pa.array(range(start, stop), pa.int64())
    clicked = pa.array([float(i % 2) for i in range(start, stop)])
    sign = -1.0 if start else 1.0
    lake.catalog.load_table("db.main").append(pa.table({"id": ids, "clicked": clicked}))
    features = pa.array([sign * i for i in range(stop)])
    if start:
        lake.catalog.load_table("db.side").delete("id >= 0")
    every = pa.array(range(stop), pa.int64())
    lake.catalog.load_table("db.side").append(pa.table({"id": every, "feature": features}))


def run(
    lake: Lake,
    consumer: dict[str, Any],
    *,
    resume: bool = False,
    is_killed: bool = False,
    keep_days: int | None = None,
    watcher: Watcher | None = None,
) -> Finished:
    """Run an experiment over db.main, joined with db.side.

    Args:
        keep_days: of db.main.
    """
    main = {"catalog": "lake", "table": "db.main", "keepDays": keep_days}
    document = {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": "pinned"},
        "spec": {
            "catalogs": [lake.model.model_dump(by_alias=True, exclude_none=True)],
            "dataset": {
                "iceberg": {name: value for name, value in main.items() if value is not None},
                "rowKey": ["id"],
            },
            "pipeline": [
                {"join": {"iceberg": {"catalog": "lake", "table": "db.side"}, "keys": ["id"]}}
            ],
            **consumer,
        },
    }
    options = RunOptions(
        output=lake.folder / "report",
        folder_per_run=True,
        storage_root=str(lake.folder),
        resume=resume,
    )

    def die(_: int) -> None:
        if is_killed:
            raise KilledError

    watcher = watcher or Watcher(on_metrics_port=die)
    text = yaml.safe_dump(document)
    return run_experiment(parse_experiment(document), text, options, watcher)


OUTPUT = {"output": {"parquet": {"uri": "out/"}}}
TRAINING = {"training": {"batchSize": 10, "labelColumn": "clicked"}}


def find_tags(lake: Lake) -> dict[str, int | None]:
    """Return the tags of db.main, with the days from now for which they keep its first snapshot."""
    table = lake.catalog.load_table("db.main")
    [first, *_] = table.metadata.snapshots
    found = {}
    for name, ref in table.metadata.refs.items():
        if ref.snapshot_ref_type == "tag":
            assert ref.snapshot_id == first.snapshot_id
            assert ref.max_ref_age_ms is not None
            ends = (first.timestamp_ms + ref.max_ref_age_ms) / 1000
            days = (ends - datetime.now().timestamp()) / 86_400
            found[name] = round(days) if days < 10_000 else None
    return found


@pytest.mark.parametrize("consumer", [OUTPUT, TRAINING], ids=["output", "training"])
def test_retry_before_any_progress_reads_the_same_rows(
    lake: Lake, consumer: dict[str, Any]
) -> None:
    with pytest.raises(KilledError):
        run(lake, consumer, is_killed=True)
    [folder] = (lake.folder / "experiments/pinned").iterdir()
    recorded = json.loads((folder / PINS_FILE).read_text())
    grow(lake, 100, 150)
    with pytest.raises(KilledError):
        run(lake, consumer, resume=True, is_killed=True)
    newest = max((lake.folder / "experiments/pinned").iterdir())
    assert json.loads((newest / PINS_FILE).read_text()) == recorded
    assert [table["table"] for table in recorded["tables"]] == ["db.main", "db.side"]
    with pytest.raises(KilledError):
        run(lake, consumer, is_killed=True)  # a run of its own is pinned anew
    newest = max((lake.folder / "experiments/pinned").iterdir())
    assert json.loads((newest / PINS_FILE).read_text()) != recorded


def test_finished_retry_has_the_rows_of_the_first_attempt(lake: Lake) -> None:
    with pytest.raises(KilledError):
        run(lake, OUTPUT, is_killed=True)
    grow(lake, 100, 150)
    finished = run(lake, OUTPUT, resume=True)
    assert finished.outcome.kind == "Complete"
    rows = pq.read_table(lake.folder / "out").sort_by("id")
    assert rows["id"].to_pylist() == list(range(100))
    assert rows["feature"].to_pylist() == [float(i) for i in range(100)]
    summary = load_summary(finished.output)
    assert [pin.table for pin in summary.snapshots] == ["db.main", "db.side"]
    report = (finished.output / "report.html").read_text()
    assert all(str(pin.snapshot_id) in report for pin in summary.snapshots)
    plan = json.loads((finished.output / "plan.json").read_text())
    assert [each["snapshotId"] for each in plan["snapshots"]] == [
        pin.snapshot_id for pin in summary.snapshots
    ]


def test_damaged_record_is_refused(lake: Lake) -> None:
    with pytest.raises(KilledError):
        run(lake, OUTPUT, is_killed=True)
    [folder] = (lake.folder / "experiments/pinned").iterdir()
    (folder / PINS_FILE).write_text("{}")
    with pytest.raises(SourceError) as raised:
        run(lake, OUTPUT, resume=True)
    assert_told(str(raised.value), f"… {PINS_FILE} … tables")


def test_expired_snapshot_stops_a_retry(lake: Lake) -> None:
    with pytest.raises(KilledError):
        run(lake, OUTPUT, is_killed=True)
    grow(lake, 100, 150)
    main = lake.catalog.load_table("db.main")
    expired = main.snapshots()[0].snapshot_id
    main.maintenance.expire_snapshots().older_than(datetime.now()).commit()
    with pytest.raises(SourceError) as raised:
        run(lake, OUTPUT, resume=True)
    assert_told(str(raised.value), f"lake.db.main … {expired}")


@pytest.mark.parametrize("keep_days", [0, 30])
def test_tag_keeps_a_snapshot_while_a_run_needs_it(lake: Lake, keep_days: int) -> None:
    with pytest.raises(KilledError):
        run(lake, OUTPUT, is_killed=True, keep_days=keep_days)
    tags = find_tags(lake)
    [folder] = (lake.folder / "experiments/pinned").iterdir()
    assert tags == {f"lastmile-run-pinned-{folder.name}": None}
    grow(lake, 100, 150)
    main = lake.catalog.load_table("db.main")
    main.maintenance.expire_snapshots().older_than(datetime.now()).commit()
    finished = run(lake, OUTPUT, resume=True, keep_days=keep_days)
    assert finished.outcome.kind == "Complete"
    assert pq.read_table(lake.folder / "out").num_rows == 100
    assert find_tags(lake) == ({next(iter(tags)): keep_days} if keep_days else {})
    assert [pin.kept_by for pin in finished.summary.snapshots] == [next(iter(tags)), None]


def test_run_that_may_not_tag_does_not_begin(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ForbiddenError("read only")

    monkeypatch.setattr(SqlCatalog, "commit_table", refuse)
    with pytest.raises(SourceError) as raised:
        run(lake, OUTPUT, keep_days=1)
    assert_told(str(raised.value), "lake.db.main … keepDays … read only … keepDays")
    assert not (lake.folder / "out").exists()


def test_tag_that_cannot_be_removed_is_a_warning(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, calls = SqlCatalog.commit_table, []

    def answer_once(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) > 1:
            raise ForbiddenError("read only")
        return commit(*arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", answer_once)
    finished = run(lake, OUTPUT, keep_days=0)
    assert finished.outcome.kind == "Complete"
    [tag] = find_tags(lake)
    assert any(tag in warning for warning in finished.summary.warnings)


def test_tags_wait_for_other_writers(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, failures = SqlCatalog.commit_table, [CommitFailedException("moved")] * 2

    def answer_late(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return commit(*arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", answer_late)
    with pytest.raises(KilledError):
        run(lake, OUTPUT, is_killed=True, keep_days=0)
    assert len(find_tags(lake)) == 1


def test_resumed_training_reads_the_snapshots_of_its_checkpoint(lake: Lake) -> None:
    prepared: list[ConsumerRun] = []

    def die(run: ConsumerRun) -> None:
        assert isinstance(run, TrainingRun)
        prepared.append(run)
        if run.basis.resumed_from is None:
            leave_checkpoint(run._run)
        raise KilledError

    for is_resumed in (False, True):
        with pytest.raises(KilledError):
            run(lake, TRAINING, resume=is_resumed, watcher=Watcher(on_prepared=die))
        grow(lake, 100, 150)
    first, second = (each.basis for each in prepared)
    assert second.resumed_from is not None
    assert second.plan.pins == first.plan.pins
    assert second.plan.main.scan.units == first.plan.main.scan.units
    side = second.plan.main.steps[0].transform.side_table
    assert side is not None
    assert side.num_rows == 100


def remove_data_files(lake: Lake) -> str:
    files = [task.file.file_path for task in lake.catalog.load_table("db.main").scan().plan_files()]
    for file in files:
        Path(file.removeprefix("file://")).unlink()
    return files[0]


def test_missing_data_file_fails_the_run_with_one_error(lake: Lake) -> None:
    removed: list[str] = []
    watcher = Watcher(on_metrics_port=lambda _: removed.append(remove_data_files(lake)))
    finished = run(lake, OUTPUT, watcher=watcher)
    assert finished.outcome.kind == "Failed"
    assert finished.outcome.error_kind == "SourceError"
    [pin] = [pin for pin in finished.summary.snapshots if pin.table == "db.main"]
    assert_told(str(finished.outcome.error), f"{removed[0]} … {pin.snapshot_id} … keepDays")


def await_newer_name(lake: Lake) -> None:
    """Wait until a run that begins now is the newest by its name, which has seconds."""
    newest = max(path.name[:16] for path in (lake.folder / "experiments/pinned").iterdir())
    while f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}" <= newest:
        time.sleep(0.01)


def clean(lake: Lake) -> list[str]:
    """Delete all runs but the newest, as if they were old; return why others stay."""
    for path in lake.folder.rglob("*"):
        os.utime(path, (0, 0))
    runs = list_runs(str(lake.folder))
    done = delete(plan_cleaning(runs, CleaningRule(keep_last=1), datetime.now(UTC)))
    return [kept.reason for kept in done.kept]


def test_clean_removes_the_tags_of_deleted_runs_alone(lake: Lake) -> None:
    for resume in (False, True):  # the second attempt has the tag of the first
        with pytest.raises(KilledError):
            run(lake, OUTPUT, is_killed=True, resume=resume, keep_days=7)
    assert len(find_tags(lake)) == 1
    assert clean(lake) == []
    assert len(find_tags(lake)) == 1
    await_newer_name(lake)
    newest = run(lake, OUTPUT, keep_days=7)
    assert clean(lake) == []
    assert list(find_tags(lake)) == [f"lastmile-run-pinned-{newest.output.name}"]


def die_at(phase: str) -> Watcher:
    def die(reading: Reading) -> None:
        if getattr(reading.source, "phase", None) == phase:
            raise KilledError

    return Watcher(on_reading=die)


@pytest.mark.parametrize("is_new", [True, False], ids=["new table", "existing table"])
def test_clean_deletes_the_files_of_an_unfinished_output(lake: Lake, *, is_new: bool) -> None:
    output = {
        "output": {"iceberg": {"catalog": "lake", "table": "db.out"}, "mode": "Overwrite"},
    }
    if not is_new:
        assert run(lake, output).outcome.kind == "Complete"
    folder = lake.folder / "w/db/out/data"
    before = set(folder.rglob("*.parquet"))
    with pytest.raises(KilledError):
        run(lake, output, watcher=die_at("Committing"), keep_days=0)
    assert len(set(folder.rglob("*.parquet"))) == len(before) + 1
    await_newer_name(lake)
    run(lake, OUTPUT)
    assert clean(lake) == []
    assert set(folder.rglob("*.parquet")) == before
    assert lake.catalog.table_exists("db.out") is not is_new
    assert find_tags(lake) == {}
