"""Programs that write the impressions to a new table with buckets, and then drop it.

The source is bucketed and sorted by user, and the new table by item, so that all rows move.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pyarrow as pa
import pyarrow.dataset as pads
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from benchmarks.iceberg.lakes import MAIN_COLUMNS, Lake
from benchmarks.iceberg.ours import build_experiment
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.session import run_experiment
from pipeline_runtime.sample_data.lake import CATALOG, NAMESPACE
from pipeline_runtime.sample_data.lake_tables import IMPRESSIONS

_KEY: Final = "item_id"
_NUM_BUCKETS: Final = 16
_NEW: Final = "new"  # the catalog of the new table
_TABLE: Final = "db.written"


def write_sorted(lake: Lake) -> Iterator[pa.RecordBatch]:
    """Write by a Lastmile run with `output`, each file sorted by item."""
    with _new_catalog(lake) as (catalog, folder):
        _run(lake, catalog, folder)
    yield from ()


def prove_sorted(lake: Lake) -> Iterator[pa.RecordBatch]:
    """Write likewise, and yield the rows of the table."""
    with _new_catalog(lake) as (catalog, folder):
        _run(lake, catalog, folder)
        yield from _read(catalog.load_table(_TABLE))


def append(lake: Lake) -> Iterator[pa.RecordBatch]:
    """Read the files by Arrow, and append them by PyIceberg, unsorted."""
    with _new_catalog(lake) as (catalog, _):
        _append(lake, catalog)
    yield from ()


def prove_append(lake: Lake) -> Iterator[pa.RecordBatch]:
    """Append likewise, and yield the rows of the table."""
    with _new_catalog(lake) as (catalog, _):
        yield from _read(_append(lake, catalog))


@contextmanager
def _new_catalog(lake: Lake) -> Iterator[tuple[SqlCatalog, Path]]:
    """Yield an empty catalog, and its folder, which is deleted at the end."""
    with TemporaryDirectory(dir=lake.folder) as name:
        folder = Path(name)
        uri, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/warehouse"
        with closing(SqlCatalog(_NEW, uri=uri, warehouse=warehouse)) as catalog:
            catalog.create_namespace("db")
            yield catalog, folder


def _run(lake: Lake, catalog: SqlCatalog, folder: Path) -> None:
    experiment = build_experiment(
        lake,
        catalogs=[
            {"name": CATALOG, "type": "Sql", "uri": lake.uri},
            {"name": _NEW, "type": "Sql", **_places(catalog)},
        ],
        dataset={"iceberg": {"catalog": CATALOG, "table": f"{NAMESPACE}.{IMPRESSIONS.name}"}},
        output={
            "iceberg": {
                "catalog": _NEW,
                "table": _TABLE,
                "bucketBy": _KEY,
                "buckets": _NUM_BUCKETS,
                "sortBy": [_KEY],
            }
        },
    )
    options = RunOptions(output=folder / "report", storage_root=str(folder))
    outcome = run_experiment(experiment, "", options).outcome
    if outcome.kind != "Complete":
        raise RuntimeError(f"the run ended {outcome.kind}: {outcome.error}")


def _places(catalog: SqlCatalog) -> dict[str, str]:
    return {name: str(catalog.properties[name]) for name in ("uri", "warehouse")}


def _append(lake: Lake, catalog: SqlCatalog) -> Table:
    rows = pads.dataset(list(lake.files(IMPRESSIONS))).to_table()
    table = catalog.create_table(_TABLE, rows.schema)
    with table.update_spec() as update:
        update.add_field(_KEY, f"bucket[{_NUM_BUCKETS}]", "bucket")
    table.append(rows)
    return table


def _read(table: Table) -> Iterator[pa.RecordBatch]:
    yield from table.scan(selected_fields=MAIN_COLUMNS).to_arrow_batch_reader()
