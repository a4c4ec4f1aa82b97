"""The cells: for each level of work all loaders in rounds, then Lastmile without each option.

    tuning    the settings of each peer that has some; the best one is used from then on
    proof     each contender once, in a fresh process: memory, and every column of all rows
    rounds    all contenders; those in which the decode floors are off their medians are set aside
    starts    fresh processes until their first batch
    options   Lastmile without each of its optimisations, with heavy work

Metrics are seconds per million input rows, so a ratio to Lastmile says how many times as long a
peer takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol

from benchmarks.dataloading.jobs import PROVE, Job, Tuning
from benchmarks.dataloading.measuring.epochs import Epoch
from benchmarks.dataloading.peers import FLOOR, LOADERS, SUBJECT, Contender, list_contenders
from benchmarks.dataloading.tables import Table
from benchmarks.dataloading.tuning import tune
from benchmarks.dataloading.workloads import FUSION_OFF, RAY_DATA, Workload
from benchmarks.harness.cells import Cell
from benchmarks.harness.errors import DisagreementError
from benchmarks.harness.rounds import Arm, Rounds, Sample, measure

STEADY, WHOLE, CPU = "steadySeconds", "epochSeconds", "cpuSeconds"
NEXT, COLD, MEMORY = "nextFirstBatchSeconds", "coldFirstBatchSeconds", "peakBytes"
_MILLION: Final = 1_000_000
# The bound for a machine that is never calm; the results have the number of rounds.
_MAX_TRIES_A_ROUND: Final = 3
# Half of the days of the sample data, so that the planner has a filter to push down. A table with
# fewer rows than these has a single day.
_WHERE: Final = "day >= '2026-01-05'"
_ROWS_WITH_DAYS: Final = 1_000_000

ALL_ON: Final = "all on"
_MEMORY_KEPT_OFF: Final = "memory kept off"  # set for a process, not in a manifest
_PUSHDOWN_OFF: Final = ("pushdown", False)
_PAGES_OFF: Final = ("pageDecoding", False)
# By layout and variant, how the workload differs from the default.
VARIANTS: Final[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
    "flat": {
        ALL_ON: {},
        "pushdown off": {"options": (_PUSHDOWN_OFF,)},
        "late materialisation off": {"options": (("lateMaterialization", False),)},
        # After pruning by statistics, it has little to remove.
        "pushdown, late materialisation off": {
            "options": (_PUSHDOWN_OFF, ("lateMaterialization", False))
        },
        "projection off": {"options": (("projection", False),)},
        "fusion off": {"options": (FUSION_OFF,)},
        "kernels off": {"options": (("kernels", False),)},
        "page decoding off": {"options": (_PAGES_OFF,)},
        "broadcast off": {"options": (("broadcast", False),)},
        "prefetch off": {"options": (("prefetch", False),)},
        "ready batches off": {"options": (("readyBatches", False),)},
        "readers off": {"options": (RAY_DATA,)},
        _MEMORY_KEPT_OFF: {},
        # Not an optimisation: the cost of the default shuffle, which the comparison does not use.
        "row shuffle on": {"shuffle": "Row"},
    },
    "nested": {
        ALL_ON: {},
        "page decoding off": {"options": (_PAGES_OFF,)},
        "deduplication off": {"options": (("deduplication", False),)},
    },
}
QUICK_VARIANTS: Final = (ALL_ON, "projection off", "kernels off", "deduplication off")


class Runs(Protocol):
    """A measurer of jobs: `hosts.Hosts`, or a stand-in."""

    def run(self, job: Job) -> Epoch:
        """Measure one epoch in a long-lived process."""
        ...

    def run_fresh(self, job: Job) -> Epoch:
        """Measure one epoch in a new process."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a measurement: its tables, loaders, cells and rounds.

    Attributes:
        table, tuning_table: of the comparison, and on which peers are tuned.
        loaders: the compared loaders, the subject first.
        rounds: calm rounds at each level.
        keeps_all_rounds: rounds count whatever their calibration.
        finals: how often the fastest settings of a peer run again.
        starters: the loaders whose start is measured, of fresh processes and of the next epoch.
        starts: how often a fresh process starts.
        has_ablation: Lastmile is measured without each option.
        is_quick: few settings and variants, and proofs without memory; speeds are meaningless.
    """

    table: Table
    tuning_table: Table
    loaders: tuple[str, ...]
    layouts: tuple[str, ...]
    forms: tuple[str, ...]
    levels: tuple[str, ...]
    rounds: int
    keeps_all_rounds: bool
    finals: int
    starters: tuple[str, ...]
    starts: int
    has_ablation: bool
    is_quick: bool

    def contenders_of(self, loaders: tuple[str, ...]) -> list[Contender]:
        """List the contenders of some loaders."""
        return list_contenders(loaders, self.layouts, self.forms)


@dataclass(slots=True)
class Schedule:
    """Measures all cells by jobs."""

    settings: Settings
    hosts: Runs
    best: dict[tuple[str, Contender], Tuning] = field(default_factory=dict)  # by level

    def measure(self) -> Iterator[Cell]:
        """Measure all cells.

        Raises DisagreementError if loaders deliver different rows, BenchmarkError if one fails.
        """
        for level in self.settings.levels:
            yield from self._compare(level)
        if self.settings.has_ablation and "heavy" in self.settings.levels:
            yield from self._ablate()

    def _compare(self, level: str) -> Iterator[Cell]:
        settings = self.settings
        contenders = settings.contenders_of(settings.loaders)
        floors = settings.contenders_of((FLOOR,))
        for contender in contenders:
            self._tune(contender, level)
        run_alone = self.hosts.run if settings.is_quick else self.hosts.run_fresh
        proof = self._measure(level, contenders, Rounds(count=1, warmups=0), run_alone, PROVE)
        rounds = Rounds(count=settings.rounds, warmups=0)
        if not settings.keeps_all_rounds:
            calibration = (WHOLE, [str(floor) for floor in floors])
            max_count = settings.rounds * _MAX_TRIES_A_ROUND
            rounds = replace(rounds, calibration=calibration, max_count=max_count)
        timed = self._measure(level, [*contenders, *floors], rounds, self.hosts.run)
        parts = [timed, proof]
        if settings.starters:
            once = partial(self._run_start, self.hosts.run_fresh)
            starters = settings.contenders_of(settings.starters)
            parts.append(
                self._measure(level, starters, Rounds(count=settings.starts, warmups=0), once)
            )
        yield from self._split(level, parts, timed.facts | proof.facts)

    def _split(self, level: str, parts: list[Cell], facts: dict[str, Any]) -> Iterator[Cell]:
        """Yield a cell for each layout and form of the subject, with the peers of that."""
        found: dict[Contender, dict[str, list[float]]] = {}
        settings = self.settings
        contenders = [*settings.contenders_of(settings.loaders), *settings.contenders_of((FLOOR,))]
        for contender in contenders:
            for part in parts:
                found[contender] = part.arms.get(str(contender), {}) | found.get(contender, {})
        for subject in settings.contenders_of((SUBJECT,)):
            peers = [c for c in contenders if c.is_compared_with(subject)]
            tuning = {p.named_for(subject): str(self._tuning(p, level)) for p in peers}
            chosen = {name: text for name, text in tuning.items() if text != str(Tuning())}
            yield Cell(
                name=f"{level}, {subject.layout}, {subject.form}",
                base=SUBJECT,
                arms={p.named_for(subject): found[p] for p in [subject, *peers]},
                facts=facts | ({"settings": chosen} if chosen else {}),
            )

    def _measure(
        self,
        level: str,
        contenders: list[Contender],
        rounds: Rounds,
        run: Callable[[Job], Epoch],
        consumer: str = "take",
    ) -> Cell:
        arms: dict[str, Arm] = {}
        for contender in contenders:
            job = replace(self._job(contender, level, self.settings.table), consumer=consumer)
            arms[str(contender)] = partial(self._sample, job, run)
        return measure(f"{level}, {consumer}", arms, rounds)

    def _sample(self, job: Job, run: Callable[[Job], Epoch]) -> Sample:
        epoch, rows_in = run(job), self.settings.table.rows
        rows = epoch.sums.get("rows", 0)
        if job.loader == FLOOR and rows != rows_in:
            raise DisagreementError(f"{FLOOR}: must decode {rows_in} rows, but decoded {rows}.")
        found: dict[str, float | None] = {}
        if epoch.cold_seconds is None and job.consumer != PROVE:
            millions = rows_in / _MILLION
            found = {STEADY: epoch.steady_seconds_a_row * rows / millions}
            found[WHOLE] = epoch.seconds / millions
            found[CPU] = None if epoch.cpu_seconds is None else epoch.cpu_seconds / millions
            found[NEXT] = epoch.next_first_batch_seconds
        found |= {COLD: epoch.cold_seconds, MEMORY: epoch.peak_bytes}
        values = {name: value for name, value in found.items() if value is not None}
        is_part = job.loader == FLOOR or epoch.cold_seconds is not None
        return Sample(values, None if is_part else epoch.sums)

    def _run_start(self, run: Callable[[Job], Epoch], job: Job) -> Epoch:
        return run(replace(job, until_first_batch=True, asks_again=False))

    def _tune(self, contender: Contender, level: str) -> None:
        """Choose the settings of a peer that has some; others keep their defaults."""
        settings, candidates = self.settings, LOADERS[contender.loader].candidates

        def run_on(table: Table, tuning: Tuning) -> Epoch:
            job = replace(self._job(contender, level, table), asks_again=False, tuning=tuning)
            return self.hosts.run(job)

        if candidates:
            self.best[level, contender] = tune(
                partial(run_on, settings.tuning_table),
                partial(run_on, settings.table),
                [candidates[0], candidates[-1]] if settings.is_quick else candidates,
                settings.finals,
            )

    def _tuning(self, contender: Contender, level: str) -> Tuning:
        like = LOADERS[contender.loader].tuned_like
        tuned = replace(contender, loader=like) if like else contender
        return self.best.get((level, tuned), Tuning())

    def _job(self, contender: Contender, level: str, table: Table) -> Job:
        layout, form = contender.layout, contender.form
        return Job(
            loader=contender.loader,
            workload=Workload(level=level, root=table.roots[layout], layout=layout, form=form),
            tuning=self._tuning(contender, level),
            asks_again=contender.loader in self.settings.starters,
        )

    def _ablate(self) -> Iterator[Cell]:
        """Measure Lastmile without each of its optimisations, in whole epochs."""
        settings = self.settings
        where = _WHERE if settings.table.rows >= _ROWS_WITH_DAYS else None
        for layout, form in (("flat", "expanded"), ("nested", "deduplicated")):
            if layout not in settings.layouts:
                continue
            job = self._job(Contender(SUBJECT, layout, form), "heavy", settings.table)
            arms: dict[str, Arm] = {}
            for name, changes in VARIANTS[layout].items():
                variant = replace(
                    job,
                    workload=replace(job.workload, where=where, **changes),
                    asks_again=False,
                    keeps_memory=name != _MEMORY_KEPT_OFF,
                )
                if not settings.is_quick or name in QUICK_VARIANTS:
                    arms[name] = partial(self._sample_whole, variant)
            rounds = Rounds(count=settings.rounds, warmups=0)
            yield measure(f"options, heavy, {layout}, {form}", arms, rounds)

    def _sample_whole(self, job: Job) -> Sample:
        sample = self._sample(job, self.hosts.run)
        values = {name: value for name, value in sample.values.items() if name != STEADY}
        return Sample(values, sample.checksum)
