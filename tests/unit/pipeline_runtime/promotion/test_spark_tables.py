"""Tables that Spark wrote are promoted and rolled back without the rows that Spark deleted."""

from pathlib import Path

import pyarrow as pa
import pytest
from facts import assert_told
from pyiceberg.table import Table
from spark_tables import SparkTables

from pipeline_runtime.errors import OutputRefused
from pipeline_runtime.iceberg.pins import Reference
from pipeline_runtime.promotion.partitions import PartitionChoice
from pipeline_runtime.promotion.promote import promote
from pipeline_runtime.promotion.rollback import roll_back
from pipeline_runtime.promotion.staging import StagingTable, pin_staging


def stage(tables: SparkTables, main: Table) -> tuple[StagingTable, dict[int, int]]:
    """Write a staging table with a number for each value of the main table's first long."""
    key = next(field.name for field in main.schema().fields if str(field.field_type) == "long")
    keys = main.scan().to_arrow().column(key).unique().drop_null()
    features = pa.table({key: keys, "feature": pa.array(range(len(keys)), pa.int64())})
    table = tables.catalog.create_table("spark.feature", features.schema)
    table.append(features)
    staging = pin_staging(
        Reference("lake", "spark.feature"),
        table,
        left_keys=(key,),
        right_keys=(key,),
        max_bytes=1 << 30,
    )
    return staging, dict(zip(keys.to_pylist(), range(len(keys)), strict=True))


@pytest.mark.parametrize("name", ["v1", "v2_position_deletes", "hidden_partitions", "evolution"])
def test_rows_survive_a_promotion_and_its_rollback(tmp_path: Path, name: str) -> None:
    tables = SparkTables(tmp_path)
    rows = tables.load(name).scan().to_arrow().to_pylist()
    staging, values = stage(tables, tables.load(name))
    [key] = staging.left_keys
    identifier = tables[name].identifier

    done = promote(tables.catalog, identifier, PartitionChoice(), [staging])

    joined = tables.load(name).scan().to_arrow().to_pylist()
    expected = [{**row, "feature": values.get(row[key])} for row in rows]
    assert sorted(map(str, joined)) == sorted(map(str, expected))
    assert done.previous_snapshot_id is not None
    roll_back(tables.catalog, identifier, PartitionChoice(), done.previous_snapshot_id)
    again = tables.load(name).scan().to_arrow().drop_columns(["feature"]).to_pylist()
    assert sorted(map(str, again)) == sorted(map(str, rows))
    tables.catalog.engine.dispose()


def test_files_of_an_older_partition_spec_are_refused(tmp_path: Path) -> None:
    tables = SparkTables(tmp_path)
    main = tables.load("bucket_4_to_8")
    staging, _ = stage(tables, main)
    identifier = tables["bucket_4_to_8"].identifier
    with pytest.raises(OutputRefused) as caught:
        promote(tables.catalog, identifier, PartitionChoice(), [staging])
    assert_told(str(caught.value), f"{identifier} … .parquet")
    assert tables.load("bucket_4_to_8").current_snapshot() == main.current_snapshot()
    tables.catalog.engine.dispose()
