"""Runs that write an Iceberg table: results, refusals, and processes killed at the commit."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform, Transform
from pyiceberg.types import ListType, NestedField, StructType, UUIDType
from written_iceberg import list_orphans, make_lake

from pipeline_runtime import Pipeline
from pipeline_runtime.errors import ManifestError, OutputRefused
from pipeline_runtime.report import load_summary
from pipeline_runtime.run.session import Finished

ROWS = pa.table(
    {
        "id": np.arange(400),
        "x": np.arange(400) / 1000,
        "day": pa.array(["a", "a", None, "b"] * 100),
        "u": pa.array(np.arange(400), pa.uint64()),
    }
)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    pq.write_table(ROWS, tmp_path / "in.parquet", row_group_size=100)
    return tmp_path


@pytest.fixture
def lake(root: Path) -> Iterator[SqlCatalog]:
    catalog = make_lake(root)
    yield catalog
    catalog.engine.dispose()


def catalog_of(root: Path) -> dict[str, str]:
    return {
        "name": "lake",
        "type": "sql",
        "uri": f"sqlite:///{root}/catalog.db",
        "warehouse": f"file://{root}/lake",
    }


def write(root: Path, table: str = "db.t", **options: Any) -> Finished:
    pipeline = Pipeline.read_parquet("in.parquet").filter("id % 2 = 0")
    options = {"columns": ["id", "x", "day"], "storage_root": str(root)} | options
    return pipeline.write_iceberg(table, catalog=catalog_of(root), **options)


def ids(lake: SqlCatalog) -> list[int]:
    return sorted(lake.load_table("db.t").scan().to_arrow()["id"].to_pylist())


def test_a_run_leaves_the_table_and_a_report(root: Path, lake: SqlCatalog) -> None:
    layout: dict[str, Any] = {"partition_by": "day", "bucket_by": "id", "buckets": 2}
    finished = write(root, sort_by=["day", "id"], **layout)
    assert finished.outcome.kind == "Complete"
    assert ids(lake) == list(range(0, 400, 2))
    table = lake.load_table("db.t")
    summary = load_summary(finished.output).output
    assert summary is not None
    assert (summary.rows, summary.catalog) == (200, "lake")
    assert summary.snapshot_id == str(table.metadata.current_snapshot_id)
    assert list(root.rglob("_staging")) == []
    with pytest.raises(OutputRefused, match="Overwrite"):
        write(root, **layout)
    replaced = load_summary(write(root, mode="overwrite", **layout).output).output
    assert replaced is not None
    assert replaced.replaced is not None
    assert replaced.replaced.startswith("200 rows")


def test_a_table_is_overwritten_by_its_own_rows(root: Path, lake: SqlCatalog) -> None:
    write(root)
    pipeline = Pipeline.read_iceberg("db.t", catalog_of(root)).filter("id < 100")
    written = pipeline.write_iceberg("db.t", catalog="lake", mode="overwrite", storage_root=".")
    assert written.outcome.kind == "Complete"
    assert ids(lake) == list(range(0, 100, 2))


@pytest.mark.parametrize("transform", [BucketTransform(4), IdentityTransform()], ids=str)
def test_uuids_are_written_to_a_table_that_has_them(
    root: Path, lake: SqlCatalog, transform: Transform[Any, Any]
) -> None:
    ids = [None, *(UUID(int=i << 120 | i) for i in range(5))]
    raw = [each and each.bytes for each in ids]
    kinds = {
        "id": pa.binary(16),
        "ids": pa.list_(pa.binary(16)),
        "nested": pa.struct([("id", pa.binary(16))]),
    }
    columns = {"id": raw, "ids": [[each] for each in raw], "nested": [{"id": r} for r in raw]}
    rows = pa.table(columns, schema=pa.schema(list(kinds.items())))
    pq.write_table(rows, "in.parquet")
    schema = Schema(
        NestedField(1, "id", UUIDType()),
        NestedField(2, "ids", ListType(3, UUIDType(), element_required=False)),
        NestedField(4, "nested", StructType(NestedField(5, "id", UUIDType(), required=False))),
    )
    lake.create_table(
        "db.t",
        schema,
        partition_spec=PartitionSpec(PartitionField(1, 1000, transform, "part")),
        sort_order=SortOrder(SortField(1, IdentityTransform())),
    )
    pipeline = Pipeline.read_parquet("in.parquet")
    options: dict[str, Any] = {"catalog": catalog_of(root), "storage_root": "."}
    outcome = pipeline.write_iceberg("db.t", **options).outcome
    assert outcome.kind == "Complete", outcome.error
    table = lake.load_table("db.t")
    assert sorted(table.scan().to_arrow()["id"].to_pylist(), key=str) == sorted(ids, key=str)
    if isinstance(transform, BucketTransform):  # PyIceberg 0.12 finds no UUID by identity
        found = table.scan(row_filter=EqualTo("id", ids[3])).to_arrow()
        assert found["ids"].to_pylist() == [[ids[3]]]
    else:
        assert {task.file.partition[0] for task in table.scan().plan_files()} == set(ids)
    again = Pipeline.read_iceberg("db.t", catalog_of(root))
    assert again.to_table().sort_by("id").equals(rows.sort_by("id"))
    del options["catalog"]
    written = again.write_iceberg("db.t", catalog="lake", mode="overwrite", **options)
    assert written.outcome.kind == "Complete"
    assert again.to_table().num_rows == len(ids)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        pytest.param({"columns": ["nothing"]}, "spec.output.columns", id="unknown column"),
        pytest.param({"columns": ["u"]}, "spec.output.columns", id="unsigned"),
        pytest.param({"partition_by": "x"}, "spec.output.partitionBy", id="float partition"),
        pytest.param(
            {"bucket_by": "x", "buckets": 2}, "spec.output.iceberg.bucketBy", id="float bucket"
        ),
        pytest.param({"bucket_by": "id"}, "spec.output.iceberg.bucketBy", id="no number"),
        pytest.param({"sort_by": "u"}, "spec.output.iceberg.sortBy", id="order of another column"),
        pytest.param({"sort_by": "x"}, "spec.output.iceberg.sortBy", id="order of floats"),
        pytest.param({"table": "t"}, "spec.output.iceberg.table", id="no namespace"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused(
    root: Path, lake: SqlCatalog, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        write(root, **options)
    assert [problem.path for problem in caught.value.problems] == [field]


# Kills its process at one moment, as `kill -9` would.
SCRIPT = """
import os, signal, sys
from pyiceberg.catalog.sql import SqlCatalog
from pipeline_runtime.output import iceberg, merge
from test_writing_iceberg import write
from pathlib import Path

def dying(function, before):
    def call(*args, **options):
        if before:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)
    return call

owner, name = {
    "merged": (merge, "run_task"),
    "staged": (iceberg.IcebergTable, "_stage"),
    "committed": (SqlCatalog, "commit_table"),
    "removed": (iceberg.IcebergTable, "_remove_files"),
}[sys.argv[1]]
setattr(owner, name, dying(getattr(owner, name), sys.argv[2] == "before"))
write(Path.cwd())
"""


@pytest.mark.slow  # test_iceberg_tables.py kills without processes
@pytest.mark.parametrize("moment", ["merged", "staged", "committed", "removed"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_killed_process_is_resumed_without_losing_rows(
    root: Path, lake: SqlCatalog, moment: str, when: str
) -> None:
    paths = [str(Path(__file__).parent), *sys.path]
    code = f"import sys; sys.path[:0] = {paths!r}\n{SCRIPT}"
    killed = subprocess.run([sys.executable, "-c", code, moment, when], cwd=root, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert lake.table_exists("db.t") == (
        moment == "removed" or (moment, when) == ("committed", "after")
    )
    assert write(root, resume=True).outcome.kind == "Complete"
    assert ids(lake) == list(range(0, 400, 2))
    table = lake.load_table("db.t")
    assert len(table.metadata.snapshots) == 1
    assert list_orphans(table) == set()
