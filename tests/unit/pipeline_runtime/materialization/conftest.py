"""An Iceberg catalog on SQLite, and tables in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table

from tests.support.tables.days_table import SCHEMA

Create = Callable[..., Table]


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    found = SqlCatalog(
        "lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/lake"
    )
    found.create_namespace("db")
    yield found
    found.engine.dispose()


@pytest.fixture
def create(catalog: SqlCatalog) -> Callable[..., Table]:
    """Create a table of `SCHEMA` with these partition fields: (column, transform)."""

    def create(*fields: tuple[str, str], name: str = "db.t") -> Table:
        table = catalog.create_table(name, SCHEMA, partition_spec=PartitionSpec())
        with table.update_spec() as update:
            for column, transform in fields:
                update.add_field(column, transform, f"{column}_{transform.partition('[')[0]}")
        return table

    return create
