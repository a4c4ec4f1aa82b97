"""The programs of the comparisons, and the comparison of them in interleaved rounds."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, Literal

from benchmarks.harness.cells import Cell
from benchmarks.harness.children import Child
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.rounds import Rounds, Sample, check_agreement, measure
from benchmarks.iceberg.lakes import Lake

_IDENTITIES: Final = ("rows", "identities", "identities squared")


@dataclass(frozen=True, slots=True)
class Program:
    """A program that brings rows into memory, or writes them.

    Attributes:
        opens: `module:function` of this package, which takes a Lake and yields the rows.
        proves: the same for a program that yields nothing while it is timed: it does the same work
            and yields the rows.
    """

    name: str
    opens: str
    proves: str = ""
    needs_ray: bool = False

    def open(self) -> Child:
        """Start a process that runs epochs."""
        return Child(self.name, ["-m", "benchmarks.iceberg.child", json.dumps(asdict(self))])


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
KEPT: Final = Program("Lastmile, rows of materialize", "materializing:hit_stream")
KEPT_FILES: Final = Program("Lastmile, the files of these rows", "materializing:parquet_stream")


@dataclass(frozen=True, slots=True)
class Side:
    """A program on a lake, and its name among the arms if that is not the program's."""

    program: Program
    lake: Lake
    label: str = ""

    @property
    def name(self) -> str:
        """The name of the arm."""
        return self.label or self.program.name


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of two sides.

    Attributes:
        equal: both must deliver equal values of every column, or the same rows, which may have more
            columns, or are on different tables.
    """

    name: str
    subject: Side
    peer: Side
    equal: Literal["values", "rows", "none"] = "values"


Ask = Callable[[Side, bool], Any]


def compare(
    comparisons: Sequence[Comparison], rounds: int, warm_up: Lake, *, is_fresh: bool = False
) -> Iterator[Cell]:
    """Measure all sides in processes of their own; yield a cell for each comparison.

    Args:
        warm_up: tables for the first epoch of a fresh process, which loads libraries.
        is_fresh: measure each epoch in a new process.
    """
    with ExitStack() as stack:
        alive: dict[Program, Child] = {}

        def ask(side: Side, proves: bool) -> Any:
            if is_fresh:
                with side.program.open() as child:
                    child.ask(_request(warm_up, proves=False))
                    return child.ask(_request(side.lake, proves=proves))
            if side.program not in alive:
                alive[side.program] = stack.enter_context(side.program.open())
            return alive[side.program].ask(_request(side.lake, proves=proves))

        yield from compare_by(ask, comparisons, rounds)


def _request(lake: Lake, *, proves: bool) -> Mapping[str, Any]:
    return {"folder": str(lake.folder), "rows": lake.rows, "proves": proves}


def compare_by(ask: Ask, comparisons: Sequence[Comparison], rounds: int) -> Iterator[Cell]:
    """Measure all sides by a function that runs an epoch.

    A comparison with a program that does not run here has the reason instead of values.
    Raises DisagreementError if two sides of a comparison deliver different rows.
    """
    sides = list(dict.fromkeys(side for c in comparisons for side in (c.subject, c.peer)))
    proofs: dict[Side, Any] = {}
    failed: dict[Side, str] = {}
    for side in sides:
        try:
            proofs[side] = ask(side, True)["sums"]
            if side.program.proves:
                ask(side, False)
        except BenchmarkError as error:
            failed[side] = str(error).strip().splitlines()[-1]
            print(f"{side.name} does not run: {error}", file=sys.stderr)
    for comparison in comparisons:
        _check(comparison, proofs)
    arms = {side.name: partial(_run, ask, side) for side in sides if side in proofs}
    found = measure(comparisons[0].name, arms, Rounds(count=rounds, warmups=0)) if arms else None
    for comparison in comparisons:
        both = (comparison.peer, comparison.subject)
        missing = [f"{side.name}: {failed[side]}" for side in both if side in failed]
        kept = {} if missing or found is None else {s.name: found.arms[s.name] for s in both}
        facts = {"notMeasured": "; ".join(missing)} if missing else {}
        yield Cell(name=comparison.name, base=comparison.peer.name, arms=kept, facts=facts)


def _run(ask: Ask, side: Side) -> Sample:
    return Sample(ask(side, False)["values"])


def _check(comparison: Comparison, proofs: Mapping[Side, Mapping[str, int]]) -> None:
    both = (comparison.subject, comparison.peer)
    found = {side.name: proofs[side] for side in both if side in proofs}
    if comparison.equal == "rows":
        found = {name: {key: sums[key] for key in _IDENTITIES} for name, sums in found.items()}
    if comparison.equal != "none" and len(found) == len(both):
        check_agreement(comparison.name, found)
