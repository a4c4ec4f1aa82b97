"""Data workers in real pods write Parquet files, though one is lost, and Iceberg tables."""

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml
from ordered import read_last_summary
from pyiceberg.catalog.sql import SqlCatalog
from stage import MOUNT, VOLUME, Stage, condition

from dataset_operator.api import DATA_WORKERS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NAME = "kept"
LAKE = "lake.db"  # the catalog, a SQLite file of the volume


POD = {
    "volumes": [{"name": VOLUME, "persistentVolumeClaim": {"claimName": VOLUME}}],
    "containers": [{"name": "ray", "volumeMounts": [{"name": VOLUME, "mountPath": MOUNT}]}],
}
MOUNTED = {"template": {"spec": POD}}


def on_cluster(name: str = NAME, **changed: Any) -> str:
    spec = {
        "storage": {"root": MOUNT},
        "dataset": {"parquet": {"uri": "data/impressions/"}},
        "pipeline": [{"filter": {"where": "position < 10"}}],
        "pipelineOptions": {"rowsPerBlock": 2000},
        "output": {
            "columns": ["request_id", "position", "clicked"],
            "partitionBy": ["day"],
            "parquet": {"uri": f"{NAME}/"},
        },
        "head": MOUNTED,
        "dataWorkers": {"minReplicas": 2, "maxReplicas": 2, **MOUNTED},
        **changed,
    }
    document = {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": name},
        "spec": spec,
    }
    return yaml.safe_dump(document)


def test_data_workers_write_every_row_once_though_one_is_lost(stage: Stage) -> None:
    stage.apply(on_cluster())
    stage.until(NAME, lambda found: condition(found, "Writing") or is_complete(found))
    if not is_complete(stage.get(NAME)):
        stage.lose(NAME, DATA_WORKERS)
    done = stage.until(NAME, is_complete)["status"]

    assert [done[field] for field in ("run", "attempt", "failures")] == [1, 1, 0]
    assert done["usage"]["gpuSeconds"] == 0
    volume = stage.store.volume
    written = read_last_summary(volume / "experiments" / NAME)["output"]
    assert done["output"] == {name: written[name] for name in ("rows", "files", "bytes")}
    files = list((volume / NAME).rglob("*.parquet"))
    assert done["output"]["files"] == len(files)
    assert done["output"]["bytes"] == sum(file.stat().st_size for file in files)
    there = read_rows(volume / "data" / "impressions", "where position < 10")
    assert read_rows(volume / NAME) == there
    assert done["output"]["rows"] == len(there)


def test_rows_are_kept_and_written_to_iceberg_tables(stage: Stage) -> None:
    volume = stage.store.volume
    catalog = {"name": "lake", "type": "Sql", "uri": f"sqlite:///{MOUNT}/{LAKE}"}
    catalog["warehouse"] = f"file://{MOUNT}/lake"
    SqlCatalog("lake", uri=f"sqlite:///{volume}/{LAKE}").create_namespace("db")
    (volume / LAKE).chmod(0o666)  # the pods' user is another one
    bucketed = {"bucketBy": "user_id", "buckets": 2}
    manifest = on_cluster(
        "kept-rows",
        catalogs=[catalog],
        dataset={
            "parquet": {"uri": "data/impressions/"},
            "rowKey": ["request_id", "item_id"],
        },
        pipeline=[
            {"filter": {"where": "position < 10"}},
            {"derive": {"columns": [{"name": "place", "expression": "cast(position as int32)"}]}},
            {
                "select": {
                    "columns": ["request_id", "item_id", "user_id", "place", "clicked", "day"]
                }
            },
            {"materialize": {"iceberg": {"catalog": "lake", "table": "db.cache"}, **bucketed}},
        ],
        output={
            "columns": ["request_id", "user_id", "place", "clicked"],
            "partitionBy": ["day"],
            "iceberg": {"catalog": "lake", "table": "db.out"},
        },
        dataWorkers={"minReplicas": 1, "maxReplicas": 1, **MOUNTED},
    )
    stage.apply(manifest)
    done = stage.until("kept-rows", is_complete)

    status = done["status"]
    assert [status[field] for field in ("attempt", "failures")] == [1, 0]
    assert status["usage"]["gpuSeconds"] == 0
    assert condition(done, "Materialized") is not None
    kept = status["materialization"]
    assert (kept["state"], kept["partitions"], kept["completePartitions"]) == ("Miss", 1, 1)
    read = {each["table"]: each["snapshotId"] for each in status["snapshots"]}
    assert read == {kept["table"]: kept["snapshotId"]}
    assert status["output"]["snapshotId"] == find_snapshot(volume, "out")
    there = read_rows(volume / "data" / "impressions", "where position < 10")
    assert status["output"]["rows"] == len(there)
    files = f"{volume}/lake/db/out/data/**/*.parquet"
    query = f"select request_id, place, clicked, day::varchar from '{files}' order by all"
    assert duckdb.sql(query).fetchall() == there

    fill = on_cluster(
        "backfill",
        catalogs=[catalog],
        dataset={
            "iceberg": {"catalog": "lake", "table": "db.out"},
            "rowKey": ["request_id", "place"],
        },
        pipeline=[{"derive": {"columns": [{"name": "is_first", "expression": "place = 0"}]}}],
        output={
            "mode": "OverwritePartitions",
            "columns": ["request_id", "place", "is_first"],
            "partitionBy": ["day"],
            "iceberg": {"catalog": "lake", "table": "db.staging"},
        },
        dataWorkers={"minReplicas": 1, "maxReplicas": 1, **MOUNTED},
    )
    stage.apply(fill)
    filled = stage.until("backfill", is_complete)["status"]
    days = len({day for *_, day in there})
    assert [filled["output"][f] for f in ("partitions", "completePartitions")] == [days, days]
    assert filled["output"]["snapshotId"] == find_snapshot(volume, "staging")
    files = f"{volume}/lake/db/staging/data/**/*.parquet"
    query = f"select request_id, place, is_first, day::varchar from '{files}' order by all"
    expected = [(request, place, place == 0, day) for request, place, _, day in there]
    assert duckdb.sql(query).fetchall() == sorted(expected)


def find_snapshot(volume: Path, table: str) -> str:
    """Return a table's snapshot; in its metadata, files have the names that pods have for them."""
    catalog = SqlCatalog("lake", uri=f"sqlite:///{volume}/{LAKE}")
    with catalog.engine.connect() as connection:
        query = "select metadata_location from iceberg_tables where table_name = ?"
        [(location,)] = connection.exec_driver_sql(query, (table,)).fetchall()
    path = volume / location.removeprefix(f"file://{MOUNT}/")
    return str(json.loads(path.read_text())["current-snapshot-id"])


def is_complete(found: dict[str, Any]) -> bool:
    return condition(found, "Complete") is not None


def read_rows(folder: Path, where: str = "") -> list[tuple[Any, ...]]:
    """Return the rows of a table, sorted."""
    table = f"read_parquet('{folder}/**/*.parquet', hive_partitioning = true)"
    query = f"select request_id, position, clicked, day::varchar from {table} {where} order by all"
    return duckdb.sql(query).fetchall()
