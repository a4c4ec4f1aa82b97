"""Abandons runs of outputs to Iceberg tables, of which `runs` then deletes the folders."""

from __future__ import annotations

import pyarrow as pa

from pipeline_runtime.config import Catalog as CatalogModel
from pipeline_runtime.iceberg.catalogs import ask_catalog, describe, open_catalog
from pipeline_runtime.iceberg.commits import load_or_none
from pipeline_runtime.iceberg.files import TableLayout
from pipeline_runtime.iceberg.schemas import WantedTable
from pipeline_runtime.output import names
from pipeline_runtime.output.iceberg import IcebergTable, build_form
from pipeline_runtime.output.records import RunRecord, read_record
from pipeline_runtime.output.storage import Storage
from pipeline_runtime.sources import Location


def abandon_run(catalog: CatalogModel, name: str, run: Location) -> bool:
    """Delete the files of a run that its table does not name, and its staged records.

    Args:
        name: the table, with its namespace.
        run: folder of the run among the artifacts.

    Returns False, and deletes nothing, if its commit may yet be carried out.
    """
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.sorting import SortOrder

    record = read_record(Storage(run.join(names.STAGING_FOLDER)), names.RUN_FILE, RunRecord)
    if record is None:
        return True
    client = open_catalog(catalog)
    what = describe(catalog.name, f"load the table {name!r}")
    table = ask_catalog(what, lambda: load_or_none(client, name))
    if table is not None:
        layout = TableLayout.of(table)
    else:
        parts = record.layout
        new = ask_catalog(
            what,
            lambda: client.create_table_transaction(
                name,
                Schema.model_validate(parts["schema"]),
                partition_spec=PartitionSpec.model_validate(parts["spec"]),
                sort_order=SortOrder.model_validate(parts["order"]),
            ),
        )
        layout = TableLayout.of_new(new)
    folder = Storage(run).parent().location
    destination = IcebergTable(
        catalog=client,
        name=name,
        wanted=WantedTable(schema=pa.schema([])),  # nothing is written
        mode="Fail",
        artifacts=folder,
        form=build_form(layout, "none", 0),
    )
    return destination.abandon(run.path.rstrip("/").rpartition("/")[2])
