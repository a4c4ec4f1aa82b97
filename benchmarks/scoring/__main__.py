"""`python -m benchmarks.scoring`: score a table with carried columns, several models, more rows.

carried    columns that no model reads, 0 to 500, compared with Ray Data and a DataLoader
models     2 to 8 models over one read, compared with a job for each; then 10 groups of inputs
language   the step `generate`, compared with its bare engine and with `ray.data.llm`
servers    CPU time of inference workers, with and without carried columns
rows       1 to 256 times the rows, by Lastmile alone
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final

from benchmarks.harness.cells import Cell
from benchmarks.harness.children import Child
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric, Target
from benchmarks.harness.rounds import Rounds, Sample, measure
from benchmarks.scoring.language import AROUND, LANGUAGE_PROGRAMS
from benchmarks.scoring.programs import ARROW_BYTES, COMPARED, SERVER, STEP
from benchmarks.scoring.tables import CPU, MICROS, ROWS, Scored, make_table
from pipeline_runtime.allocator import keep_freed_memory

LASTMILE: Final = "lastmile"
CARRIED: Final = (0, 50, 200, 500)
# Of models, and of columns that none reads. Tables with fewer columns have more rows.
MODELS: Final = ((4, 20), (2, 200), (4, 200), (8, 200))
# The first is the base: long enough for compiled kernels to be loaded, which takes 0.1 GiB.
FACTORS: Final = (16, 1, 256)
ONE_JOB, JOBS = "one job", "a job for each model"
READ, ALONE, GROUPS = "the job without a model", "models alone", "10 groups"
STEP_OF_TEXTS, ENGINE, RAY = LANGUAGE_PROGRAMS
SERVERS: Final = "inference workers"
_FEW_CARRIED, _MANY_CARRIED, _MORE = 20, 200, 8
CARRY, HIGHEST = "carryMicrosPerRow", "highestRatio"
FILE_BYTES, SHARE = "readBytesPerRow", "shareOfEngine"
_LANGUAGE, _STAGES = "a language model", "an engine that answers at once"


def _name(carried: int) -> str:
    return f"{carried} carried columns"


def _name_models(number: int, carried: int) -> str:
    return f"{number} models, {_name(carried)}"


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
        Metric(name=STEP, label="µs of predict", is_compared=False, is_drawn=False),
        Metric(name=CARRY, label="of these to carry", is_compared=False, is_drawn=False),
        Metric(name=HIGHEST, label="highest possible ratio", is_compared=False, is_drawn=False),
        Metric(name=AROUND, label="CPU µs around the engine", is_compared=False, is_drawn=False),
        Metric(name=SERVER, label="CPU µs of inference workers", is_drawn=False),
        Metric(name=FILE_BYTES, label="bytes read per row", is_drawn=False),
        Metric(name=ARROW_BYTES, label="as Arrow bytes", is_drawn=False),
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
            text="µs per row of predict beyond those without carried columns, at most 0.2",
            metric=CARRY,
            arms=(LASTMILE,),
            cells=(_name(200),),
            at_most=0.2,
            of_ratio=False,
            by_bound=False,
        ),
        Target(
            text="CPU time of a job for each model, at least 3 times one job's",
            metric=CPU,
            arms=(JOBS,),
            cells=tuple(_name_models(*each) for each in MODELS if each[0] == 4),
            at_least=3.0,
        ),
        Target(
            text="bytes of the columns that are read with 10 groups, at most as many as without",
            metric=ARROW_BYTES,
            arms=(GROUPS,),
            at_most=1.0,
        ),
        Target(
            text="CPU time of the step, at most 1.01 times that of the engine in the same calls",
            metric=SHARE,
            arms=(STEP_OF_TEXTS,),
            cells=(_LANGUAGE,),
            at_most=1.01,
            of_ratio=False,
        ),
        Target(
            text="time around an engine that answers at once, at least 20 times Lastmile's",
            metric=MICROS,
            arms=(RAY,),
            cells=(_STAGES,),
            at_least=20.0,
        ),
        Target(
            text="CPU time of inference workers with carried columns, at most 1.1 times",
            metric=SERVER,
            arms=(_name(_MANY_CARRIED),),
            cells=(SERVERS,),
            at_most=1.1,
        ),
        Target(
            text="peak of the memory with 16 times the rows, at most 1.1 times",
            metric="peakBytes",
            arms=(f"{FACTORS[-1]} × the rows",),
            at_most=1.1,
        ),
    ),
    cell_label="table",
    arm_label="program",
    x_label="carried columns",
)


def compare(options: argparse.Namespace) -> Iterator[Cell]:
    """Measure the chosen cells."""
    keep_freed_memory()  # as `lastmile` does; Arrow reads it when it is loaded, in the children
    table = partial(make_table, options.data)
    for name in options.only or PARTS:
        yield from PARTS[name](options, table)


def open_child(program: str) -> Child:
    """Start the process of a program."""
    return Child(program, ["-m", "benchmarks.scoring.child", program])


def compare_carried(options: argparse.Namespace, table: Any) -> Iterator[Cell]:
    """Yield a cell for each number of carried columns, with the cost of carrying them."""
    first: Sequence[float] = ()
    with ExitStack() as stack:
        processes = {name: stack.enter_context(open_child(name)) for name in COMPARED}
        for carried in CARRIED:
            scored = Scored(folder=table(rows=options.rows, carried=carried))
            arms = {name: partial(score, child, scored) for name, child in processes.items()}
            cell = measure(_name(carried), arms, Rounds(count=options.rounds), x=carried)
            mine = cell.arms[LASTMILE]
            first = first or mine[STEP]
            mine[CARRY] = [most - none for most, none in zip(mine[STEP], first, strict=True)]
            yield cell


def compare_models(options: argparse.Namespace, table: Any) -> Iterator[Cell]:
    """Yield a cell for each number of models, with the highest ratio that their own time allows."""
    with open_child(LASTMILE) as lastmile, open_child(ALONE) as alone:
        yield from _compare_models(options, table, lastmile, alone)
        scored = Scored(folder=table(rows=options.rows, carried=_FEW_CARRIED, factor=_MORE))
        arms = {
            "no group": partial(score, lastmile, scored),
            GROUPS: partial(score, lastmile, replace(scored, num_groups=10)),
        }
        yield measure("importance of inputs", arms, Rounds(count=options.rounds, warmups=2))


def _compare_models(
    options: argparse.Namespace, table: Any, lastmile: Child, alone: Child
) -> Iterator[Cell]:
    for number, carried in MODELS:
        factor = _MORE if carried == _FEW_CARRIED else 1
        one = Scored(folder=table(rows=options.rows, carried=carried, factor=factor))
        many = replace(one, num_models=number)
        arms = {
            ONE_JOB: partial(score, lastmile, many),
            JOBS: partial(score_apart, lastmile, one, number),
            READ: partial(score_unchecked, lastmile, replace(one, num_models=0)),
            ALONE: partial(score, alone, many),
        }
        cell = measure(_name_models(number, carried), arms, Rounds(count=options.rounds))
        shared, models = cell.arms[READ][CPU], cell.arms[ALONE][CPU]
        cell.arms[JOBS][HIGHEST] = [
            (number * read + own) / (read + own) for read, own in zip(shared, models, strict=True)
        ]
        yield cell


def compare_texts(options: argparse.Namespace, table: Any) -> Iterator[Cell]:
    """Yield the cells of the step `generate`: a real model if there is one, then one at once."""
    with open_child(STEP_OF_TEXTS) as step, open_child(ENGINE) as engine, open_child(RAY) as ray:
        if options.language_model:
            folder = table(rows=options.prompts, carried=_MANY_CARRIED)
            texts = Scored(folder=folder, num_models=0, language_model=options.language_model)
            arms = {
                ENGINE: partial(score, engine, texts),
                STEP_OF_TEXTS: partial(score, step, texts),
            }
            cell = measure(_LANGUAGE, arms, Rounds(count=options.rounds))
            mine = cell.arms[STEP_OF_TEXTS]
            mine[SHARE] = [
                all_ / (all_ - around) for all_, around in zip(mine[CPU], mine[AROUND], strict=True)
            ]
            yield cell
        few, many = (
            Scored(folder=table(rows=rows, carried=_MANY_CARRIED), num_models=0, language_model="")
            for rows in (options.rows // 200, options.rows // 5)
        )
        arms = {
            STEP_OF_TEXTS: partial(score, step, many),
            RAY: partial(score_more, ray, few, many),
        }
        yield measure(_STAGES, arms, Rounds(count=options.rounds))


def compare_servers(options: argparse.Namespace, table: Any) -> Iterator[Cell]:
    """Yield the cell of inference workers."""
    with open_child(SERVERS) as child:
        scored = Scored(folder=table(rows=options.rows, carried=_MANY_CARRIED, factor=_MORE))
        arms = {
            _name(0): partial(score, child, replace(scored, is_narrow=True)),
            _name(_MANY_CARRIED): partial(score, child, scored),
        }
        yield measure(SERVERS, arms, Rounds(count=options.rounds, warmups=2))


def compare_sizes(options: argparse.Namespace, table: Any) -> Iterator[Cell]:
    """Yield the cell of more rows; each size has a process of its own, for its memory."""

    def score_fresh(folder: str) -> Sample:
        with open_child(LASTMILE) as child:
            return score_unchecked(child, Scored(folder=folder))

    arms = {
        f"{factor} × the rows": partial(
            score_fresh, table(rows=options.rows, carried=_FEW_CARRIED, factor=factor)
        )
        for factor in FACTORS
    }
    yield measure("more rows", arms, Rounds(count=options.rounds, warmups=0))


PARTS: Final[dict[str, Callable[[argparse.Namespace, Any], Iterator[Cell]]]] = {
    "carried": compare_carried,
    "models": compare_models,
    "language": compare_texts,
    "servers": compare_servers,
    "rows": compare_sizes,
}


def score(process: Child, scored: Scored) -> Sample:
    """Score a table once."""
    found = process.ask(asdict(scored))
    return Sample(found["values"], found["sums"])


def score_unchecked(process: Child, scored: Scored) -> Sample:
    """Score a table once, with other outputs than the cell's other arms."""
    return Sample(score(process, scored).values)


def score_apart(process: Child, scored: Scored, number: int) -> Sample:
    """Score a table with one model, so many times; the models cost the same."""
    found = [score(process, scored).values for _ in range(number)]
    return Sample({name: sum(values[name] for values in found) for name in (MICROS, CPU)})


def score_more(process: Child, few: Scored, many: Scored) -> Sample:
    """Score two tables; return the time of the further rows, without that of starting actors."""
    found = [score(process, scored) for scored in (few, many)]
    rows = [sample.checksum[ROWS] for sample in found]
    micros = [sample.values[MICROS] * n for sample, n in zip(found, rows, strict=True)]
    return Sample({MICROS: (micros[1] - micros[0]) / (rows[1] - rows[0])}, found[1].checksum)


if __name__ == "__main__":
    parser = build_parser("scoring", __doc__, rows=100_000, rounds=7)
    what = "folder or GGUF file of a language model; without it, its cell is left out"
    parser.add_argument("--only", nargs="*", choices=PARTS, help="parts to measure")
    parser.add_argument("--language-model", help=what)
    parser.add_argument("--prompts", type=int, default=128, help="rows for that model")
    sys.exit(run(BENCHMARK, parser, compare))
