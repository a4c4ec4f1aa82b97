"""Runs simulations in parallel: a job is a cell, a policy with its settings, and a seed.

Results are written at once into a journal that is named by a hash of the sources, so that an
interrupted benchmark continues where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np

from benchmarks.autoscaling.policies import POLICIES
from benchmarks.autoscaling.scenarios import SCENARIOS, Cell, CellKey
from dataset_operator import autoscaling, simulation
from dataset_operator.simulation.loop import Trace, simulate_together
from dataset_operator.simulation.measures import Measures, measure, measure_together

_POLICIES: Final = {policy.name: policy for policy in POLICIES}
_SCENARIOS: Final = {scenario.name: scenario for scenario in SCENARIOS}
# Jobs that a process takes at a time; each takes about a twentieth of a second.
_CHUNK: Final = 32
_PROGRESS_SECONDS: Final = 30.0
# A policy that starves the trainers trains all rows too, however long that takes. The worst of all
# cells is a cold start that stays at one worker of thirty.
MAX_STRETCH: Final = 100.0
# Modules of this package that change no measure.
_JUDGES: Final = {
    *("command.py", "course.py", "figure.py", "judging.py", "report.py", "result_rows.py"),
}


@dataclass(frozen=True, slots=True)
class Job:
    """A simulation by names, which are sent to another process."""

    scenario: str
    start_seconds: float
    noise_percent: int
    policy: str
    settings: tuple[tuple[str, Any], ...]
    seed: int

    @property
    def cell(self) -> CellKey:
        return self.scenario, self.start_seconds, self.noise_percent


def job_of(cell: Cell, policy: str, settings: dict[str, Any], seed: int) -> Job:
    """Return the job of a cell."""
    return Job(*cell.key, policy=policy, settings=tuple(sorted(settings.items())), seed=seed)


def trace_job(job: Job) -> list[Trace]:
    """Simulate a job; return a trace for each run of its cell."""
    scenario = _SCENARIOS[job.scenario]
    cell = Cell(scenario=scenario, start_seconds=job.start_seconds, noise_percent=job.noise_percent)
    policy, settings = _POLICIES[job.policy], dict(job.settings)
    return simulate_together(
        cell.settings(),
        lambda cluster: policy.make(cluster, **settings),
        job.seed,
        max_stretch=MAX_STRETCH,
    )


def run_job(job: Job) -> Measures:
    """Simulate a job; return its measures."""
    traces = trace_job(job)
    return measure(traces[0]) if len(traces) == 1 else measure_together(traces)


@dataclass(slots=True)
class Runner:
    """Runs jobs in several processes, each job once.

    Attributes:
        folder: folder of the journal; None: no journal.
        niceness: added to that of the processes.
        num_runs: number of requested simulations.
    """

    processes: int = field(default_factory=lambda: os.cpu_count() or 1)
    niceness: int = 0
    folder: Path | None = None
    _known: dict[Job, Measures] = field(init=False, default_factory=dict)
    _asked: set[Job] = field(init=False, default_factory=set)
    _path: Path = field(init=False, default=Path(os.devnull))

    def __post_init__(self) -> None:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            # Hashed once, because sources that are edited later are not those that run.
            self._path = self.folder / f"{digest_sources()}.jsonl"
            self._known = dict(_read(self._path))

    @property
    def num_runs(self) -> int:
        return len(self._asked)

    def run(self, jobs: Iterable[Job], what: str) -> dict[Job, Measures]:
        """Return the result of each job; progress goes to stderr."""
        asked = list(dict.fromkeys(jobs))
        self._asked.update(asked)
        new = [job for job in asked if job not in self._known]
        if new:
            with self._path.open("a") as journal:
                self._run_new(new, what, journal)
        return {job: self._known[job] for job in asked}

    def _run_new(self, jobs: Sequence[Job], what: str, journal: TextIO) -> None:
        began = told = time.monotonic()
        done = 0
        for job, measures in _run_side_by_side(jobs, self.processes, self.niceness):
            self._known[job] = measures
            journal.write(json.dumps([astuple(job), asdict(measures)]) + "\n")
            done += 1
            now = time.monotonic()
            if now - told >= _PROGRESS_SECONDS:
                journal.flush()
                told, minutes = now, (now - began) / 60.0
                left = minutes * (len(jobs) - done) / done
                _tell(f"{what}: {done:,} of {len(jobs):,} runs, {left:.0f} min to go")
        _tell(f"{what}: {done:,} runs in {(time.monotonic() - began) / 60.0:.1f} min")


def digest_sources() -> str:
    """Hash everything that decides a job's result."""
    here = Path(__file__).parent
    folders = [here, *(Path(package.__path__[0]) for package in (autoscaling, simulation))]
    digest = hashlib.sha256(np.__version__.encode())
    for folder in folders:
        for path in sorted(folder.glob("*.py")):
            if folder != here or path.name not in _JUDGES:
                digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _run_side_by_side(
    jobs: Sequence[Job], processes: int, niceness: int
) -> Iterator[tuple[Job, Measures]]:
    """Yield results in the order in which they finish."""
    chunks = [jobs[i : i + _CHUNK] for i in range(0, len(jobs), _CHUNK)]
    with ProcessPoolExecutor(processes, initializer=os.nice, initargs=(niceness,)) as pool:
        waiting: set[Future[list[tuple[Job, Measures]]]] = {
            pool.submit(_run_chunk, chunk) for chunk in chunks
        }
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield from future.result()


def _run_chunk(jobs: Sequence[Job]) -> list[tuple[Job, Measures]]:
    return [(job, run_job(job)) for job in jobs]


def _read(path: Path) -> Iterator[tuple[Job, Measures]]:
    """Read the stored results, without a last line that is incomplete."""
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            (*names, settings, seed), measures = json.loads(line)
        except ValueError:
            continue
        pairs = tuple((name, value) for name, value in settings)
        yield Job(*names, settings=pairs, seed=seed), Measures(**measures)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
