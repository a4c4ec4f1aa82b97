"""Readers of Iceberg tables that share no code with Lastmile or PyIceberg's scans."""

from __future__ import annotations

import warnings
from importlib.resources import files
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
from polars.exceptions import PerformanceWarning


def connect_duckdb() -> duckdb.DuckDBPyConnection:
    """Return a connection that reads Iceberg, by extensions that are Python packages."""
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for name in ("avro", "iceberg"):  # in this order: else DuckDB would download avro
        [extension] = Path(str(files(f"duckdb_extension_{name}"))).rglob("*.duckdb_extension")
        connection.load_extension(str(extension))
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def read_by_duckdb(metadata_location: str) -> pa.Table:
    """Return the rows of a table, in any order, from the location of its metadata file."""
    with connect_duckdb() as connection:
        return connection.sql(
            "SELECT * FROM iceberg_scan($metadata)", params={"metadata": metadata_location}
        ).to_arrow_table()


def read_by_polars(metadata_location: str) -> pa.Table:
    """Return the rows of a table, in any order, from the location of its metadata file.

    Polars refuses a file of position deletes for several data files, and equality deletes.
    """
    # Without the package polars_iceberg, PyIceberg plans the scan, which Polars warns of.
    with warnings.catch_warnings(action="ignore", category=PerformanceWarning):
        return pl.scan_iceberg(metadata_location, reader_override="native").collect().to_arrow()


def sorted_rows(table: pa.Table) -> list[str]:
    """Return rows as texts that can be compared, whatever their order."""
    return sorted(map(repr, table.to_pylist()))
