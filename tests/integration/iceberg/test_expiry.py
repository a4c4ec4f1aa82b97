"""A partition that is swapped and swapped back survives Java's expiry of snapshots, with a tag."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_readers import read_by_duckdb, sorted_rows
from iceberg_rest import RestProxy
from iceberg_tables import read_all
from promotion_lake import PromotionLake, feature_rows, main_rows
from pyiceberg.catalog import load_catalog
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from pipeline_runtime import config
from pipeline_runtime.errors import SourceError
from pipeline_runtime.iceberg.files import TableLayout, writing_file
from pipeline_runtime.iceberg.pins import Pins
from pipeline_runtime.sources import Opening, open_source

SCHEMA = Schema(
    NestedField(1, "user", LongType(), required=False),
    NestedField(2, "name", StringType(), required=False),
    NestedField(3, "label", LongType(), required=False),
)
# Strings and longs in one partition (iceberg-python#3758).
SPEC = PartitionSpec(
    PartitionField(1, 1000, BucketTransform(2), "user_bucket"),
    PartitionField(2, 1001, BucketTransform(2), "name_bucket"),
    PartitionField(3, 1002, IdentityTransform(), "label"),
)
ROWS = pa.table(
    {
        "user": [*range(40), None],
        "name": [*(f"user {n % 7}" for n in range(40)), None],
        "label": [n % 2 for n in range(41)],
    }
)


def list_files(table: Table) -> list[DataFile]:
    return [task.file for task in table.scan().plan_files()]


def swap(table: Table, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
    """Replace files by others in one commit of metadata."""
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as update:
        for file in old:
            update.delete_data_file(file)
        for file in new:
            update.append_data_file(file)
    table.refresh()


def copy_file(table: Table, file: DataFile) -> DataFile:
    """Write the rows of a file, in another order, to a new one."""
    layout = TableLayout.of(table)
    rows = pq.read_table(file.file_path.removeprefix("file:"), partitioning=None)
    path = layout.locate("", f"copy-of-{Path(file.file_path).name}")
    with writing_file(layout, path, "zstd") as writer:
        writer.write(rows.sort_by([("user", "descending")]).cast(layout.build_arrow_schema()))
        return layout.build_data_file(writer.finish(is_sorted=False))


def read(rest: RestProxy, table: str) -> pa.Table:
    catalog = config.Catalog(name="lake", type="Rest", uri=rest.uri)
    model = config.IcebergSource(catalog="lake", table=table)
    opening = Opening(storage_root="", catalogs=(catalog,), pins=Pins())
    return read_all(open_source(config.SourceChoice(iceberg=model), opening))


@pytest.mark.parametrize(
    "is_tagged",
    [pytest.param(True, id="tagged"), pytest.param(False, id="not tagged", marks=pytest.mark.slow)],
)
def test_only_a_tag_keeps_files_that_are_used_again(
    rest: RestProxy,
    expire: Callable[[str], None],
    is_tagged: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Java deletes the files that an expired snapshot removed (iceberg#8255, iceberg#10982)."""
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TOKEN", rest.token)
    name = f"expiry_{'tagged' if is_tagged else 'untagged'}.t"
    catalog = load_catalog("other", **rest.properties)
    catalog.create_namespace(name.partition(".")[0])
    table = catalog.create_table(name, SCHEMA, partition_spec=SPEC)
    table.append(ROWS)
    before, files = table.current_snapshot(), list_files(table)
    assert before is not None

    if is_tagged:
        table.manage_snapshots().create_tag(before.snapshot_id, "before-promotion").commit()
    chosen = [file for file in files if file.partition[2] == 1]
    copies = [copy_file(table, file) for file in chosen]
    swap(table, chosen, copies)
    assert sorted_rows(read(rest, name)) == sorted_rows(ROWS)
    swap(table, copies, chosen)
    assert {file.file_path for file in list_files(table)} == {file.file_path for file in files}
    expire(name)

    table = catalog.load_table(name)
    kept = [file for file in files if Path(file.file_path.removeprefix("file:")).exists()]
    if is_tagged:
        assert len(kept) == len(files)
        assert sorted_rows(read(rest, name)) == sorted_rows(ROWS)
        assert sorted_rows(read_by_duckdb(table.metadata_location)) == sorted_rows(ROWS)
    else:
        assert len(kept) == len(files) - len(chosen)
        with pytest.raises(SourceError) as caught:
            read(rest, name)
        assert any(Path(file.file_path).name in str(caught.value) for file in chosen)


def test_a_rollback_outlives_the_expiry_of_its_promotion(
    rest: RestProxy, expire: Callable[[str], None]
) -> None:
    lake = PromotionLake.fill(load_catalog("other", **rest.properties))
    rows, files = lake.rows(), lake.files()
    lake.create_staging("db.ctr", feature_rows(main_rows()), buckets=6, by_day=True)
    lake.roll_back(lake.promote(lake.stage("db.ctr")).previous_snapshot_id)
    assert lake.files() == files
    expire("db.main")
    assert [{**row, "ctr": None} for row in rows] == lake.rows()
    assert len(sorted_rows(read_by_duckdb(lake.main.metadata_location))) == len(rows)
