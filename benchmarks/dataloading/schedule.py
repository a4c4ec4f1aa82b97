"""The order of measured epochs, and the conditions that must hold between them.

    tuning    the settings of each peer that has some; the best one is used from then on
    proof     each contender once, in a fresh process: start, memory, and every column of all rows
    rounds    a calibration, then contenders in turn (A B C D E A B …), level by level
    starts    fresh processes until their first batch
    train     loaders in turn on the small table, with the model's training step
    ablation  Lastmile without each of its optimisations, in turn, with heavy work

As soon as an epoch ends, its sums are compared with those of the first one of its kind.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from benchmarks.dataloading.jobs import Job, Tuning
from benchmarks.dataloading.measuring.checksums import Sums, check_agreement
from benchmarks.dataloading.measuring.epochs import Epoch
from benchmarks.dataloading.measuring.rounds import Round, measure_rounds
from benchmarks.dataloading.peers import (
    FLOORS,
    LOADERS,
    SUBJECT,
    Contender,
    list_contenders,
)
from benchmarks.dataloading.settings import (
    ABLATION_WHERE,
    MEMORY_KEPT_OFF,
    NESTED_ALL_ON,
    ROW_SHUFFLE_ON,
    SWITCHES,
    Measured,
    Settings,
    base_of,
)
from benchmarks.dataloading.tables import Table
from benchmarks.dataloading.tuning import quick, tune
from benchmarks.dataloading.workloads import Workload
from benchmarks.turns import in_turn

# The timed consumer only receives the tensors; the proof reads all their values.
TAKE, TRAIN, PROVE = "take", "train", "prove"


class Runs(Protocol):
    """A measurer of jobs: `hosts.Hosts`, or a stand-in."""

    def run(self, job: Job) -> Epoch:
        """Measure one epoch in a long-lived process."""
        ...

    def run_fresh(self, job: Job) -> Epoch:
        """Measure one epoch in a new process."""
        ...


def run_schedule(
    settings: Settings, hosts: Runs, say: Callable[[str], None] | None = None
) -> Measured:
    """Measure everything.

    Raises DisagreementError if loaders deliver different rows, BenchmarkError if one fails.
    """
    schedule = _Schedule(settings, hosts, say or _say)
    for level in settings.levels:
        schedule.tune(level)
        schedule.prove(level)
        schedule.compare(level)
    for level in settings.levels:
        schedule.start(level)
    for level in settings.train_levels:
        schedule.train(level)
    schedule.ablate()
    return schedule.measured


class _Schedule:
    """Runs jobs in the processes of their kind, and compares the delivered rows."""

    def __init__(self, settings: Settings, hosts: Runs, say: Callable[[str], None]) -> None:
        self.measured = Measured(settings=settings)
        self._settings = settings
        self._hosts = hosts
        self._say = say
        self._first: dict[tuple[object, ...], tuple[str, Sums]] = {}

    def tune(self, level: str) -> None:
        """Choose the settings of the peers that have some; others keep their defaults."""
        settings = self._settings
        for contender in settings.contenders:
            candidates = LOADERS[contender.loader].candidates
            if candidates is None:
                continue
            tuned = tune(
                partial(self._run_tuned, contender, level, settings.tuning_table),
                partial(self._run_tuned, contender, level, settings.table),
                quick(candidates()) if settings.quick else candidates(),
                settings.finals,
            )
            self.measured.best[level, contender] = tuned.best
            epochs = [(tuning, epoch, settings.tuning_table.rows) for tuning, epoch in tuned.tried]
            epochs += [(tuning, epoch, settings.table.rows) for tuning, epoch in tuned.finals]
            self.measured.tuning += [(contender, *one) for one in epochs]

    def _run_tuned(self, contender: Contender, level: str, table: Table, tuning: Tuning) -> Epoch:
        return self._run(replace(self._job(contender, level, TAKE, table), tuning=tuning), table)

    def prove(self, level: str) -> None:
        """Prove the rows and all columns of a whole epoch, for all contenders and the floors."""
        settings = self._settings
        found = {}
        for contender in [*settings.contenders, *settings.floors]:
            # A decode floor returns the identities alone.
            consumer = TAKE if contender.loader in FLOORS else PROVE
            job = self._job(contender, level, consumer, settings.table)
            run = self._hosts.run_fresh if settings.fresh_proofs else self._hosts.run
            found[contender] = self._check(run(job), settings.table)
        self.measured.proofs[level] = found

    def compare(self, level: str) -> None:
        """Measure the rounds of a level."""
        self.measured.rounds[level] = measure_rounds(
            partial(self._measure_round, level),
            self._settings.rounds,
            keeps_all=self._settings.keeps_all_rounds,
        )

    def _measure_round(self, level: str, index: int) -> Round:
        settings = self._settings
        calibration = {
            floor: self._run(self._job(floor, level, TAKE, settings.table), settings.table)
            for floor in settings.floors
        }
        epochs = {}
        for contender in in_turn(settings.contenders, index):
            job = self._job(contender, level, TAKE, settings.table)
            asks_again = contender.loader in settings.starters
            epochs[contender] = self._run(replace(job, asks_again=asks_again), settings.table)
        return Round(level=level, calibration=calibration, epochs=epochs)

    def start(self, level: str) -> None:
        """Measure fresh processes, in turn, until the first batch of the table."""
        settings = self._settings
        for _ in range(settings.starts):
            for contender in list_contenders(settings.starters, settings.layouts, settings.forms):
                job = self._job(contender, level, TAKE, settings.table)
                epoch = self._hosts.run_fresh(replace(job, until_first_batch=True))
                self.measured.starts.append((contender, epoch))
                self._say(f"start {level:5} {_name(job)}: {epoch.cold_seconds:.2f} s")

    def train(self, level: str) -> None:
        """Measure the model's training step on every batch of the small table."""
        settings = self._settings
        for _ in range(settings.rounds):
            for contender in list_contenders(settings.trained, ("flat",), ("expanded",)):
                job = self._job(contender, level, TRAIN, settings.small)
                self.measured.train.append(self._run(job, settings.small))

    def ablate(self) -> None:
        """Measure Lastmile without each of its optimisations, with heavy work."""
        settings = self._settings
        table = settings.table
        flat = Contender(loader=SUBJECT, layout="flat", form="expanded")
        nested = Contender(loader=SUBJECT, layout="nested", form="deduplicated")
        for _ in range(settings.rounds):
            for name in settings.ablations:
                subject = nested if base_of(name) == NESTED_ALL_ON else flat
                job = self._job(subject, "heavy", TAKE, table)
                if table.rows > settings.small.rows:  # a small table has only one day
                    job = replace(job, workload=replace(job.workload, where=ABLATION_WHERE))
                variant = replace(
                    job,
                    workload=_without(job.workload, name),
                    keeps_memory=name != MEMORY_KEPT_OFF,
                )
                self.measured.ablation.append((name, self._run(variant, table, name)))

    def _job(self, contender: Contender, level: str, consumer: str, table: Table) -> Job:
        workload = Workload(
            level=level,
            root=table.roots[contender.layout],
            layout=contender.layout,
            form=contender.form,
        )
        like = LOADERS[contender.loader].tuned_like
        tuned = replace(contender, loader=like) if like else contender
        tuning = self.measured.best.get((level, tuned), Tuning())
        return Job(loader=contender.loader, workload=workload, consumer=consumer, tuning=tuning)

    def _run(self, job: Job, table: Table, name: str | None = None) -> Epoch:
        return self._check(self._hosts.run(job), table, name)

    def _check(self, epoch: Epoch, table: Table, name: str | None = None) -> Epoch:
        job, work = epoch.job, epoch.job.workload
        name = name or _name(job)
        # A decode floor delivers all rows, whatever the level does with them.
        key = (work.level, job.loader in FLOORS, table.rows, work.where, job.consumer)
        first, sums = self._first.setdefault(key, (name, epoch.sums))
        label = name if name != first else f"{name} again"
        check_agreement(f"{work.level} work, {job.consumer}", {first: sums, label: epoch.sums})
        self._say(
            f"{job.consumer:5} {work.level:5} {name} ({job.tuning}): {epoch.rows_out:,} rows in "
            f"{epoch.seconds:.2f} s, first batch after {epoch.first_batch_seconds:.2f} s"
        )
        return epoch


def _name(job: Job) -> str:
    return job.loader if job.workload.layout == "flat" else f"{job.loader}, {job.workload.layout}"


def _without(workload: Workload, variant: str) -> Workload:
    if variant == ROW_SHUFFLE_ON:
        return replace(workload, shuffle="Row")
    return replace(workload, options=SWITCHES.get(variant, ()))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
