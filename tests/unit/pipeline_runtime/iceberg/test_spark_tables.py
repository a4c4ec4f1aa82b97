"""Checks the tables of tests/corpus/iceberg at their new place: other readers read what Spark did.

A test of Lastmile that fails on one of them is then about Lastmile.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from iceberg_readers import read_by_duckdb, read_by_polars, sorted_rows
from spark_tables import WRITTEN_TO, SparkTables

NOT_BY_PYICEBERG = {
    "all_types",  # it returns an empty list of structs in the place of a null
    "equality_deletes",
}
NOT_BY_POLARS = {
    "equality_deletes",
    "shared_delete_file",
    # PyIceberg's plan keeps the vector that another one replaced.
    "v3_deletion_vectors",
}


@pytest.mark.parametrize("name", SparkTables.names())
def test_other_readers_agree_with_spark(name: str, spark_tables: SparkTables) -> None:
    table = spark_tables[name]
    expected = table.expected()
    columns = expected.column_names

    found = [read_by_duckdb(str(table.metadata))]
    if name not in NOT_BY_PYICEBERG:
        found.append(spark_tables.load(name).scan().to_arrow())
    if name not in NOT_BY_POLARS:
        found.append(read_by_polars(str(table.metadata)))

    for rows in found:
        assert sorted_rows(rows.select(columns)) == sorted_rows(expected)


@pytest.mark.parametrize("name", ["snapshots", "compacted"])
def test_tags_and_branches_are_kept(name: str, spark_tables: SparkTables) -> None:
    table = spark_tables.load(name)

    for ref in set(table.refs()) - {"main"}:
        snapshot = table.snapshot_by_name(ref)
        assert snapshot is not None
        rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
        assert sorted_rows(rows) == sorted_rows(spark_tables[name].expected(f"@{ref}"))


@pytest.mark.parametrize("name", SparkTables.names())
def test_no_file_names_the_old_place(name: str, tmp_path: Path) -> None:
    table = SparkTables(tmp_path)[name]

    entries = (str(file) for file in table.folder.rglob("*"))
    assert all(WRITTEN_TO not in entry for entry in entries)
    assert WRITTEN_TO not in table.metadata.read_text()
    found = SparkTables(tmp_path).load(name).inspect.all_files()
    assert all(
        Path(file["file_path"]).stat().st_size == file["file_size_in_bytes"]
        for file in found.to_pylist()
    )
