"""Simulations side by side: a job is a cell, a policy with its settings, and a seed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.autoscaling.policies import POLICIES
from benchmarks.autoscaling.scenarios import SCENARIOS, Cell
from dataset_operator.simulation.loop import simulate
from dataset_operator.simulation.measures import Measures, measure

_POLICIES: Final = {policy.name: policy for policy in POLICIES}
_SCENARIOS: Final = {scenario.name: scenario for scenario in SCENARIOS}
# Jobs that a process takes at a time: each is a fraction of a second.
_CHUNK: Final = 16


@dataclass(frozen=True, slots=True)
class Job:
    """By names, so that it travels to another process."""

    scenario: str
    start_seconds: float
    noise_percent: int
    policy: str
    settings: tuple[tuple[str, Any], ...]
    seed: int

    @property
    def cell(self) -> tuple[str, float, int]:
        return self.scenario, self.start_seconds, self.noise_percent


def job_of(cell: Cell, policy: str, settings: dict[str, Any], seed: int) -> Job:
    """The job of a cell."""
    return Job(
        scenario=cell.scenario.name,
        start_seconds=cell.start_seconds,
        noise_percent=cell.noise_percent,
        policy=policy,
        settings=tuple(sorted(settings.items())),
        seed=seed,
    )


def run_job(job: Job) -> Measures:
    """Simulate it."""
    cell = Cell(
        scenario=_SCENARIOS[job.scenario],
        start_seconds=job.start_seconds,
        noise_percent=job.noise_percent,
    )
    policy, settings = _POLICIES[job.policy], dict(job.settings)
    trace = simulate(cell.setting(), lambda cluster: policy.make(cluster, **settings), job.seed)
    return measure(trace)


def run_jobs(jobs: Iterable[Job]) -> Iterator[tuple[Job, Measures]]:
    """All of them, by as many processes as there are cores; in their order."""
    jobs = list(jobs)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        yield from zip(jobs, pool.map(run_job, jobs, chunksize=_CHUNK), strict=True)
