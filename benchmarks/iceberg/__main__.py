"""`python -m benchmarks.iceberg`: Iceberg tables, read, joined and written by several programs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.harness.cells import Cell
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Beginning, Benchmark, Metric, Target, cells_of
from benchmarks.iceberg import programs as p
from benchmarks.iceberg.lakes import Lake, make_lake
from benchmarks.iceberg.materializing import compare_window, judge_advice, read_without_source
from benchmarks.iceberg.programs import Comparison, Side, compare
from benchmarks.iceberg.writers import NUM_COMMITS, measure_writers

_GROWTH: Final = (1, 4, 16)  # times the rows of the smallest table
_DAYS: Final = 4
# One day in few files, with as many rows in a row group as Lastmile's own writer puts there.
_LARGE: Final = {"days": 1, "rows_per_file": 1_048_576, "rows_per_group": 131_072}
_WARM_UP_ROWS: Final = 10_000


def _target(
    text: str,
    metric: str,
    cells: Sequence[str] = (),
    *,
    of_ratio: bool = True,
    by_bound: bool = True,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Target:
    limit = f"at most {at_most:g}" if at_least is None else f"at least {at_least:g}"
    return Target(
        text=f"{text}, {limit}",
        metric=metric,
        cells=cells,
        of_ratio=of_ratio,
        by_bound=by_bound,
        at_least=at_least,
        at_most=at_most,
    )


def _metric(name: str, label: str, *, scale: float = 1.0, is_compared: bool = True) -> Metric:
    is_drawn = name == "rowsPerSecond"
    return Metric(name=name, label=label, scale=scale, is_compared=is_compared, is_drawn=is_drawn)


SPEED = "rowsPerSecond"
BENCHMARK = Benchmark(
    name="iceberg",
    module="iceberg",
    title="Iceberg tables",
    text="All programs of a comparison delivered equal values, by checksums of every column; a "
    "stream without the join, the same rows. Lastmile ends at shuffled tensors, peers at Arrow "
    "tables, Spark in its own memory. How it is measured: "
    "[docs/benchmarks.md](../../docs/benchmarks.md#iceberg-tables).",
    metrics=(
        _metric(SPEED, "rows/s"),
        _metric("arrowPeakBytes", "peak of Arrow's memory, MiB", scale=2**-20),
        _metric("peakBytes", "peak of the process, MiB", scale=2**-20),
        *(
            _metric(name, label, is_compared=False)
            for name, label in (
                ("sideShare", "bytes read for the side, of its columns"),
                ("commits", "commits"),
                ("orphans", "orphan files"),
                ("daysOfWork", "work of the next day, in days of the first window"),
                ("ofBetter", "core seconds, of the better choice"),
            )
        ),
    ),
    targets=(
        _target("joined stream, of the unjoined one", SPEED, ["stream, join"], at_least=0.9),
        _target("bytes of the side", "sideShare", of_ratio=False, at_most=1.1),
        _target("Iceberg, of Parquet", SPEED, ["stream, Iceberg"], at_least=0.95),
        _target("join, of another engine", SPEED, ["engines"], at_least=1.2),
        _target("join, of Spark's", SPEED, ["spark"], at_least=3.0),
        _target("join, of Ray's", SPEED, ["ray"], at_least=16.0),
        _target("memory, of PyIceberg's", "arrowPeakBytes", ["memory"], at_most=0.25),
        _target("sorted write, of an append", SPEED, ["write"], at_least=1.0),
        _target(
            "commits of eight writers",
            "ownCommits",
            of_ratio=False,
            by_bound=False,
            at_least=NUM_COMMITS,
        ),
        _target("orphans after prune", "ownOrphans", of_ratio=False, by_bound=False, at_most=0.0),
        _target("kept rows, of Parquet", SPEED, ["materialization-hit"], at_least=0.95),
        _target("work of the next day", "daysOfWork", of_ratio=False, at_most=1.1),
        _target(
            "advice, of the better choice", "ofBetter", of_ratio=False, by_bound=False, at_most=1.05
        ),
    ),
    arm_label="program",
    fact_labels={
        "note": "also",
        "notMeasured": "not measured",
        "commit": "commit",
        "finishedAt": "finished",
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The sizes of a measurement.

    Attributes:
        data: folder of the tables, which are kept for later runs.
        rows, large_rows, growth_rows: impressions of the main tables, of those with large files,
            and of the smallest of those that grow.
        rounds: epochs of each program.
    """

    data: Path
    rows: int
    large_rows: int
    growth_rows: int
    rounds: int

    def main(self) -> Lake:
        """Return the main tables."""
        return make_lake(self.data, self.rows, days=_DAYS)

    def compare(self, comparisons: Sequence[Comparison], *, is_fresh: bool = False) -> list[Cell]:
        """Measure the programs in interleaved rounds."""
        warm_up = make_lake(self.data, _WARM_UP_ROWS, days=1)
        return list(compare(comparisons, self.rounds, warm_up, is_fresh=is_fresh))


def _compare_streams(bench: Bench) -> list[Cell]:
    lake = bench.main()
    join, plain, parquet, broadcast, parquet_join = (
        Side(program, lake)
        for program in (p.BUCKET_JOIN, p.ICEBERG, p.PARQUET, p.BROADCAST_JOIN, p.PARQUET_JOIN)
    )
    cells = bench.compare(
        [
            Comparison("stream, join", join, plain, "rows"),
            Comparison("stream, Iceberg", plain, parquet),
            Comparison("stream, strategies", join, broadcast),
            Comparison("stream, formats", join, parquet_join),
        ]
    )
    joined, unjoined = (cells[0].arms[side.name] for side in (join, plain))
    reads = zip(joined["readBytes"], unjoined["readBytes"], strict=True)
    joined["sideShare"] = [max(1, a - b) / lake.side_bytes() for a, b in reads]
    return cells


def _compare_joins(name: str, peers: Sequence[p.Program], bench: Bench) -> list[Cell]:
    """Compare the join by bucket with other engines."""
    lake = bench.main()
    join = Side(p.BUCKET_JOIN, lake)
    return bench.compare([Comparison(name, join, Side(peer, lake)) for peer in peers])


def _compare_memory(bench: Bench) -> list[Cell]:
    lake = make_lake(bench.data, bench.large_rows, **_LARGE)
    ours, theirs = Side(p.ICEBERG_OF_ALL, lake), Side(p.PYICEBERG, lake)
    return bench.compare([Comparison("memory", ours, theirs)], is_fresh=True)


def _compare_writes(bench: Bench) -> list[Cell]:
    write, append = (Side(program, bench.main()) for program in (p.WRITE, p.APPEND))
    return bench.compare([Comparison("write", write, append)])


def _compare_sizes(bench: Bench) -> list[Cell]:
    """Compare the larger tables with the smallest."""
    lakes = {n: make_lake(bench.data, bench.growth_rows * n, days=_DAYS) for n in _GROWTH}
    comparisons = []
    for program in (p.ICEBERG, p.BUCKET_JOIN, p.WRITE):
        first, *larger = (
            Side(program, lake, f"{program.name}, {n} ×") for n, lake in lakes.items()
        )
        comparisons += [Comparison("growth", side, first, "none") for side in larger]
    return bench.compare(comparisons, is_fresh=True)


def _compare_hit(bench: Bench) -> list[Cell]:
    """Compare kept rows with the same files as Parquet, on a large table."""
    lake = make_lake(bench.data, bench.large_rows, days=_DAYS)
    sides = Side(p.KEPT, lake), Side(p.KEPT_FILES, lake)
    cells = bench.compare([Comparison("materialization-hit", *sides)])
    read_without_source(lake)
    cells[0].facts["note"] = "the same rows without the original's data files"
    return cells


CELLS: Final[Mapping[str, Callable[[Bench], Iterable[Cell]]]] = {
    "stream": _compare_streams,
    "engines": partial(_compare_joins, "engines", (p.POLARS, p.DUCKDB, p.DAFT)),
    "spark": partial(_compare_joins, "spark", (p.SPARK,)),
    "ray": partial(_compare_joins, "ray", (p.RAY,)),
    "memory": _compare_memory,
    "write": _compare_writes,
    "writers": lambda bench: measure_writers(bench.data),
    "growth": _compare_sizes,
    "materialization-window": lambda bench: [
        compare_window(bench.data, bench.large_rows, bench.rounds)
    ],
    "materialization-hit": _compare_hit,
    "advice": lambda bench: [judge_advice(bench.data, bench.main())],
}


def measure_cells(options: argparse.Namespace) -> Iterator[Cell]:
    """Measure the chosen cells; one that fails leaves the others."""
    path = options.output / f"{BENCHMARK.name}.json"
    kept = cells_of(json.loads(path.read_text())) if options.add and path.exists() else []
    bench = Bench(
        data=options.data,
        rows=options.rows,
        large_rows=options.large_rows,
        growth_rows=options.growth_rows,
        rounds=options.rounds,
    )
    for name, measure in CELLS.items():
        if name not in options.cells:
            yield from (cell for cell in kept if cell.name.partition(",")[0] == name)
            continue
        beginning = Beginning()
        try:
            cells = list(measure(bench))
        except BenchmarkError as error:
            print(f"error: {name}: {error}", file=sys.stderr)
            reason = " ".join(str(error).split())
            cells = [Cell(name=name, base="", arms={"–": {}}, facts={"notMeasured": reason})]
        known = beginning.describe(BENCHMARK.module, [])
        for cell in cells:
            cell.facts |= {key: known[key] for key in ("commit", "finishedAt")}
        yield from cells


if __name__ == "__main__":
    parser = build_parser("iceberg", __doc__, rows=1_000_000, rounds=5)
    add = parser.add_argument
    add(
        "--cells",
        nargs="+",
        choices=CELLS,
        default=list(CELLS),
        metavar="CELL",
        help=", ".join(CELLS),
    )
    add("--large-rows", type=int, default=4_000_000, help="impressions, for the memory")
    add("--growth-rows", type=int, default=250_000, help="of the smallest table")
    add("--add", action="store_true", help="keep existing results of other cells")
    sys.exit(run(BENCHMARK, parser, measure_cells, fails_if_missed=True))
