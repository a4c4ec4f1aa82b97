"""`python -m benchmarks.iceberg`: Iceberg tables, read, joined and written by several programs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Final

from benchmarks.harness.cells import Cell
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric, Target
from benchmarks.iceberg.lakes import make_lake
from benchmarks.iceberg.programs import RATE, Comparison, Program, compare, open_programs

_DAYS: Final = 4
# One day in few files, with as many rows in a row group as Lastmile's own writer puts there.
_LARGE: Final = {"days": 1, "rows_per_file": 1_048_576, "rows_per_group": 131_072}
_LARGER: Final = 4  # times the rows, to compare memory
_WARM_UP_ROWS: Final = 10_000

_ICEBERG: Final = Program("Lastmile, Iceberg", "ours:iceberg_stream")
_PARQUET: Final = Program("Lastmile, the same files as Parquet", "ours:parquet_stream")
_JOIN: Final = Program("Lastmile, bucket join", "ours:bucket_join")
_POLARS: Final = Program("Polars, bucket by bucket", "peers:polars_join")
_SPARK: Final = Program("Spark, warm, storage-partitioned join", "spark:join")
COMPARISONS: Final = (
    Comparison(cell="stream", subject=_ICEBERG, peer=_PARQUET),
    Comparison(cell="join", subject=_JOIN, peer=_ICEBERG, adds_columns=True),
    Comparison(cell="polars", subject=_JOIN, peer=_POLARS),
    Comparison(cell="spark", subject=_JOIN, peer=_SPARK),
    Comparison(cell="ray", subject=_JOIN, peer=Program("Ray's Dataset.join", "peers:ray_join")),
    Comparison(
        cell="memory",
        subject=Program("Lastmile, Iceberg, all columns", "ours:iceberg_stream_of_all"),
        peer=Program("PyIceberg's to_arrow_batch_reader", "peers:pyiceberg_reader"),
        of_memory=True,
    ),
    Comparison(
        cell="write",
        subject=Program("Lastmile, bucketed and sorted write", "writing:write_sorted"),
        peer=Program("PyIceberg's append, unsorted", "writing:append"),
    ),
)
CELLS: Final = tuple(comparison.cell for comparison in COMPARISONS)


def _at_least(text: str, cell: str, limit: float) -> Target:
    return Target(text=f"{text}, at least {limit:g}", metric=RATE, cells=[cell], at_least=limit)


BENCHMARK = Benchmark(
    name="iceberg",
    module="iceberg",
    title="Iceberg tables",
    text="Both programs of a cell delivered equal values, by checksums of every column; the "
    "stream without the join has its own columns. Lastmile ends at shuffled tensors, peers at "
    "Arrow tables, Spark in its own memory. How it is measured: "
    "[docs/benchmarks.md](../../docs/benchmarks.md#iceberg-tables).",
    metrics=(
        Metric(name=RATE, label="rows/s"),
        Metric(name="arrowPeakBytes", label="Arrow's peak, MiB", scale=2**-20, is_drawn=False),
        Metric(name="peakBytes", label="the process's peak, MiB", scale=2**-20, is_drawn=False),
    ),
    targets=(
        _at_least("Iceberg, of Parquet", "stream", 0.95),
        _at_least("joined stream, of the unjoined one", "join", 0.9),
        _at_least("join, of Polars'", "polars", 1.2),
        _at_least("join, of Spark's", "spark", 3.0),
        _at_least("join, of Ray's", "ray", 16.0),
        Target(
            text="Arrow's peak, of PyIceberg's, at most 0.25",
            metric="arrowPeakBytes",
            cells=["memory"],
            at_most=0.25,
        ),
        _at_least("sorted write, of an append", "write", 1.0),
    ),
    arm_label="program",
    fact_labels={"notMeasured": "not measured"},
)


def measure_cells(options: argparse.Namespace) -> Iterator[Cell]:
    """Measure the chosen cells; one that fails leaves the others."""
    warm_up = make_lake(options.data, _WARM_UP_ROWS, days=1)
    for comparison in COMPARISONS:
        if comparison.cell not in options.cells:
            continue
        if comparison.of_memory:
            lake = make_lake(options.data, _LARGER * options.rows, **_LARGE)
        else:
            lake = make_lake(options.data, options.rows, days=_DAYS)
        try:
            with open_programs(comparison, lake, warm_up) as ask:
                yield compare(comparison, ask, options.rounds)
        except BenchmarkError as error:
            print(f"error: {comparison.cell}: {error}", file=sys.stderr)
            facts = {"notMeasured": str(error).strip().splitlines()[-1]}
            yield Cell(name=comparison.cell, base="", arms={"–": {}}, facts=facts)


if __name__ == "__main__":
    parser = build_parser("iceberg", __doc__, rows=1_000_000, rounds=5)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=CELLS, help="to measure")
    sys.exit(run(BENCHMARK, parser, measure_cells))
