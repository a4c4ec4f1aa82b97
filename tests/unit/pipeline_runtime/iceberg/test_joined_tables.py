"""Bucket joins of Iceberg tables: the rows that DuckDB finds in the same tables."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from iceberg_readers import read_by_duckdb, sorted_rows
from iceberg_tables import Lake, read_all
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from pipeline_runtime.config.dataset import ParquetSource
from pipeline_runtime.plan.side_table_loading import build_side_table
from pipeline_runtime.steps.base import BindContext
from pipeline_runtime.steps.binding import bind_pipeline
from pipeline_runtime.steps.join.model import JoinStep, KeyPair

# spark#58447: their common divisors with 16 differ.
SIDES = {"a": 12, "b": 8, "c": 18, "d": 6}
# The source is opened by the test; a step has to name some.
SIDE = ParquetSource(uri="side")


def keys_of(rng: np.random.Generator, num_rows: int, text: bool) -> pa.Array:
    """Draw keys, one in ten of them null."""
    numbers, null = rng.integers(0, 90, num_rows), rng.random(num_rows) < 0.1
    values = [f"user {n}" for n in numbers] if text else numbers
    return pa.array(values, pa.string() if text else pa.int64(), mask=null)


def fill(lake: Lake, name: str, rows: pa.Table, num_buckets: int, *, is_int: bool = False) -> None:
    """Create a table with buckets by its first column, and append rows twice."""
    key = StringType() if pa.types.is_string(rows[0].type) else LongType()
    schema = Schema(
        NestedField(1, rows.column_names[0], IntegerType() if is_int else key, required=False),
        NestedField(2, rows.column_names[1], LongType(), required=False),
    )
    table = lake.create(name, schema, (rows.column_names[0], BucketTransform(num_buckets)))
    half = len(rows) // 2
    for part in (rows.slice(0, half), rows.slice(half)):
        table.append(part.cast(table.schema().as_arrow()))


@pytest.mark.parametrize("text", [False, True], ids=["long and int", "string"])
def test_chained_joins_of_unequal_buckets_equal_duckdb(tmp_path: Path, text: bool) -> None:
    lake, rng = Lake(tmp_path), np.random.default_rng(34)
    main = pa.table({"user": keys_of(rng, 150, text), "row": range(150)})
    fill(lake, "main", main, 16)
    for name, num_buckets in SIDES.items():
        side = pa.table({f"{name}_key": keys_of(rng, 60, text), f"{name}_row": range(60)})
        fill(lake, name, side, num_buckets, is_int=not text and name == "b")
    steps = [
        JoinStep(
            parquet=SIDE,
            keys=(KeyPair(left="user", right=f"{name}_key"),),
            how="Inner" if name == "c" else "Left",
            strategy="Bucket",
        )
        for name in SIDES
    ]
    sides = [lake.open(name) for name in SIDES]
    source = lake.open("main")
    context = BindContext(
        open_side_table=lambda request: build_side_table(request, sides.pop(0)),
        bucketing=source.bucketing,
    )

    found = read_all(source)
    for transform in bind_pipeline(steps, source.schema, context):
        found = transform(found)

    with duckdb.connect() as connection:
        for name in ("main", *SIDES):
            location = lake.catalog.load_table(f"db.{name}").metadata_location
            connection.register(name, read_by_duckdb(location))
        expected = connection.sql(
            """SELECT main.user, main.row, a_row, b_row, c_row, d_row FROM main
            LEFT JOIN a ON main.user = a_key LEFT JOIN b ON main.user = b_key
            JOIN c ON main.user = c_key LEFT JOIN d ON main.user = d_key"""
        ).to_arrow_table()
    assert expected.num_rows > 0
    assert sorted_rows(found.select(expected.column_names)) == sorted_rows(expected)
