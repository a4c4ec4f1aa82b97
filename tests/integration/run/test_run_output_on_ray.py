"""A table that data workers of a cluster write: equal to a local one, whatever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField
from ray_heads import RealRay
from run_support import LASTMILE, Project, checksum_of, wait_for, workers_called
from warm_lastmile import RUN_SECONDS, Lastmile
from written_iceberg import list_orphans, make_lake

from pipeline_runtime import Pipeline

ROWS = 4000
KEPT = list(range(0, ROWS, 2))
METRICS = [
    {"name": "mean", "mean": {"column": "id"}, "groupBy": ["part"]},
    {"name": "auc", "auc": {"score": "id", "label": "odd"}, "per": "hundred"},
]
# Slow until the file `hurry` exists.
STEPS = """
import pathlib, time

def wait(table, folder):
    if table.num_rows and not pathlib.Path(folder, "hurry").exists():
        time.sleep(0.5)
    return table
"""


def write_project(
    project: Project, *, resources: dict[str, int] | None = None, **spec: Any
) -> None:
    project.folder.mkdir(parents=True, exist_ok=True)
    ids = np.arange(ROWS)
    columns = {"id": ids, "part": ids % 400, "odd": ids % 4 > 1, "hundred": ids // 150}
    pq.write_table(pa.table(columns), project.folder / "in.parquet", row_group_size=100)
    step: dict[str, Any] = {
        "function": "slow_steps:wait",
        "options": {"folder": str(project.folder)},
    }
    document: dict[str, Any] = {
        "code": {"workingDir": str(project.folder)},
        "dataset": {"parquet": {"uri": "in.parquet"}, "rowKey": ["id"]},
        "pipelineOptions": {"rowsPerBlock": 100},
        "pipeline": [
            {"filter": {"where": "id % 2 = 0"}},
            {"measure": {"metrics": METRICS}},
            {"map": step | ({"resources": resources} if resources else {})},
        ],
        "output": {"partitionBy": ["part"], "parquet": {"uri": "out/"}},
        **spec,
    }
    project.write(document, {"slow_steps": STEPS})


def hurry(project: Project) -> None:
    (project.folder / "hurry").touch()


def files_of(project: Project) -> dict[str, list[int]]:
    """Return the rows of each folder of the table, in their order."""
    out = project.folder / "out"
    found: dict[str, list[int]] = {}
    for path in sorted(out.rglob("*.parquet")):
        found.setdefault(str(path.parent.relative_to(out)), []).extend(
            pq.read_table(path, columns=["id"], partitioning=None)["id"].to_pylist()
        )
    return found


def check_table(project: Project) -> None:
    assert sorted(row for rows in files_of(project).values() for row in rows) == KEPT
    summary = project.summary
    assert summary.output is not None
    assert summary.output.rows == len(KEPT)
    assert summary.checksum.model_dump() == checksum_of(KEPT)
    assert not (project.folder / "_staging").exists()
    assert [measure.rows for measure in summary.measures] in ([], [len(KEPT)] * 2)


@pytest.mark.parametrize(
    "resources", [None, pytest.param({"cpu": 1}, marks=pytest.mark.slow)], ids=["fused", "apart"]
)
def test_a_cluster_writes_the_same_table(
    resources: dict[str, int] | None, project: Callable[..., Project], on_cluster: Lastmile
) -> None:
    here, there = project("here"), project("there")
    for run in (here, there):
        write_project(run, resources=resources if run is there else None)
        hurry(run)
    for run, address in ((here, "local"), (there, "auto")):
        ended = on_cluster.run(*run.args("--address", address))
        assert ended.code == 0, str(ended)
        check_table(run)
    assert files_of(here) == files_of(there)
    found = [run.summary.measures for run in (here, there)]
    assert found[0] == found[1] != ()


@pytest.mark.slow
def test_a_cluster_writes_an_iceberg_table(
    project: Callable[..., Project], on_cluster: Lastmile
) -> None:
    run = project()
    target = {"catalog": "lake", "table": "db.t", "bucketBy": "part", "buckets": 8}
    uri = f"sqlite:///{run.folder}/catalog.db"
    write_project(
        run,
        catalogs=[
            {"name": "lake", "type": "Sql", "uri": uri, "warehouse": f"file://{run.folder}/lake"}
        ],
        output={"iceberg": {**target, "sortBy": ["id"]}},
    )
    lake = make_lake(run.folder)
    hurry(run)
    ended = on_cluster.run(*run.args("--address", "auto"))
    assert ended.code == 0, str(ended)
    table = lake.load_table("db.t")
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == KEPT
    assert len(table.inspect.files()) == 8
    assert list_orphans(table) == set()
    lake.engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("resources", [None, {"cpu": 1}], ids=["readers", "Ray Data"])
def test_a_cluster_exchanges_a_side_table(
    resources: dict[str, int] | None, project: Callable[..., Project], on_cluster: Lastmile
) -> None:
    run = project()
    run.folder.mkdir(parents=True, exist_ok=True)
    lake = make_lake(run.folder)
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "part", LongType(), required=False),
    )
    spec = PartitionSpec(PartitionField(1, 1000, BucketTransform(4), "bucket"))
    rows = pa.table({"id": np.arange(ROWS), "part": np.arange(ROWS) % 400})
    lake.create_table("db.rows", schema, partition_spec=spec).append(rows)
    side = pa.table({"id": np.arange(0, ROWS, 4), "v": np.arange(0, ROWS, 4) * 10})
    pq.write_table(side, run.folder / "side.parquet", row_group_size=50)
    step = {"function": "slow_steps:wait", "options": {"folder": str(run.folder)}}
    uri, warehouse = f"sqlite:///{run.folder}/catalog.db", f"file://{run.folder}/lake"
    write_project(
        run,
        catalogs=[{"name": "lake", "type": "Sql", "uri": uri, "warehouse": warehouse}],
        dataset={"iceberg": {"catalog": "lake", "table": "db.rows"}, "rowKey": ["id"]},
        pipeline=[
            {
                "join": {
                    "parquet": {"uri": "side.parquet"},
                    "keys": ["id"],
                    "how": "Inner",
                    "strategy": "Exchange",
                }
            },
            {"map": step | ({"resources": resources} if resources else {})},
        ],
    )
    hurry(run)
    ended = on_cluster.run(*run.args("--address", "auto"))
    assert ended.code == 0, str(ended)
    table = Pipeline.read_parquet("out/").to_table(run.root)
    found = sorted(zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True))
    assert found == [(i, i * 10) for i in range(0, ROWS, 4)]
    assert list(run.folder.rglob("exchange-*")) == []
    lake.engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("resources", [None, {"cpu": 1}], ids=["readers", "Ray Data"])
def test_a_cluster_keeps_the_rows_of_materialize(
    resources: dict[str, int] | None, project: Callable[..., Project], on_cluster: Lastmile
) -> None:
    run = project()
    run.folder.mkdir(parents=True, exist_ok=True)
    lake = make_lake(run.folder)
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "part", LongType(), required=False),
    )
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
    rows = pa.table({"id": np.arange(ROWS), "part": np.arange(ROWS) // 2 % 4})
    source = lake.create_table("db.rows", schema, partition_spec=spec)
    source.append(rows.filter(pc.less(rows["part"], 3)))
    step: dict[str, Any] = {"function": "slow_steps:wait", "options": {"folder": str(run.folder)}}
    step["outputColumns"] = [{"name": "part", "type": "int64"}]
    target = {"catalog": "lake", "table": "db.cache"}
    write_project(
        run,
        catalogs=[
            {
                "name": "lake",
                "type": "Sql",
                "uri": f"sqlite:///{run.folder}/catalog.db",
                "warehouse": f"file://{run.folder}/lake",
            }
        ],
        dataset={"iceberg": {"catalog": "lake", "table": "db.rows"}, "rowKey": ["id"]},
        pipeline=[
            {"filter": {"where": "id % 2 = 0"}},
            {"map": step | ({"resources": resources} if resources else {})},
            {"materialize": {"iceberg": target, "bucketBy": "id", "buckets": 2, "sortBy": ["id"]}},
            {"derive": {"columns": [{"name": "twice", "expression": "id * 2"}]}},
        ],
        output={"mode": "Overwrite", "parquet": {"uri": "out/"}},
    )
    hurry(run)
    for num_parts in (3, 4):
        report = str(run.folder / f"report-{num_parts}")
        ended = on_cluster.run(*run.args("--address", "auto", "--output", report))
        assert ended.code == 0, str(ended)
        table = Pipeline.read_parquet("out/").to_table(run.root)
        kept = [i for i in KEPT if i // 2 % 4 < num_parts]
        found = sorted(zip(table["id"].to_pylist(), table["twice"].to_pylist(), strict=True))
        assert found == [(i, 2 * i) for i in kept]
        if num_parts == 3:
            source.append(rows.filter(pc.equal(rows["part"], 3)))
    [name] = [each for each in lake.list_tables("db") if each[-1].startswith("cache_")]
    cache = lake.load_table(name)
    added = [int(each.summary["added-records"]) for each in cache.metadata.snapshots]
    assert added == [1500, 500]  # the second run computes the new partition alone
    assert list_orphans(cache) == set()
    lake.engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("resources", [None, {"cpu": 1}], ids=["readers", "Ray Data"])
def test_a_cluster_backfills_the_missing_partitions(
    resources: dict[str, int] | None, project: Callable[..., Project], on_cluster: Lastmile
) -> None:
    run = project()
    run.folder.mkdir(parents=True, exist_ok=True)
    lake = make_lake(run.folder)
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "part", LongType(), required=False),
    )
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
    rows = pa.table({"id": np.arange(ROWS), "part": np.arange(ROWS) // 2 % 4})
    lake.create_table("db.rows", schema, partition_spec=spec).append(rows)
    step: dict[str, Any] = {"function": "slow_steps:wait", "options": {"folder": str(run.folder)}}
    step["outputColumns"] = [{"name": "twice", "type": "int64"}]
    uri, warehouse = f"sqlite:///{run.folder}/catalog.db", f"file://{run.folder}/lake"
    write_project(
        run,
        catalogs=[{"name": "lake", "type": "Sql", "uri": uri, "warehouse": warehouse}],
        dataset={"iceberg": {"catalog": "lake", "table": "db.rows"}, "rowKey": ["id"]},
        pipeline=[
            {"filter": {"where": "id % 2 = 0"}},
            {"derive": {"columns": [{"name": "twice", "expression": "id * 2"}]}},
            {"map": step | ({"resources": resources} if resources else {})},
        ],
        output={
            "mode": "OverwritePartitions",
            "columns": ["id", "part", "twice"],
            "partitionBy": ["part"],
            "iceberg": {"catalog": "lake", "table": "db.x", "bucketBy": "id", "buckets": 2},
        },
    )
    hurry(run)
    for index, (chosen, num_rows) in enumerate(((["--partition", "part=1"], 500), ([], 2000))):
        report = str(run.folder / f"report-{index}")
        command = run.args("--address", "auto", "--output", report, *chosen)
        ended = on_cluster.run("backfill", *command[1:])
        assert ended.code == 0, str(ended)
        assert lake.load_table("db.x").scan().count() == num_rows
    table = lake.load_table("db.x")
    found = table.scan().to_arrow()
    assert sorted(zip(found["id"].to_pylist(), found["twice"].to_pylist(), strict=True)) == [
        (i, 2 * i) for i in KEPT
    ]
    assert list_orphans(table) == set()
    lake.engine.dispose()


@pytest.mark.slow
def test_a_cluster_writes_a_table_without_rows(
    project: Callable[..., Project], on_cluster: Lastmile
) -> None:
    run = project()
    write_project(run, pipeline=[{"filter": {"where": "id < 0"}}])
    ended = on_cluster.run(*run.args("--address", "auto"))
    assert ended.code == 0, str(ended)
    table = Pipeline.read_parquet("out/").to_table(run.root)
    assert (table.num_rows, table.column_names) == (0, ["id", "part", "odd", "hundred"])


def start(project: Project, cluster: RealRay, *more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [LASTMILE, *project.args("--address", "auto", *more)],
        env=cluster.driver_env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=project.folder,
    )


def num_records(project: Project, folder: str) -> int:
    staging = Path(project.folder, "_staging", "out")
    return len(list(staging.glob(f"*/{folder}/*.json")))


@pytest.mark.parametrize("kind", ["ray::Reader", "ray::run_task"])
@pytest.mark.slow
def test_a_lost_worker_costs_no_row(
    kind: str, project: Callable[..., Project], on_cluster: Lastmile, cluster: RealRay
) -> None:
    run = project()
    write_project(run)
    if kind == "ray::run_task":
        hurry(run)
    driver = start(run, cluster)
    try:
        wait_for(lambda: num_records(run, "pieces") >= 2, RUN_SECONDS, "chunks")
        wait_for(lambda: workers_called(cluster, kind), RUN_SECONDS, kind)
        os.kill(workers_called(cluster, kind)[0], signal.SIGKILL)
        hurry(run)
        assert driver.wait(RUN_SECONDS) == 0
    finally:
        driver.kill()
        driver.wait()
    check_table(run)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_driver_that_ends_is_continued_by_another(
    number: signal.Signals,
    project: Callable[..., Project],
    on_cluster: Lastmile,
    cluster: RealRay,
) -> None:
    run = project()
    write_project(run)
    driver = start(run, cluster)
    try:
        wait_for(lambda: num_records(run, "pieces") >= 3, RUN_SECONDS, "chunks")
        driver.send_signal(number)
        assert driver.wait(RUN_SECONDS) == (-9 if number == signal.SIGKILL else 130)
    finally:
        driver.kill()
        driver.wait()
    hurry(run)
    ended = on_cluster.run(*run.args("--address", "auto", "--resume"))
    assert ended.code == 0, str(ended)
    assert run.summary.run.attempt == 2
    check_table(run)
