"""Iceberg tables on SQLite and local files, for tests that need a real catalog."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import Transform

from pipeline_runtime import config, expressions
from pipeline_runtime.iceberg.catalogs import open_catalog
from pipeline_runtime.iceberg.pins import Pins
from pipeline_runtime.sources import Opening, Predicate, Source, Unit, open_source, read_flat


class Lake:
    """A catalog on SQLite with the namespace `db`.

    Attributes:
        model: the catalog, as a manifest has it.
        catalog: the same, opened.
    """

    def __init__(self, folder: Path, warehouse: str = "") -> None:
        self.folder = folder
        self.model = config.Catalog(
            name="lake",
            type="Sql",
            uri=f"sqlite:///{folder}/c.db",
            warehouse=warehouse or f"{folder}/w",
        )
        self.catalog: Catalog = open_catalog(self.model, creates=True)
        self.catalog.create_namespace("db")

    def create(
        self, name: str, schema: Schema, *parts: tuple[str, Transform[Any, Any]], version: int = 2
    ) -> Table:
        """Create `db.<name>`, partitioned by transforms of columns."""
        fields = [
            PartitionField(schema.find_field(column).field_id, 1000 + i, transform, f"p{i}")
            for i, (column, transform) in enumerate(parts)
        ]
        return self.catalog.create_table(
            f"db.{name}",
            schema,
            partition_spec=PartitionSpec(*fields),
            properties={"format-version": str(version)},
        )

    def open(
        self,
        table: str,
        *,
        pins: Pins | None = None,
        decodes_pages: bool = True,
        **fields: Any,
    ) -> Source:
        """Open `db.<table>` as a run does."""
        model = config.IcebergSource(catalog="lake", table=f"db.{table}", **fields)
        choice = config.SourceChoice(iceberg=model)
        opening = Opening(
            storage_root="",
            catalogs=(self.model,),
            pins=pins or Pins(),
            decodes_pages=decodes_pages,
        )
        return open_source(choice, opening)


def where(text: str, schema: pa.Schema) -> Predicate:
    """Return a condition as the plan pushes it down."""
    expression = expressions.parse(text)
    found = expressions.to_dataset_filter(expression, schema)
    assert found is not None
    return Predicate(expression=expression, filter=found)


def read_all(
    source: Source,
    columns: Sequence[str] | None = None,
    *,
    predicates: Sequence[Predicate] = (),
    max_rows: int = 1 << 20,
    units: Sequence[Unit] | None = None,
) -> pa.Table:
    """Return the rows of units, by default of all that a scan finds."""
    names = list(source.schema.names if columns is None else columns)
    if units is None:
        units = source.scan(predicates, names).units
    parts = [part for unit in units for part in read_flat(source, unit, names, max_rows)]
    schema = pa.schema([source.schema.field(name) for name in names])
    return pa.concat_tables(parts) if parts else schema.empty_table()
