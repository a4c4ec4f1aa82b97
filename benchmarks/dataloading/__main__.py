"""Compares Lastmile with other loaders that bring the same rows to the same tensors.

docs/benchmarks.md describes how it is measured. A ratio says how many times as long as Lastmile a
peer takes for a row.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final

from benchmarks.dataloading import child
from benchmarks.dataloading.jobs import PROVE, Job
from benchmarks.dataloading.peers import DATALOADER, RAY_DATA, SUBJECT, THREADS
from benchmarks.dataloading.tables import Table, make_table
from benchmarks.dataloading.workloads import LEVELS, Workload
from benchmarks.harness.cells import Cell
from benchmarks.harness.children import ROOT, Child, environment_of
from benchmarks.harness.program import build_parser, run
from benchmarks.harness.report import Benchmark, Metric, Target
from benchmarks.harness.rounds import Rounds, Sample, measure
from pipeline_runtime.allocator import keep_freed_memory

STEADY, WHOLE, CPU = "steadySeconds", "epochSeconds", "cpuSeconds"
COLD: Final = "coldFirstBatchSeconds"
FLAT, NESTED = "flat, expanded", "nested, deduplicated"
_NESTED_SUBJECT: Final = f"{SUBJECT} ({NESTED})"
_PEERS: Final = (DATALOADER, THREADS, RAY_DATA)
# Half of the days of the sample data, so that the planner has a filter to push down. A table with
# fewer rows than these has a single day.
_WHERE: Final = "day >= '2026-01-05'"
_ROWS_WITH_DAYS: Final = 1_000_000

ALL_ON: Final = "all on"
# By cell, the switches of `pipelineOptions.debug` that are off, one at a time.
VARIANTS: Final[Mapping[str, Sequence[str]]] = {
    FLAT: ("pushdown", "projection", "kernels", "page_decoding", "ready_batches"),
    NESTED: ("page_decoding", "deduplication"),
}

# Least ratio by cell and peer, without work and with heavy work.
_LEAST: Final = (
    (FLAT, DATALOADER, (1.4, 1.4)),
    (NESTED, f"{DATALOADER} ({FLAT})", (4.0, 4.0)),
    (FLAT, RAY_DATA, (4.0, 8.0)),
    (NESTED, f"{RAY_DATA} ({FLAT})", (12.0, 20.0)),
    (FLAT, THREADS, (0.95, 0.95)),
)
_MOST_SECONDS_COLD: Final = 1.5


def build_targets() -> Iterator[Target]:
    """Yield the targets of speed, then that of the start."""
    for cell, peer, least in _LEAST:
        for level, ratio in zip(LEVELS, least, strict=True):
            yield Target(
                text=f"time of a peer, at least {ratio:g} times Lastmile's",
                metric=STEADY,
                arms=(peer,),
                cells=(f"{level}, {cell}",),
                at_least=ratio,
            )
    yield Target(
        text=f"first batch of a fresh process, at most {_MOST_SECONDS_COLD:g} s",
        metric=COLD,
        arms=(SUBJECT,),
        cells=tuple(f"{level}, {FLAT}" for level in LEVELS),
        at_most=_MOST_SECONDS_COLD,
        of_ratio=False,
        by_bound=False,
    )


BENCHMARK = Benchmark(
    name="dataloading",
    module="dataloading",
    title="Loading data: Lastmile and its peers",
    text="How it is measured: [docs/benchmarks.md](../../docs/benchmarks.md). Times are seconds "
    "per million input rows; the steady state is the middle 80 % of the rows. A ratio says how "
    "many times as long as Lastmile a peer takes; with `options`, how many times as long as with "
    "all on. All arms delivered the same rows, by checksums of every column.",
    metrics=(
        Metric(name=STEADY, label="steady, s per million rows"),
        Metric(name=WHOLE, label="whole epoch, s per million rows"),
        Metric(name=CPU, label="core seconds per million rows", is_compared=False, is_drawn=False),
        Metric(name=COLD, label="first batch, fresh, s", is_compared=False, is_drawn=False),
    ),
    targets=tuple(build_targets()),
    cell_label="work, files, batches",
    arm_label="loader",
    fact_labels={"run": "run", "setAside": "rounds set aside"},
)


class Processes:
    """A process for each loader. While one works, the others wait.

    A DataLoader forks its workers, which is not safe beside the threads of Ray or of Lastmile.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._alive: dict[str, Child] = {}

    def run(self, job: Job) -> dict[str, Any]:
        """Measure an epoch in a process that stays."""
        if job.loader not in self._alive:
            self._alive[job.loader] = self._stack.enter_context(open_child(job.loader))
        return dict(self._alive[job.loader].ask(asdict(job)))

    def run_fresh(self, job: Job) -> dict[str, Any]:
        """Measure an epoch in a new process, with its start."""
        with open_child(job.loader) as process:
            found = process.ask(asdict(job))
            return {**found, COLD: found["firstBatchAt"] - process.started_at}


def open_child(name: str) -> Child:
    """Start a process that measures, with Lastmile's setting of the allocator, also for peers."""
    return Child(name, [child.__file__], environment_of(ROOT) | keep_freed_memory())


def compare_loaders(level: str, table: Table, rounds: int, processes: Processes) -> Iterator[Cell]:
    """Measure all loaders at a level of work, and yield a cell for each table of the subject."""
    jobs = {name: Job(loader=name, workload=_workload(level, table)) for name in (SUBJECT, *_PEERS)}
    jobs[_NESTED_SUBJECT] = Job(loader=SUBJECT, workload=_workload(level, table, NESTED))
    proofs = {
        name: partial(sample_fresh, replace(job, consumer=PROVE), processes)
        for name, job in jobs.items()
    }
    proof = measure(f"{level}, proof", proofs, Rounds(count=1, warmups=0))
    arms = {name: partial(sample, job, processes, table.rows) for name, job in jobs.items()}
    timed = measure(level, arms, Rounds(count=rounds))
    found = {name: timed.arms[name] | proof.arms[name] for name in jobs}
    flat = {name: found[name] for name in (SUBJECT, *_PEERS)}
    nested = {SUBJECT: found[_NESTED_SUBJECT]}
    nested |= {f"{peer} ({FLAT})": found[peer] for peer in (DATALOADER, RAY_DATA)}
    for cell, chosen in ((FLAT, flat), (NESTED, nested)):
        yield Cell(name=f"{level}, {cell}", base=SUBJECT, arms=chosen, facts=proof.facts)


def compare_options(cell: str, table: Table, rounds: int, processes: Processes) -> Cell:
    """Measure Lastmile with heavy work without each of its optimisations, in whole epochs."""
    where = _WHERE if table.rows >= _ROWS_WITH_DAYS else None
    workload = replace(_workload("heavy", table, cell), where=where)
    workloads = {ALL_ON: workload}
    for switch in VARIANTS[cell]:
        name = f"{switch.replace('_', ' ')} off"
        workloads[name] = replace(workload, options={switch: False})
    arms = {
        name: partial(sample, Job(loader=SUBJECT, workload=one), processes, table.rows)
        for name, one in workloads.items()
    }
    found = measure(f"options, heavy, {cell}", arms, Rounds(count=rounds))
    found.arms = {name: {WHOLE: values[WHOLE]} for name, values in found.arms.items()}
    return found


def sample(job: Job, processes: Processes, rows: int) -> Sample:
    """Measure an epoch, by seconds per million rows of the table."""
    epoch, millions = processes.run(job), rows / 1e6
    values = {
        STEADY: epoch["steadySecondsPerRow"] * epoch["sums"]["rows"] / millions,
        WHOLE: epoch["seconds"] / millions,
        CPU: epoch["cpuSeconds"] / millions,
    }
    return Sample(values, epoch["sums"])


def sample_fresh(job: Job, processes: Processes) -> Sample:
    """Measure the first batch of a new process."""
    epoch = processes.run_fresh(job)
    return Sample({COLD: epoch[COLD]}, epoch["sums"])


def _workload(level: str, table: Table, cell: str = FLAT) -> Workload:
    layout, form = cell.split(", ")
    return Workload(level=level, root=table.roots[layout], layout=layout, form=form)


def compare(options: argparse.Namespace) -> Iterator[Cell]:
    """Measure all cells."""
    table = make_table(options.data, options.rows, ("flat", "nested"))
    with ExitStack() as stack:
        processes = Processes(stack)
        for level in LEVELS:
            yield from compare_loaders(level, table, options.rounds, processes)
        for cell in VARIANTS:
            yield compare_options(cell, table, options.rounds, processes)


if __name__ == "__main__":
    parser = build_parser("dataloading", __doc__, rows=10_000_000, rounds=7)
    sys.exit(run(BENCHMARK, parser, compare))
