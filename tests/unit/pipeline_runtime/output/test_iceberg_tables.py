"""Iceberg tables that an output writes: rows, files, modes, kills and concurrent writers."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from arrow_memory import measure_arrow_memory
from facts import assert_told
from iceberg_readers import read_by_duckdb, read_by_polars, sorted_rows
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import ListType, LongType, MapType, NestedField, StringType, StructType
from spark_tables import SparkTables
from written_iceberg import WrittenIceberg, list_orphans, make_lake
from written_tables import Killed, KillingStorage, plan_table

from pipeline_runtime.bucketing import bucket
from pipeline_runtime.config import Catalog
from pipeline_runtime.errors import OutputRefused
from pipeline_runtime.iceberg.commits import CommitUnknown
from pipeline_runtime.output.merge import Part, Slice, Task, run_task
from pipeline_runtime.output.spool import write_spool

DAYS = ["a", "a/b c%", None, "null"]
OTHER_RUN = "20260101T000000Z-fedcba9876543210"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[SqlCatalog]:
    catalog = make_lake(tmp_path)
    yield catalog
    catalog.engine.dispose()


def rows(num_rows: int = 400, first: int = 0) -> pa.Table:
    ids = np.arange(first, first + num_rows)
    return pa.table(
        {
            "id": pa.array([None if i % 50 == 7 else int(i * 7919 % 1000) for i in ids]),
            "n": ids,
            "day": pa.array([DAYS[i % 4] for i in ids]),
            "kind": pa.array([f"k{i % 3}" for i in ids]).dictionary_encode(),
            "small": pa.array(ids % 100, pa.int8()),
            "x": pa.array(
                [[0.5, float(i)] if i % 5 else None for i in ids], pa.list_(pa.float32())
            ),
            "price": pa.array([Decimal(int(i)) / 100 for i in ids], pa.decimal128(9, 2)),
            "at": pa.array([dt.datetime(2026, 1, 1 + i % 9) for i in ids], pa.timestamp("ms")),
        }
    )


def settings(tmp_path: Path, written: pa.Table, **fields: Any) -> WrittenIceberg:
    stream = plan_table(tmp_path / f"in-{len(written)}.parquet", written)
    return WrittenIceberg(stream=stream, uri=str(tmp_path), **fields)


def numbers(lake: SqlCatalog, name: str = "db.t") -> list[int]:
    return sorted(lake.load_table(name).scan().to_arrow()["n"].to_pylist())


def data_files(table: Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.inspect.files().to_pylist()
    return found


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(lambda table: table.scan().to_arrow(), id="pyiceberg"),
        pytest.param(lambda table: read_by_duckdb(table.metadata_location), id="duckdb"),
        pytest.param(lambda table: read_by_polars(table.metadata_location), id="polars"),
    ],
)
def test_other_readers_find_the_rows(
    tmp_path: Path, lake: SqlCatalog, read: Callable[[Table], pa.Table]
) -> None:
    written = rows()
    found = settings(
        tmp_path, written, partition_by=("day",), bucket_by="id", num_buckets=4, sort_by=("id",)
    ).finish()
    table = lake.load_table("db.t")
    assert (found.rows, found.files) == (400, len(data_files(table)))
    order = [("n", "ascending")]
    columns = ["n", "id", "day", "kind", "small", "price", "x"]
    expected = written.sort_by(order).select(columns).to_pylist()
    assert read(table).sort_by(order).select(columns).to_pylist() == expected


def test_each_file_is_one_sorted_partition(tmp_path: Path, lake: SqlCatalog) -> None:
    settings(
        tmp_path, rows(), partition_by=("day",), bucket_by="id", num_buckets=4, sort_by=("id", "n")
    ).finish()
    table = lake.load_table("db.t")
    assert [f.name for f in table.spec().fields] == ["day", "id_bucket"]
    seen = set()
    for file in data_files(table):
        with table.io.new_input(file["file_path"]).open() as source:
            found = pa.parquet.read_table(source)
        [day] = set(found["day"].to_pylist())
        [number] = set(bucket(found["id"], 4).tolist())
        keys = [
            (i is not None, i, n)
            for i, n in zip(found["id"].to_pylist(), found["n"].to_pylist(), strict=True)
        ]
        assert keys == sorted(keys, key=lambda key: (key[0], key[1] or 0, key[2]))
        assert file["sort_order_id"] == table.sort_order().order_id
        assert file["partition"] == {"day": day, "id_bucket": None if number < 0 else number}
        seen.add((day, number))
    assert len(seen) == len(data_files(table))  # null and 'null' share a folder, not a file
    assert found.schema.field("n").metadata[b"PARQUET:field_id"] == b"2"


def test_bounds_prune_no_row(tmp_path: Path, lake: SqlCatalog) -> None:
    # Parquet has no bounds for a row group with a text of more than 4 KiB.
    table = pa.table({"n": [1, 2, 3], "text": ["m", "z" * 5000, None]})
    settings(tmp_path, table, partition_by=("n",)).finish()
    found = lake.load_table("db.t")
    assert found.scan(row_filter="text >= 'z'").to_arrow()["n"].to_pylist() == [2]
    assert found.scan(row_filter="text = 'm'").to_arrow()["n"].to_pylist() == [1]
    assert len(list(found.scan(row_filter="n = 2").plan_files())) == 1


def test_files_are_on_the_disk_before_the_commit(
    tmp_path: Path, lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    commit, before = SqlCatalog.commit_table, []

    def note(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))

    def commit_synced(*arguments: Any) -> Any:
        before.append(set(synced))
        return commit(*arguments)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(SqlCatalog, "commit_table", commit_synced)
    settings(tmp_path, rows(), partition_by=("day",), bucket_by="id", num_buckets=2).finish()
    table = lake.load_table("db.t")
    [on_disk] = before
    for file in data_files(table):
        path = Path(file["file_path"].removeprefix("file://"))
        folder = table.location().removeprefix("file://")
        assert {
            str(each) for each in (path, *path.parents) if each.is_relative_to(folder)
        } <= on_disk


def test_long_partition_values_stay_out_of_paths(tmp_path: Path, lake: SqlCatalog) -> None:
    table = pa.table({"n": range(6), "day": ["x" * 300, "y" * 300, "z"] * 2})
    settings(tmp_path, table, partition_by=("day",)).finish()
    assert numbers(lake) == list(range(6))
    assert len({f["file_path"] for f in data_files(lake.load_table("db.t"))}) == 3


def test_a_table_without_rows_is_created(tmp_path: Path, lake: SqlCatalog) -> None:
    assert settings(tmp_path, rows().slice(0, 0)).finish().files == 0
    assert numbers(lake) == []
    assert len(lake.load_table("db.t").schema().fields) == 8


def test_another_tables_rows_are_refused_unless_overwritten(
    tmp_path: Path, lake: SqlCatalog
) -> None:
    settings(tmp_path, rows(4), run=OTHER_RUN, partition_by=("day",)).finish()
    with pytest.raises(OutputRefused, match="Overwrite"):
        settings(tmp_path, rows(8)).finish()
    assert numbers(lake) == [0, 1, 2, 3]
    replaced = settings(tmp_path, rows(8), mode="Overwrite").finish()
    assert numbers(lake) == list(range(8))
    assert replaced.replaced == "4 rows in 4 files"
    table = lake.load_table("db.t")
    assert table.scan(snapshot_id=table.history()[0].snapshot_id).to_arrow().num_rows == 4
    assert list_orphans(table) == set()


def test_an_existing_empty_table_keeps_its_layout(tmp_path: Path, lake: SqlCatalog) -> None:
    schema = pa.schema([("day", pa.string()), ("n", pa.int64())])
    table = lake.create_table("db.t", schema)
    with table.update_spec() as update:
        update.add_field("n", "truncate[100]", "n_trunc")
    with table.update_sort_order() as order:
        order.desc("n", "identity")  # type: ignore[arg-type]
    settings(tmp_path, pa.table({"n": range(300), "day": ["a"] * 300})).finish()
    assert numbers(lake) == list(range(300))
    files = data_files(lake.load_table("db.t"))
    assert sorted(f["partition"]["n_trunc"] for f in files) == [0, 100, 200]


@pytest.mark.parametrize(
    ("columns", "fields"),
    [
        pytest.param({"n": pa.int64()}, {}, id="fewer columns"),
        pytest.param({"n": pa.string(), "day": pa.string()}, {}, id="another type"),
        pytest.param({"n": pa.int64(), "day": pa.string(), "z": pa.int64()}, {}, id="more columns"),
        pytest.param(
            {"n": pa.int64(), "day": pa.string()}, {"partition_by": ("day",)}, id="partitions"
        ),
        pytest.param({"n": pa.int64(), "day": pa.string()}, {"sort_by": ("n",)}, id="order"),
    ],
)
def test_a_table_of_another_form_is_refused(
    tmp_path: Path, lake: SqlCatalog, columns: dict[str, pa.DataType], fields: dict[str, Any]
) -> None:
    lake.create_table("db.t", pa.schema(list(columns.items())))
    table = pa.table({"n": [1], "day": ["a"]})
    with pytest.raises(OutputRefused):
        settings(tmp_path, table, mode="Overwrite", **fields).finish()


REQUIRED = Schema(
    NestedField(1, "n", LongType(), required=True),
    NestedField(2, "s", StructType(NestedField(3, "part", LongType(), required=True))),
    NestedField(4, "items", ListType(5, LongType(), element_required=True)),
    NestedField(6, "m", MapType(7, StringType(), 8, LongType(), value_required=True)),
)
OPTIONAL = pa.schema(
    [
        ("n", pa.int64()),
        ("s", pa.struct([("part", pa.int64())])),
        ("items", pa.list_(pa.int64())),
        ("m", pa.map_(pa.string(), pa.int64())),
    ]
)
FULL = {"n": 1, "s": {"part": 1}, "items": [1], "m": [("a", 1)]}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        pytest.param({"n": None}, "column 'n' …", id="column"),
        pytest.param({"s": {"part": None}}, "column 's.part' …", id="part of a struct"),
        pytest.param({"items": [1, None]}, "column 'items.element' …", id="item of a list"),
        pytest.param({"m": [("a", None)]}, "column 'm.value' …", id="value of a map"),
        pytest.param({"s": None, "items": None, "m": None}, None, id="nulls around the parts"),
    ],
)
def test_required_columns_hold_no_nulls(
    tmp_path: Path, lake: SqlCatalog, row: dict[str, Any], told: str | None
) -> None:
    lake.create_table("db.t", REQUIRED)
    written = pa.Table.from_pylist([FULL, {**FULL, **row}], schema=OPTIONAL)
    job = settings(tmp_path, written)
    if told is None:
        job.finish()
        read = read_by_duckdb(lake.load_table("db.t").metadata_location)
        assert read.to_pylist() == written.to_pylist()
    else:
        with pytest.raises(OutputRefused) as raised:
            job.finish()
        assert_told(str(raised.value), f"spec.output: {told}")


def test_a_missing_namespace_is_refused(tmp_path: Path, lake: SqlCatalog) -> None:
    with pytest.raises(OutputRefused, match="nowhere"):
        settings(tmp_path, rows(4), table="nowhere.t").finish()


def test_a_catalog_without_a_place_for_new_tables_is_refused(
    tmp_path: Path, lake: SqlCatalog
) -> None:
    model = Catalog(name="lake", type="Sql", uri=f"sqlite:///{tmp_path}/catalog.db")
    with pytest.raises(OutputRefused, match=re.escape("spec.catalogs[lake].warehouse")):
        settings(tmp_path, rows(4), model=model).finish()


def is_killed(job: WrittenIceberg, at: int, *, after: bool, resume: bool = False) -> bool:
    with KillingStorage.killing(at, after=after):
        try:
            job.finish(resume=resume)
        except Killed:
            return True
    return False


@pytest.mark.parametrize(
    ("first", "step"),
    [(0, 9), *(pytest.param(first, 9, marks=pytest.mark.slow) for first in range(1, 9))],
)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("resume", [True, False], ids=["resumed", "run anew"])
def test_a_kill_anywhere_costs_and_doubles_no_row(
    tmp_path: Path, lake: SqlCatalog, after: bool, first: int, step: int, resume: bool
) -> None:
    table = rows(8)
    for at in itertools.count(first, step):
        name = f"db.t{at}"
        job = settings(
            tmp_path,
            table,
            table=name,
            partition_by=("day",),
            chunk_rows=4,
            storage=KillingStorage,
            mode="Fail" if resume else "Overwrite",
            run=f"20260101T{at:06d}Z-0123456789abcdef",
        )
        if not is_killed(job, at, after=after):
            break
        job.finish(resume=resume)
        assert numbers(lake, name) == list(range(8))
        assert list_orphans(lake.load_table(name)) == set()
        assert list((tmp_path / "artifacts").rglob("_staging/*")) == []
    assert at > 15


def raising(lake: SqlCatalog, error: Exception, times: int = 99) -> Callable[[Any], None]:
    """Return a change of a catalog that makes its commits land, and then raise."""
    left = itertools.repeat(error, times)

    class Silent(type(lake)):  # type: ignore[misc]
        def commit_table(self, *args: Any) -> Any:
            response = super().commit_table(*args)
            if next(left, None):
                raise error
            return response

    def change(catalog: Any) -> None:
        catalog.__class__ = Silent

    return change


def test_a_lost_acknowledgement_doubles_no_row(tmp_path: Path, lake: SqlCatalog) -> None:
    lost = CommitStateUnknownException("502")
    settings(tmp_path, rows(8), wrap=raising(lake, lost)).finish()
    assert numbers(lake) == list(range(8))
    assert len(lake.load_table("db.t").metadata.snapshots) == 1


def test_a_loser_deletes_its_files(tmp_path: Path, lake: SqlCatalog) -> None:
    def overtake(catalog: Any) -> None:
        job = settings(tmp_path, rows(4), run=OTHER_RUN)

        class Overtaken(SqlCatalog):
            def commit_table(self, *args: Any) -> Any:
                if not lake.table_exists("db.t"):
                    job.finish()
                return super().commit_table(*args)

        catalog.__class__ = Overtaken

    with pytest.raises(OutputRefused):
        settings(tmp_path, rows(8), wrap=overtake).finish()
    assert numbers(lake) == [0, 1, 2, 3]
    assert list_orphans(lake.load_table("db.t")) == set()
    settings(tmp_path, rows(8), mode="Overwrite").finish(resume=True)
    assert numbers(lake) == list(range(8))


@pytest.mark.parametrize("resume", [True, False], ids=["resumed", "run anew"])
def test_an_unknown_outcome_is_resolved_by_the_next_attempt(
    tmp_path: Path, lake: SqlCatalog, resume: bool
) -> None:
    def cut_off(catalog: Any) -> None:
        class Cut(SqlCatalog):
            def commit_table(self, *args: Any) -> Any:
                raise ConnectionError("reset")

        catalog.__class__ = Cut

    with pytest.raises(CommitUnknown):
        settings(tmp_path, rows(8), wrap=cut_off).finish()
    assert list((tmp_path / "lake").rglob("*.parquet"))
    run = "20260101T000000Z-0123456789abcdef" if resume else "20260102T000000Z-0123456789abcdef"
    settings(tmp_path, rows(8), run=run).finish(resume=resume)
    assert numbers(lake) == list(range(8))
    assert list_orphans(lake.load_table("db.t")) == set()


def test_an_overwrite_replaces_rows_that_came_meanwhile(tmp_path: Path, lake: SqlCatalog) -> None:
    settings(tmp_path, rows(4), run=OTHER_RUN).finish()
    extra = lake.load_table("db.t").scan().to_arrow()

    def append(catalog: Any) -> None:
        class Busy(SqlCatalog):
            def commit_table(self, *args: Any) -> Any:
                if len(lake.load_table("db.t").metadata.snapshots) == 1:
                    lake.load_table("db.t").append(extra)
                return super().commit_table(*args)

        catalog.__class__ = Busy

    found = settings(tmp_path, rows(8), mode="Overwrite", wrap=append).finish()
    assert numbers(lake) == list(range(8))
    assert found.replaced == "8 rows in 2 files"


def test_a_table_that_changes_meanwhile_is_refused(tmp_path: Path, lake: SqlCatalog) -> None:
    table = lake.create_table("db.t", pa.schema([("n", pa.int64())]))

    def repartition(catalog: Any) -> None:
        with table.update_spec() as update:
            update.add_field("n", "bucket[4]", "n_bucket")

    with pytest.raises(OutputRefused):
        settings(tmp_path, pa.table({"n": range(9)}), wrap=repartition).finish()
    assert list_orphans(lake.load_table("db.t")) == set()


def test_tasks_that_write_one_partition_choose_distinct_paths(
    tmp_path: Path, lake: SqlCatalog
) -> None:
    target = settings(tmp_path, rows(16), bucket_by="n", num_buckets=1).target()
    staged = target.destination.stage("20260101T000000Z-0123456789abcdef")
    [section] = write_spool(staged.below("spool"), "x.arrows", rows(16), target.split).sections
    part = Part(
        folder=section.folder,
        number=0,
        slices=(Slice(file="x.arrows", section=section, start=0, stop=16),),
    )
    task = Task(index=0, parts=(part,))
    paths = {run_task(staged, task, target.form)[0].path for _ in range(16)}
    assert len(paths) == 16


def test_sorting_holds_one_file_of_bounded_size(
    tmp_path: Path, lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline_runtime.output.merge._SAMPLE_BYTES", 1 << 16)
    num_rows, limit = 200_000, 1 << 20
    values = np.random.default_rng(0).permutation(num_rows)
    table = pa.table({"n": values, "v": values / 7, "w": values / 3})
    stream = plan_table(tmp_path / "in.parquet", table, 10_000)
    job = WrittenIceberg(
        stream=stream, uri=str(tmp_path), sort_by=("n",), max_sorted_bytes=limit, chunk_rows=10_000
    )
    with measure_arrow_memory() as pool:
        found = job.finish()
    assert found.files == 5
    assert pool.max_memory() < 4 * limit < table.nbytes
    assert numbers(lake) == list(range(num_rows))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("all_types", id="all types"),
        pytest.param("v1_void_partition", id="a dropped partition", marks=pytest.mark.slow),
        pytest.param("v2_position_deletes", id="position deletes"),
        pytest.param("bucket_4_to_8", id="other buckets"),
        pytest.param("hidden_partitions", id="day, bucket and truncate", marks=pytest.mark.slow),
        pytest.param("equality_deletes", id="equality deletes"),
        pytest.param("evolution", id="changed columns", marks=pytest.mark.slow),
        pytest.param("sorted", id="order", marks=pytest.mark.slow),
    ],
)
def test_tables_of_spark_are_overwritten(tmp_path: Path, name: str) -> None:
    tables = SparkTables(tmp_path)
    spark = tables[name]
    expected = spark.expected()
    stream = plan_table(tmp_path / "in.parquet", expected)
    model = Catalog(name="lake", type="Sql", uri=tables.uri)
    job = WrittenIceberg(
        stream=stream, uri=str(tmp_path), mode="Overwrite", table=spark.identifier, model=model
    )
    assert job.finish().replaced
    table = tables.catalog.load_table(spark.identifier)
    assert sorted_rows(read_by_duckdb(table.metadata_location)) == sorted_rows(expected)
    assert sorted_rows(read_by_polars(table.metadata_location)) == sorted_rows(expected)
    assert {file["spec_id"] for file in data_files(table)} == {table.spec().spec_id}
    tables.catalog.engine.dispose()
