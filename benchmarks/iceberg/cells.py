"""The cells: what is compared in each, and the target of each comparison.

A cell is a function from a `Bench` to rows of the page. Most cells let programs take turns
(`Bench.compare`); a cell that measures something else builds its rows by `results.build_row`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.iceberg import programs as p
from benchmarks.iceberg.lakes import Lake, make_lake
from benchmarks.iceberg.materializing import compare_hit, compare_window, judge_advice
from benchmarks.iceberg.programs import Arm, Program
from benchmarks.iceberg.rounds import Comparison, compare
from benchmarks.iceberg.writers import measure_writers
from benchmarks.records import Document

_GROWTH: Final = (1, 4, 16)  # times the rows of the smallest table
_DAYS: Final = 4
# One day in few files, with as many rows in a row group as Lastmile's own writer puts there.
_LARGE: Final = {"days": 1, "rows_per_file": 1_048_576, "rows_per_group": 131_072}
_WARM_UP_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The sizes of a measurement.

    Attributes:
        data: folder of the tables, which are kept for later runs.
        rows, large_rows, growth_rows: impressions of the main tables, of those with large files,
            and of the smallest of those that grow.
        rounds: epochs of each program, which take turns.
    """

    data: Path
    rows: int
    large_rows: int
    growth_rows: int
    rounds: int

    def main(self) -> Lake:
        """Return the main tables."""
        return make_lake(self.data, self.rows, days=_DAYS)

    def grown(self, times: int) -> Lake:
        """Return tables like the main ones, with more rows."""
        return make_lake(self.data, self.growth_rows * times, days=_DAYS)

    def large(self) -> Lake:
        """Return tables with large files."""
        return make_lake(self.data, self.large_rows, **_LARGE)

    def compare(
        self, comparisons: Sequence[Comparison], *, is_fresh: bool = False
    ) -> list[Document]:
        """Let the programs take turns, and return a row for each comparison.

        Args:
            is_fresh: measure each epoch in a process of its own.
        """
        warm_up = make_lake(self.data, _WARM_UP_ROWS, days=1)
        return compare(comparisons, warm_up, self.rounds, is_fresh=is_fresh)


Cell = Callable[[Bench], Iterable[Document]]


def _compare_streams(bench: Bench) -> list[Document]:
    join, plain, parquet = (
        Arm(program, bench.main()) for program in (p.BUCKET_JOIN, p.ICEBERG, p.PARQUET)
    )
    others = (Arm(program, bench.main()) for program in (p.BROADCAST_JOIN, p.PARQUET_JOIN))
    return bench.compare(
        [
            Comparison(join, plain, at_least=0.9, equal="rows"),
            Comparison(join, plain, measure=p.SIDE_BYTES, at_most=1.1, equal="rows"),
            Comparison(plain, parquet, at_least=0.95),
            *(Comparison(join, other) for other in others),
        ]
    )


def _compare_joins(peers: Mapping[Program, float], bench: Bench) -> list[Document]:
    """Compare the join by bucket with other engines.

    Args:
        peers: the target of each peer.
    """
    lake = bench.main()
    join = Arm(p.BUCKET_JOIN, lake)
    return bench.compare(
        [Comparison(join, Arm(peer, lake), at_least=bar) for peer, bar in peers.items()]
    )


def _compare_memory(bench: Bench) -> list[Document]:
    ours, theirs = (Arm(program, bench.large()) for program in (p.ICEBERG_OF_ALL, p.PYICEBERG))
    comparisons = [
        Comparison(ours, theirs, measure=p.ARROW_PEAK, at_most=0.25),
        Comparison(ours, theirs, measure=p.PEAK),
        Comparison(ours, theirs),
    ]
    return bench.compare(comparisons, is_fresh=True)


def _compare_writes(bench: Bench) -> list[Document]:
    write, append = (Arm(program, bench.main()) for program in (p.WRITE, p.APPEND))
    return bench.compare([Comparison(write, append, at_least=1.0)])


def _compare_sizes(bench: Bench) -> list[Document]:
    """Compare the larger tables with the smallest: time per row and memory of each program."""
    first, *larger = (bench.grown(times) for times in _GROWTH)
    comparisons = [
        Comparison(Arm(program, lake), Arm(program, first), measure=measure, equal="none")
        for program in (p.ICEBERG, p.BUCKET_JOIN, p.WRITE)
        for measure in (p.TIME_A_ROW, p.PEAK)
        for lake in larger
    ]
    return bench.compare(comparisons, is_fresh=True)


CELLS: Final[Mapping[str, Cell]] = {
    "stream": _compare_streams,
    "engines": partial(_compare_joins, {p.POLARS: 1.2, p.DUCKDB: 1.2, p.DAFT: 1.2}),
    "spark": partial(_compare_joins, {p.SPARK: 3.0}),
    "ray": partial(_compare_joins, {p.RAY: 16.0}),
    "memory": _compare_memory,
    "write": _compare_writes,
    "writers": lambda bench: measure_writers(bench.data),
    "growth": _compare_sizes,
    "materialization-window": compare_window,
    "materialization-hit": compare_hit,
    "advice": judge_advice,
}
