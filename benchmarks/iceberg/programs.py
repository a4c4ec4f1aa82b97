"""The programs of the comparisons, and the measures by which two of them are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks.dataloading.measuring.checksums import Sums
from benchmarks.iceberg.lakes import Lake


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One epoch of a program.

    Attributes:
        rows: impressions of the lake.
        sums: see `checksums`; identities only, unless it was a proof.
        peak_bytes: the most memory of the process above that before the epoch.
        arrow_peak_bytes: likewise, of Arrow's memory pool alone, in a fresh process.
        read_bytes: bytes that the process read from files.
    """

    seconds: float
    rows: int
    sums: Sums
    peak_bytes: int
    arrow_peak_bytes: int
    read_bytes: int


@dataclass(frozen=True, slots=True)
class Program:
    """Something that brings rows into memory, or writes them.

    Attributes:
        opens: `module:function` of this package, which takes a Lake and yields the rows.
        proves: likewise, of a program that yields nothing while it is timed: it does the same work
            and yields the rows.
    """

    name: str
    opens: str
    proves: str = ""
    needs_ray: bool = False


@dataclass(frozen=True, slots=True)
class Arm:
    """A program on a lake."""

    program: Program
    lake: Lake


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A number that compares an epoch of the subject with one of the peer, such as a ratio."""

    name: str
    of: Callable[[Epoch, Epoch, Lake], float]


def _side_share(joined: Epoch, plain: Epoch, lake: Lake) -> float:
    return max(1, joined.read_bytes - plain.read_bytes) / lake.side_bytes()


SPEED: Final = Measure(name="speed", of=lambda a, b, _: b.seconds / a.seconds)
TIME_A_ROW: Final = Measure(
    name="time per row", of=lambda a, b, _: (a.seconds / a.rows) / (b.seconds / b.rows)
)
ARROW_PEAK: Final = Measure(
    name="peak of Arrow's memory", of=lambda a, b, _: a.arrow_peak_bytes / b.arrow_peak_bytes
)
PEAK: Final = Measure(
    name="peak of the process' memory", of=lambda a, b, _: a.peak_bytes / b.peak_bytes
)
SIDE_BYTES: Final = Measure(name="bytes read for the side, over its columns'", of=_side_share)

BUCKET_JOIN: Final = Program("Lastmile, bucket join", "ours:bucket_join")
BROADCAST_JOIN: Final = Program("Lastmile, broadcast join", "ours:broadcast_join")
PARQUET_JOIN: Final = Program("Lastmile, join of Parquet files", "ours:parquet_join")
ICEBERG: Final = Program("Lastmile, Iceberg", "ours:iceberg_stream")
ICEBERG_OF_ALL: Final = Program("Lastmile, Iceberg, all columns", "ours:iceberg_stream_of_all")
PARQUET: Final = Program("Lastmile, the same files as Parquet", "ours:parquet_stream")
WRITE: Final = Program(
    "Lastmile, bucketed and sorted write", "writing:write_sorted", "writing:prove_sorted"
)
POLARS: Final = Program("Polars, bucket by bucket", "peers:polars_by_bucket")
DUCKDB: Final = Program("DuckDB, bucket by bucket", "peers:duckdb_by_bucket")
DAFT: Final = Program("Daft, bucket by bucket", "peers:daft_by_bucket")
RAY: Final = Program("Ray's Dataset.join", "peers:ray_join", needs_ray=True)
SPARK: Final = Program(
    "Spark, warm, storage-partitioned join", "spark:run_join", "spark:collect_join"
)
PYICEBERG: Final = Program("PyIceberg's to_arrow_batch_reader", "peers:pyiceberg_reader")
APPEND: Final = Program("PyIceberg's append, unsorted", "writing:append", "writing:prove_append")
