"""Spark reads the tables that Lastmile writes, replaces, promotes and rolls back."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pytest
from promotion_lake import DAY_1, PromotionLake, feature_rows, main_rows
from spark_reader import prepare_spark, query_spark
from written_iceberg import WrittenIceberg, make_lake
from written_tables import plan_table

from tools.go_tools import ToolError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("spark")]
DAYS = ["a", "a/b c%", None, "null"]


@pytest.fixture(scope="module")
def spark(skip_unless_ci: Callable[[str], NoReturn]) -> None:
    """Install Spark and its jars, once per machine."""
    try:
        prepare_spark()
    except ToolError as error:
        skip_unless_ci(str(error))


def make_rows(num_rows: int, first: int = 0) -> pa.Table:
    ids = np.arange(first, first + num_rows)
    return pa.table(
        {
            "id": pa.array([None if i % 50 == 7 else int(i * 7919 % 1000) for i in ids]),
            "n": ids,
            "day": pa.array([DAYS[i % 4] for i in ids]),
            "x": pa.array(
                [[0.5, float(i)] if i % 5 else None for i in ids], pa.list_(pa.float32())
            ),
            "price": pa.array([Decimal(int(i)) / 100 for i in ids], pa.decimal128(9, 2)),
            "at": pa.array([dt.datetime(2026, 1, 1 + i % 9) for i in ids], pa.timestamp("ms")),
            "on": pa.array([dt.date(2026, 1, 1 + i % 9) for i in ids]),
            "raw": pa.array([bytes([i % 256, 0]).hex() for i in ids]),
            "is_new": pa.array([None if i % 7 == 3 else bool(i % 2) for i in ids]),
        }
    )


def write(folder: Path, rows: pa.Table, **fields: Any) -> None:
    WrittenIceberg(
        stream=plan_table(folder / f"in-{len(rows)}.parquet", rows),
        uri=str(folder),
        partition_by=("day",),
        bucket_by="id",
        num_buckets=4,
        sort_by=("id",),
        **fields,
    ).finish()


def as_texts(rows: list[dict[str, Any]]) -> list[str]:
    """Return rows as sorted texts, with JSON's types alone."""
    plain = json.loads(json.dumps(rows, default=str))
    return sorted(json.dumps(row, sort_keys=True) for row in plain)


def test_spark_finds_the_written_rows(tmp_path: Path) -> None:
    lake = make_lake(tmp_path)
    before, after = make_rows(400), make_rows(150, first=1000)
    write(tmp_path, before)
    first = lake.load_table("db.t").metadata.current_snapshot_id
    write(tmp_path, after, mode="Overwrite", run="20260102T000000Z-0123456789abcdef")
    lake.engine.dispose()
    now, then, bucket, day = query_spark(
        tmp_path,
        "select * from lake.db.t",
        f"select * from lake.db.t version as of {first}",
        "select * from lake.db.t where id = 919",
        "select count(*) as rows from lake.db.t where day is null",
    )
    assert as_texts(now) == as_texts(after.to_pylist())
    assert as_texts(then) == as_texts(before.to_pylist())
    assert as_texts(bucket) == as_texts([r for r in after.to_pylist() if r["id"] == 919])
    assert bucket
    assert day == [{"rows": after["day"].null_count}]


def test_spark_finds_promoted_columns_and_rolled_back_days(tmp_path: Path) -> None:
    lake = PromotionLake.make(tmp_path)
    before = lake.head()
    features = feature_rows(main_rows())
    lake.promote(lake.create_staging("db.ctr", features, buckets=6))
    expected, promoted = lake.rows(), lake.head()
    lake.roll_back(before, DAY_1.isoformat())
    lake.catalog.engine.dispose()
    now, then = query_spark(
        tmp_path,
        "select * from lake.db.main",
        f"select * from lake.db.main version as of {promoted}",
    )
    assert as_texts(then) == as_texts(expected)
    rolled_back = [r | {"ctr": None} if r["day"] == DAY_1 else r for r in expected]
    assert as_texts(now) == as_texts(rolled_back)
    assert any(row["ctr"] for row in now)
