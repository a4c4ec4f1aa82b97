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

from benchmarks.iceberg.lakes import MAIN_COLUMNS, Lake
from benchmarks.iceberg.ours import SOURCE, build_experiment
from pipeline_runtime.run.options import RunOptions
from pipeline_runtime.run.session import run_experiment
from pipeline_runtime.sample_data.lake import CATALOG
from pipeline_runtime.sample_data.lake_tables import IMPRESSIONS

_KEY: Final = "item_id"
_NUM_BUCKETS: Final = 16
_NEW: Final = "new"  # the catalog of the new table
_TABLE: Final = "db.written"


def write_sorted(lake: Lake, *, proves: bool) -> Iterator[pa.RecordBatch]:
    """Write by a Lastmile run with `output`, each file sorted by item; yield the rows as proof."""
    with _new_catalog(lake) as (catalog, folder):
        places = {name: str(catalog.properties[name]) for name in ("uri", "warehouse")}
        target = {"catalog": _NEW, "table": _TABLE}
        experiment = build_experiment(
            lake,
            catalogs=[
                {"name": CATALOG, "type": "Sql", "uri": lake.uri},
                {"name": _NEW, "type": "Sql", **places},
            ],
            dataset=SOURCE,
            output={
                "iceberg": {**target, "bucketBy": _KEY, "buckets": _NUM_BUCKETS, "sortBy": [_KEY]}
            },
        )
        options = RunOptions(output=folder / "report", storage_root=str(folder))
        outcome = run_experiment(experiment, "", options).outcome
        if outcome.kind != "Complete":
            raise RuntimeError(f"the run ended {outcome.kind}: {outcome.error}")
        if proves:
            yield from _read(catalog)


def append(lake: Lake, *, proves: bool) -> Iterator[pa.RecordBatch]:
    """Read the files by Arrow and append them by PyIceberg, unsorted; yield the rows as proof."""
    with _new_catalog(lake) as (catalog, _):
        rows = pads.dataset(list(lake.files(IMPRESSIONS))).to_table()
        table = catalog.create_table(_TABLE, rows.schema)
        with table.update_spec() as update:
            update.add_field(_KEY, f"bucket[{_NUM_BUCKETS}]", "bucket")
        table.append(rows)
        if proves:
            yield from _read(catalog)


@contextmanager
def _new_catalog(lake: Lake) -> Iterator[tuple[SqlCatalog, Path]]:
    """Yield an empty catalog, and its folder, which is deleted at the end."""
    with TemporaryDirectory(dir=lake.folder) as name:
        folder = Path(name)
        uri, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/warehouse"
        with closing(SqlCatalog(_NEW, uri=uri, warehouse=warehouse)) as catalog:
            catalog.create_namespace("db")
            yield catalog, folder


def _read(catalog: SqlCatalog) -> Iterator[pa.RecordBatch]:
    scan = catalog.load_table(_TABLE).scan(selected_fields=MAIN_COLUMNS)
    yield from scan.to_arrow_batch_reader()
