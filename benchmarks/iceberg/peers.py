"""The peers: the same rows by Polars, Ray Data and PyIceberg, each as Arrow tables.

Polars joins bucket by bucket, written by hand: for each remainder of both numbers of buckets, the
impressions' files with the actions' files that can match. Engines use all cores.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from typing import Final

import pyarrow as pa

from benchmarks.harness.machine import num_cores
from benchmarks.iceberg.lakes import ALL_COLUMNS, KEYS, MAIN_COLUMNS, SIDE_COLUMNS, Lake
from pipeline_runtime.sample_data.lake_tables import DAY, IMPRESSIONS, USER_ACTIONS

_LEFT: Final = (*MAIN_COLUMNS, DAY)
_RIGHT: Final = (*KEYS, *SIDE_COLUMNS)
_OUTPUT: Final = (*MAIN_COLUMNS, *SIDE_COLUMNS)
_CHUNK_ROWS: Final = 65_536  # of a result that is taken as a stream


def polars_join(lake: Lake) -> Iterator[pa.Table]:
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


def ray_join(lake: Lake) -> Iterator[pa.Table]:
    """Join by Ray Data's `Dataset.join`, which shuffles both sides."""
    import ray

    _start_ray()
    left, right = (
        ray.data.read_parquet(list(lake.files(layout)), columns=list(columns), partitioning=None)
        for layout, columns in ((IMPRESSIONS, _LEFT), (USER_ACTIONS, _RIGHT))
    )
    # One partition per core was no slower than more of them.
    joined = left.join(right, "left_outer", num_cores(), on=KEYS)  # type: ignore[arg-type]
    for batch in joined.iter_batches(batch_size=None, batch_format="pyarrow"):
        assert isinstance(batch, pa.Table)
        yield batch.select(_OUTPUT)


@cache
def _start_ray() -> None:
    """Start a Ray that lives as long as this process."""
    from pipeline_runtime.run.ray_connection import connected

    stack = ExitStack()
    # Ray's join holds logical CPUs for its own actors, and would wait for them for ever.
    stack.enter_context(connected("local", num_cores(), verbose=False))
    atexit.register(stack.close)


def pyiceberg_reader(lake: Lake) -> Iterator[pa.RecordBatch]:
    """Read the impressions by PyIceberg's `to_arrow_batch_reader`."""
    yield from lake.load().scan(selected_fields=ALL_COLUMNS).to_arrow_batch_reader()
