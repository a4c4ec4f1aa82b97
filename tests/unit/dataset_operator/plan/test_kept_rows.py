"""An experiment that reads Iceberg tables: its snapshots, and the condition Materialized."""

import json
from typing import Any

import pytest
from world import World, build_document, running

from dataset_operator.api import HISTORY_ANNOTATION
from dataset_operator.cli.describe import build_summary
from dataset_operator.observed import CatalogTables, Progress, WrittenTable
from dataset_operator.plan.attempt import backoff_seconds
from dataset_operator.status import find_condition
from pipeline_runtime.config import MaterializationStatus, SnapshotStatus

CATALOGS = [{"name": "lake", "type": "Sql", "uri": "sqlite:////mnt/lake.db"}]
DATASET = {"iceberg": {"catalog": "lake", "table": "db.rows"}, "rowKey": ["id"]}
STEP = {
    "materialize": {
        "iceberg": {"catalog": "lake", "table": "db.cache"},
        "bucketBy": "id",
        "buckets": 4,
    }
}
SPEC: dict[str, Any] = {"catalogs": CATALOGS, "dataset": DATASET, "pipeline": [STEP]}
READ = SnapshotStatus(catalog="lake", table="db.rows", snapshot_id="5")
TABLE = {"catalog": "lake", "table": "db.cache_1"}


def report(done: int, state: str = "Partial", snapshot: str | None = None) -> CatalogTables:
    kept = MaterializationStatus(
        catalog="lake",
        table="db.cache_1",
        state=state,  # type: ignore[arg-type]
        partitions=30,
        complete_partitions=done,
        snapshot_id=snapshot,
    )
    return CatalogTables(snapshots=(READ,), materialization=kept)


def tell(world: World, tables: CatalogTables) -> None:
    world.progress = Progress(tables=tables)
    world.step(seconds=30)


def message(world: World) -> str:
    found = find_condition(world.status, "Materialized")
    assert found is not None
    return str(found["message"])


def test_from_missing_rows_to_all() -> None:
    world = World(build_document(**SPEC))
    world.step()
    assert world.condition("Materialized") is None
    world.settle()
    assert world.condition("Materialized") == ("Unknown", "NotReported")
    tell(world, report(12))
    assert world.condition("Materialized") == ("False", "Computing")
    assert "12 of 30" in message(world)
    assert world.status["snapshots"] == [{"catalog": "lake", "table": "db.rows", "snapshotId": "5"}]
    assert world.status["materialization"] == {
        **TABLE,
        "state": "Partial",
        "partitions": 30,
        "completePartitions": 12,
    }
    tell(world, report(30))  # all are committed, and the table is looked at once more
    assert world.condition("Materialized") == ("False", "Computing")
    tell(world, report(30, snapshot="7"))
    assert world.condition("Materialized") == ("True", "Computed")
    world.progress = None
    world.end_job("SUCCEEDED")
    world.settle()
    assert world.condition("Complete") == ("True", "Succeeded")
    assert world.condition("Materialized") == ("True", "Computed")
    lines = dict(build_summary(world.document, world.observe().status))
    assert lines["Read"] == "lake.db.rows at snapshot 5"
    assert "30 of 30" in lines["Kept rows"]
    assert "snapshot 7" in lines["Kept rows"]


def test_rows_that_were_kept_are_a_hit() -> None:
    world = running(**SPEC)
    tell(world, report(30, "Hit", "7"))
    assert world.condition("Materialized") == ("True", "Hit")


def test_a_short_run_is_known_by_its_log() -> None:
    world = running(**SPEC)
    world.end_job("SUCCEEDED", tables=report(30, "Miss", "7"))
    world.settle()
    assert world.condition("Materialized") == ("True", "Computed")
    assert world.status["snapshots"][0]["snapshotId"] == "5"


@pytest.mark.parametrize("tables", [None, report(12)], ids=["never", "before the end"])
def test_a_complete_run_without_its_last_report_is_unknown(tables: CatalogTables | None) -> None:
    world = running(**SPEC)
    if tables is not None:
        tell(world, tables)
    world.end_job("SUCCEEDED")
    world.settle()
    assert world.condition("Complete") == ("True", "Succeeded")
    assert world.condition("Materialized") == ("Unknown", "NotReported")


def test_partitions_of_a_failed_attempt_stay() -> None:
    world = running(**SPEC)
    tell(world, report(12))
    world.end_job("FAILED", message="disk full", exit_code=1)
    world.step()
    assert world.condition("Materialized") == ("False", "Incomplete")
    assert "12 of 30" in message(world)
    world.step(seconds=backoff_seconds(1))
    world.settle()
    assert world.condition("Materialized") == ("False", "Computing")


def test_a_suspended_run_computes_nothing() -> None:
    world = running(**SPEC)
    tell(world, report(12))
    world.edit(suspend=True)
    world.settle()
    assert world.condition("Materialized") == ("False", "Incomplete")


def test_a_new_run_forgets_the_tables_of_the_last() -> None:
    world = running(**SPEC)
    tell(world, report(30, "Hit", "7"))
    world.end_job("SUCCEEDED")
    world.settle()
    world.progress = None
    world.edit(pipeline=[{"drop": {"columns": ["x"]}}])
    world.settle()
    assert world.status["run"] == 2
    assert world.condition("Materialized") is None
    assert not {"snapshots", "materialization"} & world.status.keys()


def test_other_experiments_have_no_such_condition() -> None:
    world = running()
    tell(world, report(12))  # of code that reports what it likes
    assert world.condition("Materialized") is None


def test_the_history_has_the_snapshots() -> None:
    world = running(**SPEC, artifacts={"uri": "s3://bucket/runs"})
    tell(world, report(30, "Hit", "7"))
    world.end_job("SUCCEEDED")
    world.settle(passes=30)
    [pod] = world.history_pods
    stored = json.loads(pod["metadata"]["annotations"][HISTORY_ANNOTATION])["status"]
    assert stored["snapshots"] == [READ.model_dump(by_alias=True)]
    assert stored["materialization"]["snapshotId"] == "7"


def test_a_backfill_shows_its_partitions_and_snapshot() -> None:
    world = running(output={"iceberg": {"catalog": "lake", "table": "db.out"}}, catalogs=CATALOGS)
    world.progress = Progress(
        table=WrittenTable(phase="Spooling", rows=5, partitions=30, complete_partitions=12)
    )
    world.step(seconds=30)
    work = find_condition(world.status, "Writing")
    assert work is not None
    assert "12 of 30" in work["message"]
    assert "12 of 30" in dict(build_summary(world.document, world.observe().status))["Table"]
    table = WrittenTable(
        rows=10,
        files=1,
        num_bytes=100,
        partitions=30,
        complete_partitions=30,
        snapshot_id="9",
    )
    world.end_job("SUCCEEDED", table=table)
    world.settle()
    assert world.status["output"] == {
        "rows": 10,
        "files": 1,
        "bytes": 100,
        "partitions": 30,
        "completePartitions": 30,
        "snapshotId": "9",
    }
    assert world.condition("Complete") == ("True", "Succeeded")
    summary = dict(build_summary(world.document, world.observe().status))
    assert summary["Table"].endswith("snapshot 9")
