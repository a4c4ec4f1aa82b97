"""Lastmile's programs: its loader over Iceberg tables, and over the same files as Parquet.

Batches are shuffled, as for training. Each epoch opens the tables again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from benchmarks.iceberg.lakes import ALL_COLUMNS, KEYS, MAIN_COLUMNS, SIDE_COLUMNS, Lake
from pipeline_runtime.batches import Batch
from pipeline_runtime.config import DatasetExperiment, parse_experiment
from pipeline_runtime.loader import open_loader, parse_options
from pipeline_runtime.sample_data.lake import CATALOG, NAMESPACE
from pipeline_runtime.sample_data.lake_tables import IMPRESSIONS, USER_ACTIONS

_BATCH_SIZE: Final = 4096  # rows; the manifest's default
SOURCE: Final = {"iceberg": {"catalog": CATALOG, "table": f"{NAMESPACE}.{IMPRESSIONS.name}"}}
_JOIN: Final = {
    "iceberg": {"catalog": CATALOG, "table": f"{NAMESPACE}.{USER_ACTIONS.name}"},
    "keys": list(KEYS),
    "columns": list(SIDE_COLUMNS),
    "strategy": "Bucket",
}


def parquet_stream(lake: Lake) -> Iterator[Batch]:
    """Read the impressions' files as Parquet."""
    return _stream(lake, MAIN_COLUMNS, dataset={"parquet": {"uris": lake.files(IMPRESSIONS)}})


def iceberg_stream(lake: Lake) -> Iterator[Batch]:
    """Read the impressions as an Iceberg table."""
    return _stream(lake, MAIN_COLUMNS)


def iceberg_stream_of_all(lake: Lake) -> Iterator[Batch]:
    """Read all columns of the impressions that convert to tensors."""
    return _stream(lake, ALL_COLUMNS)


def bucket_join(lake: Lake) -> Iterator[Batch]:
    """Join the actions to the impressions, bucket by bucket."""
    return _stream(lake, (*MAIN_COLUMNS, *SIDE_COLUMNS), pipeline=[{"join": _JOIN}])


def _stream(lake: Lake, columns: Sequence[str], **spec: Any) -> Iterator[Batch]:
    training = {"batchSize": _BATCH_SIZE, "columns": list(columns)}
    spec = {"dataset": SOURCE, "training": training, **spec}
    options = parse_options(last_batch=None, device=None, num_threads=None, distributed=False)
    return iter(open_loader(build_experiment(lake, **spec), str(lake.folder), options))


def build_experiment(lake: Lake, **spec: Any) -> DatasetExperiment:
    """Return a manifest with these sections, whose catalog `lake` has the sample's tables."""
    catalogs = [{"name": CATALOG, "type": "Sql", "uri": lake.uri}]
    known = {"catalogs": catalogs} if "iceberg" in spec["dataset"] else {}
    return parse_experiment(
        {
            "apiVersion": "experiments.lastmile.dev/v1alpha1",
            "kind": "DatasetExperiment",
            "metadata": {"name": "benchmark"},
            "spec": known | spec,
        }
    )
