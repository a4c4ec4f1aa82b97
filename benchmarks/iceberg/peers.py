"""The peers: the same rows by Polars, DuckDB, Ray Data, Daft and PyIceberg, each as Arrow tables.

A join by bucket is written by hand: for each remainder of both numbers of buckets, the engine joins
the impressions' files with the actions' files that can match. Engines use all cores.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import pyarrow as pa

from benchmarks.iceberg.lakes import ALL_COLUMNS, KEYS, MAIN_COLUMNS, SIDE_COLUMNS, Lake
from pipeline_runtime.sample_data.lake_tables import DAY, IMPRESSIONS, USER_ACTIONS

_LEFT: Final = (*MAIN_COLUMNS, DAY)
_RIGHT: Final = (*KEYS, *SIDE_COLUMNS)
_OUTPUT: Final = (*MAIN_COLUMNS, *SIDE_COLUMNS)
_CHUNK_ROWS: Final = 65_536  # of a result that is taken as a stream


def polars_by_bucket(lake: Lake) -> Iterator[pa.Table]:
    """Join by Polars' streaming engine, bucket by bucket."""
    import polars as pl

    for main, side in lake.residues:
        left = pl.scan_parquet(list(main), hive_partitioning=False).select(_LEFT)
        right = pl.scan_parquet(list(side), hive_partitioning=False).select(_RIGHT)
        joined = left.join(right, on=KEYS, how="left").select(_OUTPUT)
        chunks = joined.collect_batches(
            chunk_size=_CHUNK_ROWS, maintain_order=False, engine="streaming"
        )
        yield from (chunk.to_arrow() for chunk in chunks)


def duckdb_by_bucket(lake: Lake) -> Iterator[pa.RecordBatch]:
    """Join by DuckDB, bucket by bucket."""
    import duckdb

    with closing(duckdb.connect()) as connection:
        connection.execute("set preserve_insertion_order = false")
        for main, side in lake.residues:
            found = connection.execute(
                f"""
                select {", ".join(_OUTPUT)}
                from read_parquet({list(main)}, hive_partitioning = false) as impressions
                left join read_parquet({list(side)}, hive_partitioning = false) as actions
                using ({", ".join(KEYS)})
                """
            )
            yield from found.to_arrow_reader(_CHUNK_ROWS)


def ray_join(lake: Lake) -> Iterator[pa.Table]:
    """Join by Ray Data's `Dataset.join`, which shuffles both sides."""
    import ray

    left, right = (
        ray.data.read_parquet(list(lake.files(layout)), columns=list(columns), partitioning=None)
        for layout, columns in ((IMPRESSIONS, _LEFT), (USER_ACTIONS, _RIGHT))
    )
    # One partition per core was no slower than more of them.
    partitions = len(os.sched_getaffinity(0))
    joined = left.join(right, join_type="left_outer", num_partitions=partitions, on=KEYS)
    for batch in joined.iter_batches(batch_size=None, batch_format="pyarrow"):
        yield batch.select(_OUTPUT)


def daft_by_bucket(lake: Lake) -> Iterator[pa.Table]:
    """Join by Daft's local runner, bucket by bucket."""
    os.environ["DAFT_RUNNER"] = "native"
    os.environ.setdefault("DAFT_ANALYTICS_ENABLED", "0")  # nothing leaves this machine
    os.environ.setdefault("DO_NOT_TRACK", "true")
    import daft  # type: ignore[import-not-found,unused-ignore]

    for main, side in lake.residues:
        left = daft.read_parquet(list(main)).select(*_LEFT)
        right = daft.read_parquet(list(side)).select(*_RIGHT)
        joined = left.join(right, on=list(KEYS), how="left").select(*_OUTPUT)
        yield from joined.to_arrow_iter()


def pyiceberg_reader(lake: Lake) -> Iterator[pa.RecordBatch]:
    """Read the impressions by PyIceberg's `to_arrow_batch_reader`."""
    yield from lake.load().scan(selected_fields=ALL_COLUMNS).to_arrow_batch_reader()
