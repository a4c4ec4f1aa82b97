"""`python -m benchmarks.scoring`: score a table with carried columns, several models, more rows.

carried    columns that no model reads, 0 to 500, compared with Ray Data and a DataLoader
models     1 to 8 models over one read, compared with a job for each
rows       1 to 16 times the rows, by Lastmile alone
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final

from benchmarks.harness.cells import Cell
from benchmarks.harness.children import Child
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric, Target
from benchmarks.harness.rounds import Rounds, Sample, measure
from benchmarks.scoring.programs import PROGRAMS
from benchmarks.scoring.tables import Scored, make_table
from pipeline_runtime.allocator import keep_freed_memory

LASTMILE: Final = "lastmile"
CARRIED: Final = (0, 50, 200, 500)
MODELS: Final = (1, 2, 4, 8)
FACTORS: Final = (1, 4, 16)
ONE_JOB, JOBS = "one job", "a job for each model"
_FEW_CARRIED: Final = 20  # of the tables for several models and for more rows
MICROS, STEP, CARRY = "microsPerRow", "stepMicrosPerRow", "carryMicrosPerRow"


def _name(carried: int) -> str:
    return f"{carried} carried columns"


BENCHMARK = Benchmark(
    name="scoring",
    module="scoring",
    title="Scoring a table",
    text="Rows are read from Parquet, scored and handed over as Arrow tables with all columns; "
    "nothing is written. All arms gave the same score to the same key, by checksum. How it is "
    "measured: [docs/benchmarks.md](../../docs/benchmarks.md#scoring).",
    metrics=(
        Metric(name=MICROS, label="µs per row"),
        Metric(name="cpuMicrosPerRow", label="CPU µs per row", is_drawn=False),
        Metric(name=STEP, label="CPU µs of predict", is_compared=False, is_drawn=False),
        Metric(name=CARRY, label="of these to carry", is_compared=False, is_drawn=False),
        Metric(name="peakBytes", label="peak, GiB", scale=2**-30, is_drawn=False),
    ),
    targets=(
        Target(
            text="time of Ray Data's default, at least 6 times Lastmile's",
            metric=MICROS,
            arms=("Ray Data, default",),
            cells=(_name(200),),
            at_least=6.0,
        ),
        Target(
            text="time of Ray Data on Arrow tables, at least 1.5 times Lastmile's",
            metric=MICROS,
            arms=("Ray Data, pyarrow",),
            cells=(_name(200),),
            at_least=1.5,
        ),
        Target(
            text="CPU µs per row of predict beyond those without carried columns, at most 0.2",
            metric=CARRY,
            arms=(LASTMILE,),
            cells=(_name(200),),
            at_most=0.2,
            of_ratio=False,
            by_bound=False,
        ),
        Target(
            text="time of a job for each model, at least 3 times one job's",
            metric=MICROS,
            arms=(JOBS,),
            cells=("4 models",),
            at_least=3.0,
        ),
        Target(
            text="peak of the memory with 16 times the rows, at most 1.1 times",
            metric="peakBytes",
            arms=("16 × the rows",),
            at_most=1.1,
        ),
    ),
    cell_label="table",
    arm_label="program",
    x_label="carried columns",
)


def compare(options: argparse.Namespace) -> Iterator[Cell]:
    """Measure all cells."""
    keep_freed_memory()  # as `lastmile` does; Arrow reads it when it is loaded, in the children
    table = partial(make_table, options.data)
    with ExitStack() as stack:
        processes = {name: stack.enter_context(open_child(name)) for name in PROGRAMS}
        yield from compare_carried(options, table, processes)
        few = Scored(folder=table(rows=options.rows, carried=_FEW_CARRIED))
        for number in MODELS:
            many = replace(few, num_models=number)
            arms = {
                ONE_JOB: partial(score, processes[LASTMILE], many),
                JOBS: partial(score_apart, processes[LASTMILE], few, number),
            }
            yield measure(f"{number} models", arms, Rounds(count=options.rounds))
    yield compare_sizes(options, table)


def open_child(program: str) -> Child:
    """Start the process of a program."""
    return Child(program, ["-m", "benchmarks.scoring.child", program])


def compare_carried(
    options: argparse.Namespace, table: Any, processes: dict[str, Child]
) -> Iterator[Cell]:
    """Yield a cell for each number of carried columns, with the cost of carrying them."""
    first: Sequence[float] = ()
    for carried in CARRIED:
        scored = Scored(folder=table(rows=options.rows, carried=carried))
        arms = {name: partial(score, child, scored) for name, child in processes.items()}
        cell = measure(_name(carried), arms, Rounds(count=options.rounds), x=carried)
        mine = cell.arms[LASTMILE]
        first = first or mine[STEP]
        mine[CARRY] = [most - none for most, none in zip(mine[STEP], first, strict=True)]
        yield cell


def compare_sizes(options: argparse.Namespace, table: Any) -> Cell:
    """Return the cell of more rows; each size has a process of its own, for its memory."""

    def score_fresh(folder: str) -> Sample:
        with open_child(LASTMILE) as child:
            return Sample(score(child, Scored(folder=folder)).values)

    arms = {
        f"{factor} × the rows": partial(
            score_fresh, table(rows=options.rows, carried=_FEW_CARRIED, factor=factor)
        )
        for factor in FACTORS
    }
    return measure("more rows", arms, Rounds(count=options.rounds, warmups=0))


def score(process: Child, scored: Scored) -> Sample:
    """Score a table once."""
    found = process.ask(asdict(scored))
    return Sample(found["values"], found["sums"])


def score_apart(process: Child, scored: Scored, number: int) -> Sample:
    """Score a table with one model, so many times; the models cost the same."""
    found = [score(process, scored).values for _ in range(number)]
    return Sample({MICROS: sum(values[MICROS] for values in found)})


if __name__ == "__main__":
    parser = build_parser("scoring", __doc__, rows=100_000, rounds=7)
    sys.exit(run(BENCHMARK, parser, compare))
