"""Promotions add the values of staging tables to matching rows, in one commit or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from facts import assert_told
from promotion_lake import (
    DAY_1,
    DAY_2,
    PromotionLake,
    Row,
    feature_rows,
    main_rows,
)
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    UUIDType,
)

from pipeline_runtime.errors import OutputRefused
from pipeline_runtime.iceberg.commits import CommitUnknown, Retrying
from pipeline_runtime.iceberg.files import TableLayout, writing_file
from pipeline_runtime.promotion.partitions import PartitionChoice, find_live, name_partition
from pipeline_runtime.promotion.staging import StagingTable

FIRST, SECOND = "2026-01-01", "2026-01-02"
AT_ONCE = Retrying(sleep=lambda seconds: None)


class Scripted(SqlCatalog):
    """Calls a function before and after each commit of the main table."""

    before: list[Callable[[], None]]
    after: list[Callable[[], None]]

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> Any:
        is_main = table.name()[-1] == "main"
        if is_main and self.before:
            self.before.pop(0)()
        response = super().commit_table(table, requirements, updates)
        if is_main and self.after:
            self.after.pop(0)()
        return response


@pytest.fixture
def scripted(lake: PromotionLake) -> PromotionLake:
    lake.catalog.__class__ = Scripted
    lake.catalog.before, lake.catalog.after = [], []  # type: ignore[attr-defined]
    return lake


def script(lake: PromotionLake) -> Scripted:
    assert isinstance(lake.catalog, Scripted)
    return lake.catalog


def lose_answer() -> None:
    raise CommitStateUnknownException("lost")


def expect(rows: Sequence[Row], features: Sequence[Row], days: Sequence[date]) -> list[str]:
    """Return the rows of the main table after a promotion, by a join in Python."""
    keys = ("day", "user", "item")
    values = {tuple(row[key] for key in keys): row["ctr"] for row in features if row["user"]}
    return sorted(
        str(row | {"ctr": values.get(tuple(row[k] for k in keys)) if row["day"] in days else None})
        for row in rows
    )


def texts(rows: Sequence[Row]) -> list[str]:
    return sorted(map(str, rows))


@pytest.mark.parametrize(
    ("buckets", "by_day"),
    [
        pytest.param(None, False, id="one group"),
        pytest.param(6, False, id="unequal buckets"),
        pytest.param(3, True, id="days alone"),  # the greatest common divisor with 2 is 1
        pytest.param(4, True, id="buckets and days"),
    ],
)
def test_matching_rows_get_values(lake: PromotionLake, buckets: int | None, by_day: bool) -> None:
    rows = main_rows()
    other: Row = {"day": DAY_1, "user": 99, "item": "i0", "ctr": 1.0}
    features = [*feature_rows(rows)[:-3], other]
    staging = lake.create_staging("db.ctr", features, buckets=buckets, by_day=by_day)

    dry = lake.promote(staging, days=[FIRST], dry_run=True)
    assert "ctr" not in lake.main.schema().column_names
    done = lake.promote(staging, days=[FIRST])

    assert texts(lake.rows()) == expect(rows, features, [DAY_1])
    assert done.staging == dry.staging
    (report,) = done.staging
    num_read = 21 if by_day else 38
    assert (done.rows, report.rows, report.null_keys) == (20, num_read, 1 if by_day else 2)
    assert report.unmatched == num_read - 19  # all of the first day but the null key
    assert (report.missing, report.nulls) == (1, {"ctr": 1})


def read_files(lake: PromotionLake) -> dict[Any, list[Row]]:
    """Return the rows of each partition in the order of its file, without the new column."""
    columns = ["day", "user", "item", "clicks"]
    files = [task.file for task in lake.main.scan().plan_files()]
    return {
        file.partition: pq.read_table(
            file.file_path.removeprefix("file://"), columns=columns
        ).to_pylist()
        for file in files
    }


def test_row_order_and_other_columns_stay(lake: PromotionLake) -> None:
    old = read_files(lake)
    features = feature_rows(main_rows())
    lake.promote(lake.create_staging("db.ctr", features[::-1], buckets=6))
    assert read_files(lake) == old


def test_several_tables_are_promoted_in_one_commit(lake: PromotionLake) -> None:
    kind = ListType(
        element_id=5,
        element=StructType(
            NestedField(6, "name", StringType()), NestedField(7, "n", IntegerType())
        ),
    )
    nested = [
        {**{k: row[k] for k in ("day", "user", "item")}, "seen": [{"name": "a", "n": i}] * (i % 3)}
        for i, row in enumerate(main_rows())
    ]
    one = lake.create_staging("db.ctr", feature_rows(main_rows()), buckets=6)
    two = lake.create_staging("db.seen", nested, column="seen", kind=kind, by_day=True)
    uuids = [
        {**{k: row[k] for k in ("day", "user", "item")}, "uuid": UUID(int=i).bytes}
        for i, row in enumerate(main_rows())
    ]
    three = lake.create_staging("db.uuids", uuids, column="uuid", kind=UUIDType())
    num_snapshots = len(lake.main.metadata.snapshots)

    lake.promote(one, two, three)

    assert len(lake.main.metadata.snapshots) == num_snapshots + 1
    ctr = {(r["day"], r["user"]): r["ctr"] for r in feature_rows(main_rows())}
    seen = {(r["day"], r["user"]): r["seen"] for r in nested}
    uuid = {(r["day"], r["user"]): UUID(bytes=r["uuid"]) for r in uuids}
    # PyIceberg reads null lists of structs as empty ones.
    paths = [path.removeprefix("file://") for path in lake.files()]
    for row in [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]:
        key = (row["day"], row["user"])
        is_known = row["user"] is not None
        assert row["ctr"] == (ctr[key] if is_known else None)
        assert row["seen"] == (seen[key] if is_known else None)
        assert row["uuid"] == (uuid[key] if is_known else None)
    assert lake.promote(one, two, three).is_repeated


@pytest.mark.parametrize(
    ("text", "values"),
    [
        pytest.param("p=a/b", {"a/b"}, id="slash"),
        pytest.param("p=a=b%2Cc", {"a=b,c"}, id="comma"),
        pytest.param("p=50%25", {"50%"}, id="percent sign"),
        pytest.param("p=50%", {"50%"}, id="plain percent sign"),
        pytest.param("p=", {""}, id="empty text"),
        pytest.param("p=null", {None}, id="null"),
        pytest.param("p=%6Eull", {"null"}, id="the text null"),
    ],
)
def test_every_partition_has_a_name_of_its_own(
    lake: PromotionLake, text: str, values: set[str | None]
) -> None:
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))
    schema = Schema(NestedField(1, "p", StringType()))
    table = lake.catalog.create_table("db.texts", schema, partition_spec=spec)
    lake.append([{"p": p} for p in ("a/b", "a=b,c", "50%", "", "null", None)], "db.texts")
    found = find_live(table.refresh(), PartitionChoice.parse([text]))
    assert {task.file.partition[0] for task in found.values()} == values
    for task in found.values():
        name = name_partition(table, task.file)
        assert find_live(table, PartitionChoice.parse([name])).keys() == found.keys()


def test_repeated_promotion_does_nothing(lake: PromotionLake) -> None:
    staging = lake.create_staging("db.ctr", feature_rows(main_rows()), buckets=6)
    first = lake.promote(staging, days=[FIRST])
    head, stored = lake.head(), lake.stored()
    again = lake.promote(staging, days=[FIRST])
    assert (again.is_repeated, again.snapshot_id) == (True, first.snapshot_id)
    assert (again.previous_snapshot_id, again.staging) == (
        first.previous_snapshot_id,
        first.staging,
    )
    assert (lake.head(), lake.stored()) == (head, stored)
    # The next day needs no permission to replace values: its column is empty.
    assert not lake.promote(staging, days=[SECOND]).is_repeated


def test_promoted_days_stay_when_the_others_follow(lake: PromotionLake) -> None:
    staging = lake.create_staging("db.ctr", feature_rows(main_rows()), buckets=6)
    before = lake.head()
    lake.promote(staging, days=[FIRST])
    first = lake.files()
    lake.append([{"day": DAY_1, "user": 3, "item": "late", "clicks": 1}])
    planned = lake.promote(staging, dry_run=True)
    done = lake.promote(staging)
    assert (done.rows, done.staging) == (41, planned.staging)
    assert (done.staging[0].unmatched, done.staging[0].missing) == (2, 3)
    assert len(first & lake.files()) == 3  # the first day's, by bucket
    rows = [*main_rows(), {"day": DAY_1, "user": 3, "item": "late", "clicks": 1}]
    assert texts(lake.rows()) == expect(rows, feature_rows(main_rows()), [DAY_1, DAY_2])
    again = lake.promote(staging)
    assert (again.is_repeated, again.snapshot_id) == (True, lake.head())
    assert again.previous_snapshot_id == before
    lake.roll_back(before)
    assert lake.rows() == sorted(
        (row | {"ctr": None} for row in rows),
        key=lambda row: [(v is not None, v) for v in row.values()],
    )


def test_promotion_by_other_keys_is_no_repetition(lake: PromotionLake) -> None:
    staging = lake.create_staging("db.ctr", feature_rows(main_rows()))
    lake.promote(replace(staging, left_keys=("day", "clicks", "item")))  # not the user
    assert not lake.promote(staging, replaces=True).is_repeated
    for row in lake.rows():
        assert row["ctr"] == (None if row["user"] is None else 0.5 + row["clicks"])


def test_replaced_columns_leave_no_order(lake: PromotionLake) -> None:
    with lake.main.update_sort_order() as order:
        order.asc("clicks", IdentityTransform())
    lake.main.delete()
    layout = TableLayout.of(lake.main)
    rows = [row for row in main_rows() if row["day"] == DAY_1 and row["user"] is None]
    path = layout.locate("", "sorted.parquet")
    with writing_file(layout, path, "zstd") as writer:
        writer.write(pa.Table.from_pylist(rows, schema=layout.build_arrow_schema()))
        record = writer.finish(is_sorted=True)
    with lake.main.transaction() as change, change.update_snapshot().fast_append() as snapshot:
        snapshot.append_data_file(layout.build_data_file(record))
    for column, kind, is_kept in (("ctr", None, True), ("clicks", LongType(), False)):
        found = {key: rows[0][key] for key in ("day", "user", "item")} | {column: 5}
        name = f"db.{column}"
        staging = lake.create_staging(name, [found], column=column, kind=kind)
        lake.promote(staging, replaces=True)
        [task] = lake.main.scan().plan_files()
        assert bool(task.file.sort_order_id) == is_kept


def test_only_changed_files_are_joined_again(scripted: PromotionLake) -> None:
    lake = scripted
    staging = lake.create_staging("db.ctr", feature_rows(main_rows()), buckets=6)
    late: Row = {"day": DAY_1, "user": 7, "item": "late", "clicks": 1}
    other_day = late | {"day": DAY_2}
    begun: list[set[str]] = []
    script(lake).before = [
        lambda: (begun.append(lake.stored()), lake.append([late, other_day]))[0],
        lambda: None,  # of the append
        lambda: begun.append(lake.stored()),
    ]

    done = lake.promote(staging, days=[FIRST], retrying=AT_ONCE)

    first, second = begun
    assert len(second - first) == 3  # the two appended files, and the joined one of them
    rows = [*main_rows(), late, other_day]
    assert texts(lake.rows()) == expect(rows, feature_rows(main_rows()), [DAY_1])
    assert (done.rows, done.staging[0].missing) == (21, 2)
    assert lake.stored() == second  # nothing was written in vain


def test_lost_acknowledgement_commits_once(scripted: PromotionLake) -> None:
    lake = scripted
    staging = lake.create_staging("db.ctr", feature_rows(main_rows()))
    num_snapshots = len(lake.main.metadata.snapshots)
    script(lake).after = [lose_answer]
    lake.promote(staging, retrying=AT_ONCE)
    assert len(lake.main.metadata.snapshots) == num_snapshots + 1
    assert texts(lake.rows()) == expect(main_rows(), feature_rows(main_rows()), [DAY_1, DAY_2])


def test_unknown_outcome_deletes_no_file(scripted: PromotionLake) -> None:
    lake = scripted
    staging = lake.create_staging("db.ctr", feature_rows(main_rows()))
    rows, stored = lake.rows(), lake.stored()
    script(lake).before = [lose_answer] * 10
    with pytest.raises(CommitUnknown):
        lake.promote(staging, retrying=AT_ONCE)
    assert (lake.rows(), len(lake.stored())) == (rows, 2 * len(stored))


def test_interrupted_commit_keeps_its_files(scripted: PromotionLake) -> None:
    lake = scripted
    staging = lake.create_staging("db.ctr", feature_rows(main_rows()))

    def interrupt() -> None:
        raise KeyboardInterrupt  # while the catalog carries the commit out

    script(lake).after = [interrupt]
    with pytest.raises(KeyboardInterrupt):
        lake.promote(staging, retrying=AT_ONCE)
    assert texts(lake.rows()) == expect(main_rows(), feature_rows(main_rows()), [DAY_1, DAY_2])


def test_failure_after_a_lost_answer_deletes_no_file(scripted: PromotionLake) -> None:
    lake = scripted
    staging = lake.create_staging("db.ctr", feature_rows(main_rows()))
    stored, snapshot = lake.stored(), lake.main.current_snapshot()
    assert snapshot is not None
    manifests = Path(snapshot.manifest_list.removeprefix("file://"))

    def lose_answer_and_store() -> None:
        manifests.rename(manifests.with_suffix(".gone"))
        lose_answer()

    script(lake).before = [lose_answer_and_store]
    with pytest.raises(CommitUnknown):
        lake.promote(staging, retrying=AT_ONCE)
    assert len(lake.stored()) == 2 * len(stored)


def _build(lake: PromotionLake, rows: Sequence[Row], **options: Any) -> StagingTable:
    return lake.create_staging("db.ctr", rows, **options)


def _build_existing(lake: PromotionLake) -> StagingTable:
    rows = [{k: row[k] for k in ("day", "user", "item", "clicks")} for row in main_rows()]
    return lake.create_staging("db.ctr", rows, column="clicks", kind=LongType())


@pytest.mark.parametrize(
    ("build", "days", "facts"),
    [
        pytest.param(
            lambda lake: _build(lake, feature_rows(main_rows())[-1:] * 2, buckets=3, by_day=True),
            [SECOND],
            "db.ctr … 2 … user=19",
            id="duplicate keys",
        ),
        pytest.param(
            # Of a bucket that no row of the main table has: no file needs it.
            lambda lake: _build(
                lake, [{"day": DAY_1, "user": 10**6, "item": "x", "ctr": 1.0}] * 2, buckets=64
            ),
            [],
            "db.ctr … user=1000000",
            id="duplicate keys without a match",
        ),
        pytest.param(_build_existing, [], "db.main … 'clicks'", id="values would be replaced"),
        pytest.param(
            lambda lake: _build(lake, feature_rows(main_rows())) and lake.stage("db.ctr", "other"),
            [],
            "db.ctr … 'other'",
            id="no such column",
        ),
        pytest.param(
            lambda lake: (
                _build(lake, feature_rows(main_rows())) and lake.stage("db.ctr", max_bytes=100)
            ),
            [],
            "db.ctr … 100 … maxBytes",
            id="too large for memory",
        ),
        pytest.param(
            lambda lake: _build(lake, feature_rows(main_rows())),
            ["2027-01-01"],
            "--partition … day=2026-01-01",
            id="no such partition",
        ),
    ],
)
def test_refused_promotions_change_nothing(
    lake: PromotionLake, build: Callable[[PromotionLake], Any], days: list[str], facts: str
) -> None:
    staging = build(lake)
    head, stored = lake.head(), lake.stored()
    with pytest.raises(OutputRefused) as caught:
        lake.promote(staging, days=days)
    assert_told(str(caught.value), facts)
    assert (lake.head(), lake.stored()) == (head, stored)


def test_a_dropped_partition_column_is_an_older_spec(lake: PromotionLake) -> None:
    staging = lake.create_staging("db.ctr", feature_rows(main_rows()))
    lake.main.update_schema().add_column("region", StringType()).commit()
    lake.main.update_spec().add_identity("region").commit()
    lake.append([main_rows()[0] | {"region": "eu"}])
    lake.main.update_spec().remove_field("region").commit()
    lake.main.update_schema().delete_column("region").commit()
    for days in ([], [FIRST]):
        with pytest.raises(OutputRefused) as caught:
            lake.promote(staging, days=days)
        assert_told(str(caught.value), "db.main … partition spec (0) … (1)")


def test_values_are_replaced_on_demand(lake: PromotionLake) -> None:
    lake.promote(lake.create_staging("db.ctr", feature_rows(main_rows())))
    newer = feature_rows(main_rows(), 2.5)
    lake.promote(lake.create_staging("db.newer", newer), replaces=True)
    assert texts(lake.rows()) == expect(main_rows(), newer, [DAY_1, DAY_2])
