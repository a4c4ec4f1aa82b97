"""Manifests that join Iceberg tables by bucket, from the plan to the rows of a feed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from facts import assert_one_tells, assert_told
from iceberg_tables import Lake
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField

from pipeline_runtime.config import parse_experiment
from pipeline_runtime.errors import ManifestError
from pipeline_runtime.feed.base import Waited
from pipeline_runtime.feed.local.process_readers import ProcessReaders
from pipeline_runtime.feed.local.thread_readers import ThreadReaders
from pipeline_runtime.feed.making.maker import Stream
from pipeline_runtime.feed.transport.wire import Sending
from pipeline_runtime.plan import Plan, build_plan, explain
from pipeline_runtime.steps import side_parts

NUM_ROWS = 3000
RNG = np.random.default_rng(0)
ROWS = pa.table(
    {
        "user": pa.array(RNG.integers(0, 500, NUM_ROWS), mask=RNG.random(NUM_ROWS) < 0.1),
        "item": pa.array(RNG.integers(0, 50, NUM_ROWS)),
        "label": pa.array(np.arange(NUM_ROWS)),
    }
)
USERS = pa.table({"uid": np.arange(400), "age": np.arange(400) % 90})
SPAM = pa.table({"user": np.arange(0, 500, 7)})


def write(
    lake: Lake,
    name: str,
    rows: pa.Table,
    bucket_by: str,
    num_buckets: int | None,
    partition_by: str | None = None,
) -> None:
    fields = [
        NestedField(number, column, LongType(), required=False)
        for number, column in enumerate(rows.schema.names, start=1)
    ]
    parts = [(bucket_by, BucketTransform(num_buckets))] if num_buckets else []
    if partition_by:
        parts.append((partition_by, IdentityTransform()))
    table = lake.create(name, Schema(*fields), *parts)
    half = rows.num_rows // 2
    table.append(rows.slice(0, half))
    table.append(rows.slice(half))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Return tables with 12, 8 and 6 buckets, and the users once more without buckets."""
    lake = Lake(tmp_path_factory.mktemp("lake"))
    write(lake, "rows", ROWS, "user", 12)
    write(lake, "users", USERS, "uid", 8)
    write(lake, "spam", SPAM, "user", 6)
    write(lake, "plain", USERS, "uid", None)
    return lake


@pytest.fixture(autouse=True)
def _no_parts() -> Iterator[None]:
    yield
    side_parts.clear_parts()


def plan_of(lake: Lake, *steps: dict[str, Any]) -> Plan:
    catalog = lake.model.to_document()
    document = {
        "apiVersion": "experiments.lastmile.dev/v1alpha1",
        "kind": "DatasetExperiment",
        "metadata": {"name": "joined"},
        "spec": {
            "catalogs": [catalog],
            "dataset": {"iceberg": {"catalog": "lake", "table": "db.rows"}},
            "pipeline": list(steps),
            "training": {"labelColumn": "label", "shuffle": {"unit": "Row"}},
        },
    }
    return build_plan(parse_experiment(document), "")


def join(table: str = "users", **options: Any) -> dict[str, Any]:
    keys = [{"left": "user", "right": "uid"}]
    source = {"catalog": "lake", "table": f"db.{table}"}
    return {"join": {"iceberg": source, "keys": keys, "strategy": "Bucket", **options}}


ANTI_JOIN = {
    "antiJoin": {
        "iceberg": {"catalog": "lake", "table": "db.spam"},
        "keys": ["user"],
        "strategy": "Bucket",
    }
}


def open_readers(kind: str, plan: Plan) -> ThreadReaders | ProcessReaders:
    stream = Stream(plan=plan.training, chunk_rows=500)
    if kind == "threads":
        return ThreadReaders(streams={"training": stream}, num_threads=3)
    return ProcessReaders(streams={"training": stream}, sending=Sending.of(plan), num_readers=2)


def read(kind: str, plan: Plan) -> list[tuple[Any, ...]]:
    readers = open_readers(kind, plan)
    try:
        feed = readers.open("training", 0, plan.training.groups(0, 500), in_order=False)
        tables = [chunk.table for chunk in feed.chunks(Waited())]
    finally:
        if isinstance(readers, ProcessReaders):
            readers.close()
    rows = pa.concat_tables(tables)
    return sorted(zip(rows["label"].to_pylist(), rows["age"].to_pylist(), strict=True), key=str)


EXCHANGE = join("plain", how="Inner", strategy="Exchange")


@pytest.mark.parametrize(
    ("kind", "user_join"),
    [
        pytest.param("threads", join(how="Inner"), id="bucket"),
        pytest.param(
            "threads", join(how="Inner", maxBytes=10_000), id="bucket, one part at a time"
        ),
        pytest.param("threads", EXCHANGE, id="exchange"),
        pytest.param("processes", EXCHANGE, id="exchange, processes", marks=pytest.mark.slow),
        pytest.param(
            "processes", join(how="Inner"), id="bucket, processes", marks=pytest.mark.slow
        ),
    ],
)
def test_readers_deliver_the_rows_of_sql(
    lake: Lake,
    kind: str,
    user_join: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    plan = plan_of(lake, ANTI_JOIN, user_join)
    with duckdb.connect() as connection:
        for name, table in {"l": ROWS, "u": USERS, "s": SPAM}.items():
            connection.register(name, table)
        expected = connection.execute(
            "select label, age from l join u on l.user = u.uid where not exists "
            "(select 1 from s where s.user = l.user) order by all"
        ).fetchall()
    assert read(kind, plan) == sorted(expected, key=str)
    assert not list(tmp_path.glob("lastmile-side-*"))


def test_explain_shows_the_buckets_and_what_is_read(lake: Lake) -> None:
    plan = plan_of(lake, join(), join("plain", columns=["uid"], strategy="Exchange"))
    lines = [line.strip() for line in explain(plan).splitlines()]
    assert_one_tells(lines, "strategy Bucket … N = 12 … M = 8 … g = 4")
    assert_one_tells(lines, "reads … 16 of 16 files …")
    assert_one_tells(lines, "peak memory per reader …")
    assert_one_tells(lines, "strategy Exchange … 12 …")


def test_predicates_leave_only_the_parts_that_rows_need(lake: Lake) -> None:
    plan = plan_of(lake, {"filter": {"where": "user = 3"}}, join())
    assert_one_tells(
        [line.strip() for line in explain(plan).splitlines()], "reads … 4 of 16 files …"
    )


def test_files_of_an_older_spec_are_joined_or_refused_by_name(tmp_path: Path) -> None:
    """Rows under an older spec only need more parts; a side table's must have the new buckets."""
    lake = Lake(tmp_path)
    write(lake, "rows", ROWS, "user", 4)
    write(lake, "users", USERS, "uid", 4)
    for name, column in {"rows": "user", "users": "uid"}.items():
        with lake.catalog.load_table(f"db.{name}").update_spec() as update:
            update.remove_field("p0")
            update.add_field(column, BucketTransform(24), "p1")
    old = lake.catalog.load_table("db.users").inspect.files()["file_path"].to_pylist()
    with pytest.raises(ManifestError) as caught:
        plan_of(lake, join())
    [problem] = caught.value.problems
    assert problem.path == "spec.pipeline[0].join.strategy"
    assert any(path.rpartition("/")[2] in problem.message for path in old), problem.message
    assert_told(problem.message, "… Bucket … uid … rewrite_data_files …")
    exchanged = plan_of(lake, join(strategy="Auto", maxBytes=6_000))
    assert_one_tells([line.strip() for line in explain(exchanged).splitlines()], "not Bucket: …")
    rows = read("threads", exchanged)
    assert len(rows) == NUM_ROWS


DAY = np.arange(NUM_ROWS) % 4
DAILY = pa.table({"uid": np.repeat(np.arange(400), 4), "date": np.tile(np.arange(4), 400)})
DAILY = DAILY.append_column("age", pa.array(np.arange(1600)))
LATE_DAYS = {"filter": {"where": "day >= 2"}}
EARLIER_DAY = {"derive": {"columns": [{"name": "day", "expression": "day - 1"}]}}


@pytest.mark.parametrize(
    ("steps", "num_files"),
    [
        pytest.param([LATE_DAYS], "32 of 64", id="days of the rows"),
        pytest.param([], "64 of 64", id="all days"),
        # The rows' partitions say nothing of the changed day.
        pytest.param([LATE_DAYS, EARLIER_DAY], "64 of 64", id="days that a step changes"),
    ],
)
def test_partitions_that_no_row_has_are_not_read(
    tmp_path: Path, steps: list[dict[str, Any]], num_files: str
) -> None:
    lake = Lake(tmp_path)
    write(lake, "rows", ROWS.append_column("day", pa.array(DAY)), "user", 4, "day")
    write(lake, "daily", DAILY, "uid", 8, "date")
    keys = [{"left": "user", "right": "uid"}, {"left": "day", "right": "date"}]
    plans = {
        strategy: plan_of(lake, *steps, join("daily", keys=keys, strategy=strategy))
        for strategy in ("Bucket", "Broadcast")
    }
    lines = [line.strip() for line in explain(plans["Bucket"]).splitlines()]
    assert_one_tells(lines, f"reads {num_files} files …")
    assert read("threads", plans["Bucket"]) == read("threads", plans["Broadcast"])
