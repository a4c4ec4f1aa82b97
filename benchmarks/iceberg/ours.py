"""Lastmile's programs: its loader over Iceberg tables, and over the same files as Parquet.

Batches are shuffled, as for training. Each epoch opens the tables again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from benchmarks.iceberg.lakes import ALL_COLUMNS, KEYS, MAIN_COLUMNS, SIDE_COLUMNS, Lake
from pipeline_runtime.batches import Batch
from pipeline_runtime.config import DatasetExperiment, parse_experiment
from pipeline_runtime.loader import open_loader, parse_options
from pipeline_runtime.sample_data.lake import CATALOG, NAMESPACE
from pipeline_runtime.sample_data.lake_tables import IMPRESSIONS, USER_ACTIONS, SampleTable

BATCH_SIZE: Final = 4096  # rows; the manifest's default


def parquet_stream(lake: Lake) -> Iterator[Batch]:
    """Read the impressions' files as Parquet."""
    return _batches(lake, _parquet(lake, IMPRESSIONS), [], MAIN_COLUMNS)


def iceberg_stream(lake: Lake) -> Iterator[Batch]:
    """Read the impressions as an Iceberg table."""
    return _batches(lake, _iceberg(IMPRESSIONS), [], MAIN_COLUMNS)


def iceberg_stream_of_all(lake: Lake) -> Iterator[Batch]:
    """Read all columns of the impressions that convert to tensors."""
    return _batches(lake, _iceberg(IMPRESSIONS), [], ALL_COLUMNS)


def bucket_join(lake: Lake) -> Iterator[Batch]:
    """Join the actions to the impressions, bucket by bucket."""
    return _join(lake, _iceberg(IMPRESSIONS), {**_iceberg(USER_ACTIONS), "strategy": "Bucket"})


def broadcast_join(lake: Lake) -> Iterator[Batch]:
    """Join them with the whole table of actions in memory."""
    return _join(lake, _iceberg(IMPRESSIONS), {**_iceberg(USER_ACTIONS), "strategy": "Broadcast"})


def parquet_join(lake: Lake) -> Iterator[Batch]:
    """Join their files as Parquet tables, with the whole side in memory."""
    return _join(lake, _parquet(lake, IMPRESSIONS), _parquet(lake, USER_ACTIONS))


def _parquet(lake: Lake, layout: SampleTable) -> dict[str, Any]:
    return {"parquet": {"uris": list(lake.files(layout))}}


def _iceberg(layout: SampleTable) -> dict[str, Any]:
    return {"iceberg": {"catalog": CATALOG, "table": f"{NAMESPACE}.{layout.name}"}}


def _join(lake: Lake, dataset: Mapping[str, Any], side: Mapping[str, Any]) -> Iterator[Batch]:
    join = {**side, "keys": list(KEYS), "columns": list(SIDE_COLUMNS)}
    return _batches(lake, dataset, [{"join": join}], (*MAIN_COLUMNS, *SIDE_COLUMNS))


def _batches(
    lake: Lake,
    dataset: Mapping[str, Any],
    steps: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
) -> Iterator[Batch]:
    training = {"batchSize": BATCH_SIZE, "columns": list(columns)}
    experiment = build_experiment(lake, dataset=dataset, pipeline=steps, training=training)
    options = parse_options(last_batch=None, device=None, num_threads=None, distributed=False)
    return iter(open_loader(experiment, str(lake.folder), options))


def build_experiment(lake: Lake, **spec: Any) -> DatasetExperiment:
    """Return a manifest with these sections, whose catalog `lake` has the sample's tables."""
    known = {"catalogs": [{"name": CATALOG, "type": "Sql", "uri": lake.uri}]}
    uses_catalog = "iceberg" in spec["dataset"]
    return parse_experiment(
        {
            "apiVersion": "experiments.lastmile.dev/v1alpha1",
            "kind": "DatasetExperiment",
            "metadata": {"name": "benchmark"},
            "spec": (known if uses_catalog else {}) | spec,
        }
    )
