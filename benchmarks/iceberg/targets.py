"""The comparisons: which program against which, by what measure, and the target of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.iceberg.child import Epoch


@dataclass(frozen=True, slots=True)
class Program:
    """A program of `ours` or `peers`, as `module:function`."""

    name: str
    opens: str
    needs_ray: bool = False


BUCKET_JOIN: Final = Program("Lastmile, bucket join", "ours:bucket_join")
BROADCAST_JOIN: Final = Program("Lastmile, broadcast join", "ours:broadcast_join")
PARQUET_JOIN: Final = Program("Lastmile, join of Parquet files", "ours:parquet_join")
ICEBERG: Final = Program("Lastmile, Iceberg", "ours:iceberg_stream")
ICEBERG_OF_ALL: Final = Program("Lastmile, Iceberg, all columns", "ours:iceberg_stream_of_all")
PARQUET: Final = Program("Lastmile, the same files as Parquet", "ours:parquet_stream")
POLARS: Final = Program("Polars, bucket by bucket", "peers:polars_by_bucket")
DUCKDB: Final = Program("DuckDB, bucket by bucket", "peers:duckdb_by_bucket")
DAFT: Final = Program("Daft, bucket by bucket", "peers:daft_by_bucket")
RAY: Final = Program("Ray's Dataset.join", "peers:ray_join", needs_ray=True)
PYICEBERG: Final = Program("PyIceberg's to_arrow_batch_reader", "peers:pyiceberg_reader")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A number of an epoch that is compared, such that more is better."""

    name: str
    of: Callable[[Epoch], float]


SPEED: Final = Measure(name="speed", of=lambda epoch: 1 / epoch.seconds)
MEMORY: Final = Measure(name="1 / memory", of=lambda epoch: 1 / epoch.peak_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A comparison of two programs.

    Attributes:
        at_least: of the subject's measure over the peer's, by the lower bound; None if the peer is
            there for comparison only.
        is_equal: both must deliver equal values of every column; else only the same rows.
        is_large: on the table with large files, in fresh processes.
    """

    subject: Program
    peer: Program
    measure: Measure = SPEED
    at_least: float | None
    is_equal: bool = True
    is_large: bool = False


TARGETS: Final[Sequence[Target]] = (
    Target(subject=BUCKET_JOIN, peer=ICEBERG, at_least=0.9, is_equal=False),
    Target(subject=BUCKET_JOIN, peer=BROADCAST_JOIN, at_least=None),
    Target(subject=BUCKET_JOIN, peer=PARQUET_JOIN, at_least=None),
    Target(subject=BUCKET_JOIN, peer=RAY, at_least=16.0),
    Target(subject=BUCKET_JOIN, peer=POLARS, at_least=1.2),
    Target(subject=BUCKET_JOIN, peer=DUCKDB, at_least=1.2),
    Target(subject=BUCKET_JOIN, peer=DAFT, at_least=1.2),
    Target(subject=ICEBERG, peer=PARQUET, at_least=0.95),
    Target(subject=ICEBERG_OF_ALL, peer=PYICEBERG, measure=MEMORY, at_least=4.0, is_large=True),
)
# Bytes read from files by a join, beyond those of the same stream without it, as a multiple of the
# side's columns in the files.
MAX_SIDE_BYTES: Final = 1.1
