"""Which epochs are measured, in which order, and what must hold between them.

    tuning    the DataLoader with 0 to 4 workers, on the whole table; the best goes on
    proof     every loader and level once, on the small table, contents bound to rows; not timed
    touch     loaders in turn (A B C D E A B …), all levels, on the whole table
    train     the same on the small table, with the model's training step, two levels
    ablation  Lastmile without each of its optimisations, in turn, heavy work

Every epoch's sums are compared with those of the first of its kind as soon as it ends.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from benchmarks.dataloading.checksums import Sums, check_agreement
from benchmarks.dataloading.epochs import Epoch, Job
from benchmarks.dataloading.hosts import LOADERS
from benchmarks.dataloading.workloads import LEVELS, Workload

TORCH_LOADERS = ("dataloader", "dataloader-ship")
# Half of the sample data's days, so that there is something for the planner to push down.
ABLATION_WHERE = "day >= '2026-01-05'"
ALL_ON = "all on"
# Not an optimisation: what the default shuffle costs, which the comparison goes without.
ROW_SHUFFLE_ON = "row shuffle on"
SWITCHES: Mapping[str, str] = {
    "pushdown off": "pushdown",
    "projection off": "projection",
    "fusion off": "fusion",
    "broadcast off": "broadcast",
}
ABLATIONS = (ALL_ON, *SWITCHES, ROW_SHUFFLE_ON)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of sample data."""

    root: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is measured, and how often."""

    table: Table
    small: Table
    repeats: int
    tuning_repeats: int
    worker_counts: tuple[int, ...]
    train_levels: tuple[str, ...]
    ablations: tuple[str, ...]
    quick: bool


@dataclass(slots=True, kw_only=True)
class Measured:
    """All epochs, by the part of the schedule that they belong to."""

    settings: Settings
    workers: dict[tuple[str, str], int] = field(default_factory=dict)  # (level, loader) -> best
    tuning: list[Epoch] = field(default_factory=list)
    proofs: dict[str, dict[str, Sums]] = field(default_factory=dict)  # level -> loader -> sums
    touch: list[Epoch] = field(default_factory=list)
    train: list[Epoch] = field(default_factory=list)
    ablation: list[tuple[str, Epoch]] = field(default_factory=list)


class Runs(Protocol):
    """What measures jobs: a `hosts.Host`, or a stand-in."""

    def run(self, job: Job) -> Epoch:
        """Measure one epoch."""
        ...


def run_schedule(settings: Settings, hosts: Mapping[str, Runs]) -> Measured:
    """Measure everything.

    Raises DisagreementError if loaders deliver different rows, BenchmarkError if one fails.
    """
    measured = Measured(settings=settings)
    bench = _Bench(hosts)
    _tune(bench, measured)
    _prove(bench, measured)
    for level in LEVELS:
        workload = Workload(level=level, root=settings.table.root)
        for _ in range(settings.repeats):
            measured.touch += bench.run_round(_jobs(measured, workload, "touch"))
    for level in settings.train_levels:
        workload = Workload(level=level, root=settings.small.root)
        for _ in range(settings.repeats):
            measured.train += bench.run_round(_jobs(measured, workload, "train"))
    _ablate(bench, measured)
    return measured


def _tune(bench: _Bench, measured: Measured) -> None:
    settings = measured.settings
    for level in LEVELS:
        workload = Workload(level=level, root=settings.table.root)
        jobs = [
            Job(loader=loader, workload=workload, consumer="touch", num_workers=workers)
            for loader in TORCH_LOADERS
            for workers in settings.worker_counts
        ]
        epochs = [e for _ in range(settings.tuning_repeats) for e in bench.run_round(jobs)]
        measured.tuning += epochs
        for loader in TORCH_LOADERS:
            measured.workers[level, loader] = best_workers(epochs, loader)


def best_workers(epochs: Sequence[Epoch], loader: str) -> int:
    """The number of workers whose median epoch was shortest."""
    seconds: dict[int, list[float]] = {}
    for epoch in epochs:
        if epoch.job.loader == loader:
            seconds.setdefault(epoch.job.num_workers, []).append(epoch.seconds)
    return min(seconds, key=lambda workers: statistics.median(seconds[workers]))


def _prove(bench: _Bench, measured: Measured) -> None:
    for level in LEVELS:
        workload = Workload(level=level, root=measured.settings.small.root)
        epochs = bench.run_round(_jobs(measured, workload, "prove"))
        measured.proofs[level] = {epoch.job.loader: epoch.sums for epoch in epochs}


def _ablate(bench: _Bench, measured: Measured) -> None:
    plain = Workload(level="heavy", root=measured.settings.table.root, where=ABLATION_WHERE)
    if measured.settings.table.rows <= measured.settings.small.rows:
        plain = replace(plain, where=None)  # a small table has one day
    variants = {name: _without(plain, name) for name in measured.settings.ablations}
    jobs = [Job(loader="lastmile", workload=w, consumer="touch") for w in variants.values()]
    for _ in range(measured.settings.repeats):
        epochs = bench.run_round(jobs, names=tuple(variants))
        measured.ablation += zip(variants, epochs, strict=True)


def _without(workload: Workload, variant: str) -> Workload:
    if variant == ROW_SHUFFLE_ON:
        return replace(workload, shuffle="row")
    option = SWITCHES.get(variant)
    return replace(workload, switched_off=(option,) if option else ())


def _jobs(measured: Measured, workload: Workload, consumer: str) -> list[Job]:
    return [
        Job(
            loader=loader,
            workload=workload,
            consumer=consumer,
            num_workers=measured.workers.get((workload.level, loader), 0),
        )
        for loader in LOADERS
    ]


class _Bench:
    """Runs jobs where they belong and compares what they delivered."""

    def __init__(self, hosts: Mapping[str, Runs], say: Callable[[str], None] | None = None) -> None:
        self._hosts = hosts
        self._say = say or _say
        self._first: dict[tuple[str, str, str | None, str], tuple[str, Sums]] = {}

    def run_round(self, jobs: Sequence[Job], names: Sequence[str] = ()) -> list[Epoch]:
        """One epoch of each job, in turn; `names` where the loader's does not tell them apart."""
        shown = names or [job.loader for job in jobs]
        return [self._run(job, name) for job, name in zip(jobs, shown, strict=True)]

    def _run(self, job: Job, name: str) -> Epoch:
        epoch = self._hosts[LOADERS[job.loader]].run(job)
        work = job.workload
        first, sums = self._first.setdefault(
            (work.level, work.root, work.where, job.consumer), (name, epoch.sums)
        )
        label = name if name != first else f"{name} again"
        check_agreement(f"{work.level} work, {job.consumer}", {first: sums, label: epoch.sums})
        workers = f" with {job.num_workers} workers" if job.loader in TORCH_LOADERS else ""
        self._say(
            f"{job.consumer:5} {work.level:5} {name}{workers}: {epoch.rows_out:,} rows in "
            f"{epoch.seconds:.2f} s, first batch after {epoch.first_batch_seconds:.2f} s"
        )
        return epoch


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
